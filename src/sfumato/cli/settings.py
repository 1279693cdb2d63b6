# SPDX-License-Identifier: Apache-2.0
"""The settings of `sfumato train`: from flags, from a TOML file, and from a recipe, in this order.

Promise    A key that is not known is an error that names the nearest one that is; so is a value of the wrong
           kind. A misspelled privacy setting is never passed over.
Kept       A run with a folder keeps its settings there, so that `--resume` needs nothing else.
"""

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from sfumato import _files
from sfumato.errors import InvalidParameterError
from sfumato.training.models.recipes import models_of, recipe

__all__ = ["TrainSettings", "keep", "kept", "read_config"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """Everything that can be said about a run on a public data set; None is left to the recipe."""

    data: str | None = None
    private: str | None = None  # "rows" or "labels"
    method: str | None = None  # of label privacy
    model: str | None = None
    width: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    epochs: float | None = None
    steps: int | None = None
    expected_batch_size: float | None = None
    clip_norm: float | None = None
    per_layer: bool | None = None
    relation: str | None = None
    contribution_bound: int | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    ema_decay: float | None = None
    evaluate_every: int | None = None
    audit: int | None = None  # how many canaries
    microbatch_size: int | None = None
    device: str | None = None
    engine: str | None = None
    ledger: str | None = None
    account: str | None = None
    purpose: str | None = None
    folder: str | None = None
    report: str | None = None
    seed: int | None = None

    def over(self, below: "TrainSettings") -> "TrainSettings":
        """Return these settings, and where they say nothing those of `below`.

        >>> TrainSettings(epsilon=1.0).over(TrainSettings(epsilon=3.0, epochs=5.0)).epochs
        5.0
        """
        return replace(below, **self.given())

    def given(self) -> dict[str, Any]:
        """Return what is set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def completed(self) -> "TrainSettings":
        """Return the settings with what the recipe says of the rest."""
        if self.data is None:
            raise InvalidParameterError(
                'say what to train on: `sfumato train digits`, or data = "digits" in the file of --config.'
            )
        model = self.model if self.model is not None else models_of(self.data)[0]
        found = asdict(recipe(self.data, model))
        if self.steps is not None:
            found["epochs"] = None
        if self.optimizer == "adam":
            found["learning_rate"], found["momentum"] = _ADAM_RATE, None
        return self.over(TrainSettings(**found, model=model, optimizer="sgd", per_layer=False))


_ADAM_RATE = 0.01  # the recipes' rates are for SGD
_ANNOTATIONS = {field.name: str(field.type).removesuffix(" | None") for field in fields(TrainSettings)}
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text in quotes"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}


def read_config(path: str | Path) -> TrainSettings:
    """Read settings from a TOML file."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameterError(f"the file {str(path)!r} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidParameterError(f"the file {str(path)!r} is not TOML: {error}.") from error
    return _checked(found, str(path))


def _checked(found: object, where: str) -> TrainSettings:
    if not isinstance(found, Mapping):
        raise InvalidParameterError(f"the file {where!r} must hold settings by name, and holds none.")
    for key, value in found.items():
        if key not in _ANNOTATIONS:
            raise InvalidParameterError(f"unknown key {key!r} in {where!r}. {_nearest(key)}")
        kinds, told = _KINDS[_ANNOTATIONS[key]]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InvalidParameterError(f"{key} in {where!r} must be {told}, but {value!r} was given.")
    return TrainSettings(**found)


def _nearest(key: str) -> str:
    close = difflib.get_close_matches(key.lower().replace("-", "_"), _ANNOTATIONS, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known are: {', '.join(_ANNOTATIONS)}."


def _place(folder: str | Path) -> Path:
    from sfumato.training.record.run_folder import RunFolder

    return RunFolder(folder).settings


def keep(settings: TrainSettings, folder: str | Path) -> None:
    """Write the settings of a run into its folder."""
    place = _place(folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    _files.write_whole(place, (json.dumps(settings.given(), indent=2) + "\n").encode())


def kept(folder: str | Path) -> TrainSettings:
    """Return the settings that a run in a folder was started with; none where it kept none."""
    place = _place(folder)
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return TrainSettings()
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidParameterError(f"the file {str(place)!r} cannot be read: {error}.") from error
    return _checked(found, str(place))
