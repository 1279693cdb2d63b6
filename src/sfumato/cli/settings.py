# SPDX-License-Identifier: Apache-2.0
"""The settings of `sfumato train`, from flags, from a TOML file, and from the defaults of a data set.

`TrainSettings` is the one list: the flags of the command, the keys of the file and the settings that a run
folder keeps are its fields. Flags override the file, and the file overrides the defaults. A run with a folder
keeps its settings there, so that `--resume` needs nothing else; `synthesize` and `federate` keep
their own alike.

Failure    An unknown key is an error that names the nearest known one; so is a value of the wrong kind. A
           misspelled privacy setting is never ignored.
"""

import difflib
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, overload

from sfumato import _files
from sfumato.cli.flags import flag
from sfumato.errors import InvalidParameterError

__all__ = ["PUBLIC_SETS", "TrainSettings", "checked", "keep", "kept", "read_config", "require_same"]

PUBLIC_SETS = (
    "digits",
    "breast-cancer",
    "mnist",
    "fashion-mnist",
    "cifar10",
    "credit-default",
    "adult",
    "shakespeare",
)
MODELS = ("linear", "mlp", "cnn", "lstm", "transformer")
LABEL_METHODS = (
    "clusters",
    "altconv",
    "dp-sgd",
    "selfconv",
    "selfspan",
    "multi-stage",
    "alibi",
    "randomized-response",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """Everything that can be set for a run; None is left to the defaults of the data set.

    Fields with a help text are flags of the command; the others can be set in a file only.
    """

    data: str | None = None  # the argument of the command
    private: str | None = flag("What is secret: rows (the default), or labels alone.", "rows", "labels")
    method: str | None = flag(
        "With --private labels: the method. Default: the one recommended for this epsilon.",
        *LABEL_METHODS,
    )
    model: str | None = flag(
        "The network: linear, mlp or cnn; lstm or transformer for text. Default: by data set.", *MODELS
    )
    width: int | None = None
    target: str | None = flag("Of a CSV or Parquet file: the column of labels.")
    feature: list[str] | None = flag("Of a CSV or Parquet file: a column to learn from; repeat.")  # noqa: RUF009
    label: list[str] | None = flag("Of your own data: a class, by name; repeat for each.")  # noqa: RUF009
    classes: int | None = flag("Of your own data: the number of classes, if labels are 0, 1, 2 ...")
    bounds: list[str] | None = flag("Of a CSV or Parquet file: public bounds, as age=0:100; repeat.")  # noqa: RUF009
    type: list[str] | None = flag("Of a CSV file: a column's type, as age=number; repeat.")  # noqa: RUF009
    public_size: int | None = flag("Of your own data: the number of units that may be known.")
    privacy_unit: str | None = flag(
        "Of a CSV or Parquet file: the column that names the owner of each row. Default: each row is a unit."
    )
    evaluation: str | None = flag("Data of the same kind that is NOT protected, to show the accuracy on.")
    image_size: int | None = flag("Of a folder of images: the side in pixels to which they are scaled.")
    epsilon: float | None = flag("The epsilon to meet. Without it, an account gives what it has left.")
    delta: float | None = flag(
        "The delta of the guarantee. Default: that of the account, else the largest power of ten below 1 / "
        "public size."
    )
    noise_multiplier: float | None = flag(
        "The standard deviation of the noise, divided by the clip norm. Beside --epsilon, the run stops "
        "before it would exceed it."
    )
    epochs: float | None = flag("How often a unit is in a batch on average: steps times sampling rate.")
    steps: int | None = flag("How many noisy steps, in place of --epochs.")
    expected_batch_size: float | None = flag(
        "How many units a batch has on average: sampling rate times size."
    )
    clip_norm: float | None = flag("The L2 bound on the gradient of one unit.")
    per_layer: bool | None = None
    relation: str | None = None
    contribution_bound: int | None = flag(
        "Of data with owners: how many rows of one owner count, at most. Default: 1."
    )
    optimizer: str | None = flag("The optimizer: sgd (the default) or adam.", "sgd", "adam")
    learning_rate: float | None = flag("The learning rate of the optimizer. Default: by recipe.")
    momentum: float | None = None
    ema_decay: float | None = flag(
        "The decay of the moving average of weights that is returned. Default: by recipe."
    )
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    audit: int | None = flag("Add this many canaries, such as 1000, and show what they prove beside epsilon.")
    microbatch_size: int | None = None
    device: str | None = flag("Where to compute: cpu (the default), cuda, cuda:1 ...", "cpu", "cuda")
    engine: str | None = None
    ledger: str | None = flag(
        "Charge the run to an account of this ledger. Your own data: by default that of sfumato.toml."
    )
    account: str | None = flag("The account in that ledger. Your own data: by default that of sfumato.toml.")
    purpose: str | None = flag("What the run is for; the account keeps it.")
    folder: str | None = flag("A folder for checkpoints, metrics and weights. Default: they are not kept.")
    report: str | None = flag("Write a page with curves, settings and statements here, as run.html.")
    seed: int | None = flag("For study only: noise from a seed protects nobody.")

    def over(self, below: "TrainSettings") -> "TrainSettings":
        """Return these settings, and those of `below` for what is not set here.

        >>> TrainSettings(epsilon=1.0).over(TrainSettings(epsilon=3.0, epochs=5.0)).epochs
        5.0
        """
        return replace(below, **self.given())

    def given(self) -> dict[str, Any]:
        """Return what is set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def completed(self) -> "TrainSettings":
        """Return the settings with the defaults of the data set for what is not set."""
        from sfumato.training.models.recipes import for_own_data, models_of, recipe

        if self.data is None:
            raise InvalidParameterError(
                'pass what to train on: `sfumato train digits`, or data = "digits" in the file of --config.'
            )
        if self.is_own:
            model = self.model or ("cnn" if Path(self.data).is_dir() else "mlp")
            found = asdict(for_own_data(model))
        else:
            model = self.model if self.model is not None else models_of(self.data)[0]
            found = asdict(recipe(self.data, model))
        if self.steps is not None:
            found["epochs"] = None
        if self.optimizer == "adam":
            found["learning_rate"], found["momentum"] = _ADAM_RATE, None
        return self.over(TrainSettings(**found, model=model, optimizer="sgd", per_layer=False))

    @property
    def is_own(self) -> bool:
        """Whether the data is a file or a folder, and not a named public set."""
        if self.data is None or self.data in PUBLIC_SETS:
            return False
        return Path(self.data).suffix != "" or Path(self.data).exists()


_ADAM_RATE = 0.01  # the recipes' rates are for SGD
Kind = TypeVar("Kind", bound="_Settings")
AnyKind = TypeVar("AnyKind")
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text in quotes"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "list[str]": ((list,), "a list of texts"),
    "dict[str, typing.Any]": ((dict,), "a table"),
}


class _Settings(Protocol):
    """The settings of a command: a dataclass whose fields may all be None."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def given(self) -> dict[str, Any]: ...


def read_config(path: str | Path) -> TrainSettings:
    """Read settings from a TOML file."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameterError(f"the file {str(path)!r} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidParameterError(f"the file {str(path)!r} is not TOML: {error}.") from error
    return checked(found, str(path), TrainSettings)


def checked(found: object, where: str, kind: type[AnyKind]) -> AnyKind:
    """Return settings that were read from a file; raise if a key is unknown, or a value of the wrong kind.

    Args:
        found: What was read.
        where: The name of the file.
        kind: The class of the settings, a dataclass whose fields may all be None.
    """
    declared: Any = kind
    known = {each.name: str(each.type).removesuffix(" | None") for each in fields(declared)}
    if not isinstance(found, Mapping):
        raise InvalidParameterError(f"the file {where!r} must hold settings by name, and holds none.")
    for key, value in found.items():
        if key not in known:
            raise InvalidParameterError(f"unknown key {key!r} in {where!r}. {_nearest(key, list(known))}")
        kinds, told = _KINDS[known[key]]
        wrong = isinstance(value, list) and not all(isinstance(each, str) for each in value)  # pyright: ignore[reportUnknownVariableType]
        if wrong or not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InvalidParameterError(f"{key} in {where!r} must be {told}, but {value!r} was given.")
    return kind(**found)


def _nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key.lower().replace("-", "_"), known, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known are: {', '.join(known)}."


def _place(folder: str | Path) -> Path:
    from sfumato.training.record.run_folder import RunFolder

    return RunFolder(folder).settings


def keep(settings: _Settings, folder: str | Path) -> None:
    """Write the settings of a run into its folder."""
    place = _place(folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    _files.write_whole(place, (json.dumps(settings.given(), indent=2) + "\n").encode())


def require_same(said: _Settings, before: _Settings, *, folder: str, free: Collection[str]) -> None:
    """Raise if flags contradict the settings that a run was started with.

    Args:
        said: The flags.
        before: The settings that the folder keeps.
        folder: The folder of the run.
        free: The names of settings that may change.
    """
    for name, value in said.given().items():
        if name not in free and value != getattr(before, name):
            called = "the data" if name == "data" else f"--{name.replace('_', '-')}"
            raise InvalidParameterError(
                f"the run in {folder!r} was started with another value of {called}. Leave it out: the "
                "folder keeps its settings."
            )


@overload
def kept(folder: str | Path) -> TrainSettings: ...
@overload
def kept(folder: str | Path, kind: type[Kind]) -> Kind: ...
def kept(folder: str | Path, kind: type[Any] = TrainSettings) -> Any:
    """Return the settings that a run in a folder was started with; none if it kept none."""
    place = _place(folder)
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidParameterError(f"the file {str(place)!r} cannot be read: {error}.") from error
    return checked(found, str(place), kind)
