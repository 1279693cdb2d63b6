# SPDX-License-Identifier: Apache-2.0
"""Flags of a command from the fields of its settings: each is declared once, with its help text."""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields
from typing import Annotated, Any, get_type_hints

import typer

from sfumato.cli.completion_values import accounts, among
from sfumato.cli.help_pages import LEARNING, LEDGER, OUTPUT, PRIVACY, YOUR_DATA

__all__ = ["flag", "give_flags"]

_COMPLETED = {"account": accounts}  # values that are looked up


def flag(help_text: str, *choices: str) -> Any:
    """Return a field of settings that is a flag of the command, too.

    Args:
        help_text: What `--help` says about it.
        choices: Its values, if they are few; a shell completes them.
    """
    return field(default=None, metadata={"help": help_text, "choices": choices})


_GROUPS = {
    YOUR_DATA: (
        "target feature label classes bounds type public_size evaluation image_size domain public clients "
        "partition alpha"
    ),
    PRIVACY: (
        "private epsilon delta noise_multiplier noise clip_norm adaptive_quantile privacy_unit "
        "contribution_bound relation audit seed threshold threshold_noise aggregator agreement bands queries"
    ),
    LEDGER: "ledger account purpose",
    OUTPUT: "folder report out count json as_json resume",
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names.split()}


def _in_group(name: str) -> str:
    """Return the group of options that a setting belongs to."""
    return _GROUP_OF.get(name, LEARNING)


def give_flags(
    command: Callable[..., None],
    settings: type,
    *,
    data: str,
    more: Mapping[str, tuple[Any, Any]],
    names: tuple[str, ...] = (),
) -> None:
    """Let a command have one parameter for each field with a help text, where typer looks for them.

    Args:
        command: The function of the command.
        settings: The class of its settings. `data` is its argument; all fields may be None.
        data: The help text of the argument.
        more: Further parameters: annotation and default, by name.
        names: The named sets among the data, which a shell completes.
    """
    kinds = get_type_hints(settings)
    found: dict[str, tuple[Any, Any]] = {
        "data": (
            Annotated[
                str | None, typer.Argument(help=data, show_default=False, autocompletion=among(*names))
            ],
            None,
        )
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
    completed = _COMPLETED.get(each.name, among(*each.metadata["choices"]))
    told, group = each.metadata["help"], _in_group(each.name)
    return Annotated[kind, typer.Option(help=told, rich_help_panel=group, autocompletion=completed)]
