# SPDX-License-Identifier: Apache-2.0
"""What `--help` shows: usage, every argument and option with its explanation in groups, and an example.

The pages are written here, and not by typer, because typer 0.20 loses the help texts of arguments beside
click 8.5. A command is registered in an `App`, with its example as `epilog`. Lines have at most 100 columns,
and fewer in a narrow terminal.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import click
import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from sfumato.cli.mistakes import no_such_command

__all__ = ["LEARNING", "LEDGER", "OUTPUT", "PRIVACY", "YOUR_DATA", "App", "CommandGroup", "CommandPage"]

# Groups of options. A command with few options shows them in one list.
YOUR_DATA = "Your data"
PRIVACY = "Privacy"
LEARNING = "Model and training"
LEDGER = "Ledger"
OUTPUT = "What is written and shown"
_REST = "Other options"
_ORDER = (YOUR_DATA, PRIVACY, LEARNING, LEDGER, OUTPUT, _REST)  # after groups of a command's own
_FEW = 10  # options that need no groups

_WIDEST = 100  # columns of a page
_NAMES = 30  # columns of the names of options
_LINE = 78  # columns of an example
_VALUES = {
    "float": "NUMBER",
    "integer": "INTEGER",
    "integer range": "INTEGER",
    "path": "PATH",
    "choice": "NAME",
}


class CommandPage(TyperCommand):
    """A command whose help page explains its arguments, too, and ends with an example."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        _restore_arguments(self)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the page."""
        formatter.write(_rendered(_command_page(self, ctx)))


class CommandGroup(TyperGroup):
    """Several commands, with a page that lists them; a name that is none of them is told with the nearest."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the page."""
        formatter.write(_rendered(_group_page(self, ctx)))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that a line names."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise no_such_command(args[0], self.commands, ctx)
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """An application whose commands all have such pages."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=CommandGroup, no_args_is_help=True, add_completion=False, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """Register a command; `epilog` is its example."""
        given: dict[str, Any] = {"cls": CommandPage} | settings
        return super().command(name, **given)


# --- what typer drops -------------------------------------------------------------------------------------


def _restore_arguments(command: click.Command) -> None:
    """Give the arguments of a command their help texts, and a short name where a list of choices is one."""
    if command.callback is None:
        return
    given = inspect.signature(command.callback).parameters
    for each in command.params:
        if not isinstance(each, click.Argument) or each.name not in given:
            continue
        known = getattr(given[each.name].annotation, "__metadata__", ())
        info = next((found for found in known if isinstance(found, ArgumentInfo)), None)
        if info is not None:
            each.help = info.help
        if each.metavar is None and isinstance(each.type, click.Choice):
            each.metavar = str(each.name).upper()


# --- pages ------------------------------------------------------------------------------------------------


def _rendered(parts: Iterable[RenderableType]) -> str:
    console = Console(highlight=False)
    console.width = min(console.width, _WIDEST)
    with console.capture() as captured:
        console.print(Group(*parts))
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _command_page(command: click.Command, ctx: click.Context) -> Iterator[RenderableType]:
    yield from _opening(command, ctx)
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    yield from _listed("Arguments", [(_named(each, ctx), _explained(each, ctx)) for each in arguments])
    options = [each for each in command.get_params(ctx) if isinstance(each, click.Option) and not each.hidden]
    for title, group in _groups(options).items():
        yield from _listed(title, [(_named(each, ctx), _explained(each, ctx)) for each in group])
    yield from _example(command)


def _group_page(group: CommandGroup, ctx: click.Context) -> Iterator[RenderableType]:
    yield from _opening(group, ctx)
    found: dict[str, list[tuple[Text, str]]] = {}
    for name, command in group.commands.items():
        panel = getattr(command, "rich_help_panel", None)
        short = command.get_short_help_str(limit=10**6)
        found.setdefault(panel if isinstance(panel, str) else "Commands", []).append((_bold(name), short))
    for title, rows in found.items():
        yield from _listed(title, rows)
    options = [each for each in group.get_params(ctx) if isinstance(each, click.Option) and not each.hidden]
    yield from _listed("Options", [(_named(each, ctx), _explained(each, ctx)) for each in options])
    yield from _example(group)


def _opening(command: click.Command, ctx: click.Context) -> Iterator[RenderableType]:
    pieces = " ".join(command.collect_usage_pieces(ctx))
    yield Text.assemble(("Usage: ", "bold"), f"{ctx.command_path} {pieces}")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield Text("\n" + " ".join(paragraph.split()))


def _listed(title: str, rows: list[tuple[Text, str]]) -> Iterator[RenderableType]:
    """Yield a title and rows of two columns, if there are any; the second one is wrapped."""
    if not rows:
        return
    yield Text(f"\n{title}", style="bold")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=max(min(_NAMES, max(len(name) for name, _ in rows)), 12), overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for name, told in rows:
        table.add_row(name, Text(told))
    yield Padding(table, (0, 0, 0, 2))


def _example(command: click.Command) -> Iterator[RenderableType]:
    if command.epilog:
        yield Text("\nExample", style="bold")
        yield Text("\n".join(_in_lines(command.epilog)))


def _in_lines(command: str) -> Iterator[str]:
    """Yield a command in lines that a shell reads as one: they end in a backslash before an option."""
    line = "  "
    for part in re.split(r" (?=--)", command):
        if len(line) + len(part) > _LINE:
            yield f"{line}\\"
            line = "    "
        line += f"{part} "
    yield line


def _groups(options: list[click.Option]) -> dict[str, list[click.Option]]:
    """Return options by group; in one group, if they are few."""
    if len(options) <= _FEW:
        return {"Options": options}
    found: dict[str, list[click.Option]] = {}
    for each in options:
        found.setdefault(getattr(each, "rich_help_panel", None) or _REST, []).append(each)
    own = [title for title in found if title not in _ORDER]
    return {title: found[title] for title in [*own, *(each for each in _ORDER if each in found)]}


def _bold(name: str) -> Text:
    return Text(name, style="cyan")


def _named(each: click.Parameter, ctx: click.Context) -> Text:
    """Return the flags of an option with the kind of its value, or the name of an argument."""
    if isinstance(each, click.Argument):
        return _bold(each.make_metavar(ctx))
    flags = " / ".join([", ".join(each.opts), *each.secondary_opts])
    if getattr(each, "is_flag", False) or each.name == "help":
        return _bold(flags)
    value = each.metavar or " ".join([_VALUES.get(each.type.name, "TEXT")] * max(1, each.nargs))
    return Text.assemble((flags, "cyan"), " ", value)


def _explained(each: click.Parameter, ctx: click.Context) -> str:
    """Return the help text of a parameter, with its choices, its default and whether it is needed."""
    told = [" ".join((getattr(each, "help", None) or "").split())]
    if isinstance(each.type, click.Choice):
        told.append(f"One of: {', '.join(map(str, each.type.choices))}.")
    if each.envvar is not None:
        told.append(f"[environment: {each.envvar}]")
    is_shown = getattr(each, "show_default", True) is not False and not getattr(each, "is_flag", False)
    default = each.get_default(ctx, call=False) if is_shown else None
    if each.required:
        told.append("[required]")
    elif isinstance(default, int | float | str) or hasattr(default, "__fspath__"):
        told.append(f"[default: {default:g}]" if isinstance(default, float) else f"[default: {default}]")
    return " ".join(told)
