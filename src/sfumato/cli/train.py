# SPDX-License-Identifier: Apache-2.0
"""The flags of `sfumato train`, made from the fields of `TrainSettings`.

What they do is in `training_run`, which is imported when the command runs.
"""

import inspect
import types
from dataclasses import Field, fields
from typing import Annotated, Any, get_type_hints

import typer

from sfumato._torch import require_torch
from sfumato.cli.options import Json
from sfumato.cli.settings import PUBLIC_SETS, TrainSettings

__all__ = ["command"]

DATA = f"{', '.join(PUBLIC_SETS)}; or your own CSV, Parquet or .npz file, or a folder of images."


def command(**given: Any) -> None:
    """Train a network to a budget, on a public data set or on your own data.

    Options that you leave out use the defaults for that data set.
    """
    require_torch()
    from sfumato.cli import training_run

    resume, config, as_json = given.pop("resume"), given.pop("config"), given.pop("as_json")
    training_run.run(TrainSettings(**given), config=config, resume=resume, as_json=as_json)


def _parameters() -> dict[str, tuple[Any, Any]]:
    """Return the annotation and default of each parameter of the command."""
    kinds = get_type_hints(TrainSettings)
    flags: dict[str, tuple[Any, Any]] = {
        "data": (Annotated[str | None, typer.Argument(help=DATA, show_default=False)], None)
    }
    for each in fields(TrainSettings):
        if "help" in each.metadata:
            flags[each.name] = (_annotated(each, kinds[each.name]), None)
    resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --folder.")]
    config = Annotated[str | None, typer.Option(help="A TOML file with these and more settings.")]
    return flags | {"resume": (resume, False), "config": (config, None), "as_json": (Json, False)}


def _annotated(each: Field[Any], kind: types.UnionType) -> Any:
    return Annotated[kind, typer.Option(help=each.metadata["help"])]


def _give_flags() -> None:
    """Let the command have one parameter for each flag, where typer looks for them."""
    found = _parameters()
    kind = inspect.Parameter
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            kind(name, kind.POSITIONAL_OR_KEYWORD, annotation=annotation, default=default)
            for name, (annotation, default) in found.items()
        ]
    )
    command.__annotations__ = {name: annotation for name, (annotation, _) in found.items()}


_give_flags()
