# SPDX-License-Identifier: Apache-2.0
"""Flags of a command from the fields of its settings: each is declared once, with its help text."""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields
from typing import Annotated, Any, get_type_hints

import typer

__all__ = ["flag", "give_flags"]


def flag(help_text: str) -> Any:
    """Return a field of settings that is a flag of the command, too."""
    return field(default=None, metadata={"help": help_text})


def give_flags(
    command: Callable[..., None], settings: type, *, data: str, more: Mapping[str, tuple[Any, Any]]
) -> None:
    """Let a command have one parameter for each field with a help text, where typer looks for them.

    Args:
        command: The function of the command.
        settings: The class of its settings. `data` is its argument; all fields may be None.
        data: The help text of the argument.
        more: Further parameters: annotation and default, by name.
    """
    kinds = get_type_hints(settings)
    found: dict[str, tuple[Any, Any]] = {
        "data": (Annotated[str | None, typer.Argument(help=data, show_default=False)], None)
    }
    for each in fields(settings):
        if "help" in each.metadata:
            found[each.name] = (_annotated(each, kinds[each.name]), None)
    found |= more
    kind = inspect.Parameter
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            kind(name, kind.POSITIONAL_OR_KEYWORD, annotation=annotation, default=default)
            for name, (annotation, default) in found.items()
        ]
    )
    command.__annotations__ = {name: annotation for name, (annotation, _) in found.items()}


def _annotated(each: Field[Any], kind: types.UnionType) -> Any:
    return Annotated[kind, typer.Option(help=each.metadata["help"])]
