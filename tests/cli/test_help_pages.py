# SPDX-License-Identifier: Apache-2.0
"""Every argument of every command is explained, on a page that 80 columns can show."""

import re
import shlex
from pathlib import Path
from typing import Annotated

import click
import pytest
import typer
import typer.main

from sfumato.cli.app import app
from sfumato.cli.help_pages import App

ROOT = typer.main.get_command(app)
DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def commands(group, path="sfumato"):
    """Yield every command with what a user types for it."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{path} {name}")


ALL = dict(commands(ROOT))
LEAVES = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}


def page(command, path, width=80):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        return command.get_help(click.Context(command, info_name=path))


def unexplained(command):
    """Return the parameters of a command that its page does not explain in a sentence."""
    told = {each.name: getattr(each, "help", None) or "" for each in command.params}
    return [name for name, text in told.items() if len(text.split()) < 2 or not text.rstrip().endswith(".")]


@pytest.mark.parametrize("path", ALL)
def test_every_argument_and_option_is_explained_in_a_sentence(path):
    assert unexplained(ALL[path]) == []


def test_the_rule_about_explanations_has_power():
    silent = App()

    @silent.command()
    def one(
        name: str,
        other: Annotated[str, typer.Argument(help="This one is explained.")],
        flag: Annotated[str, typer.Option(help="Word.")] = "",
    ) -> None:
        """Do nothing."""

    assert unexplained(typer.main.get_command(silent)) == ["name", "flag"]


@pytest.mark.parametrize("path", ALL)
def test_a_page_has_80_columns_and_shows_every_parameter_with_its_explanation(path):
    shown = page(ALL[path], path)
    assert [line for line in shown.splitlines() if len(line) > 80 or "…" in line] == []
    words = " ".join(shown.split())
    for each in ALL[path].params:
        if isinstance(each, click.Option):
            assert all(f"  {flag}" in shown or f" {flag}" in shown for flag in each.opts), each.opts
        for word in each.help.split():
            assert word in words, (each.name, word)


def test_choices_defaults_and_what_is_needed_are_shown():
    shown = " ".join(page(ALL["sfumato stats"], "sfumato stats").split())
    assert "Usage: sfumato stats [OPTIONS] SOURCE [STATISTIC] [COLUMN]" in shown
    assert "One of: count, sum, mean" in shown and "[default: add-remove]" in shown
    assert "--epsilon NUMBER What the answer may cost, above 0. [required]" in shown
    assert "--bounds LOWER UPPER" in shown
    assert "[environment: SFUMATO_LEDGER]" in " ".join(page(ALL["sfumato ledger show"], "x").split())


@pytest.mark.parametrize("path", LEAVES)
def test_many_options_are_in_groups(path):
    shown = page(LEAVES[path], path)
    options = [each for each in LEAVES[path].params if isinstance(each, click.Option)]
    assert ("\nOptions\n" in shown) == (len(options) < 10)
    if len(options) >= 10:
        assert "\nPrivacy\n" in shown and "\nLedger\n" in shown


@pytest.mark.parametrize("path", LEAVES)
def test_the_example_of_a_command_is_one_of_the_documentation_which_is_run(path):
    example = LEAVES[path].epilog
    assert example.startswith(path) and f"\n$ {example}\n" in DOCS


@pytest.mark.parametrize("path", LEAVES)
def test_an_example_can_be_copied_from_the_page(path):
    _, _, lines = page(LEAVES[path], path).partition("\nExample\n")
    assert shlex.split(lines.replace("\\\n", " ")) == shlex.split(LEAVES[path].epilog)


def test_the_first_page_lists_every_command_with_a_sentence(ran):
    code, out, _ = ran("--help")
    assert code == 0
    for name, command in ROOT.commands.items():
        assert re.search(rf"^  {name} +\S", out, re.MULTILINE), name
        assert command.help.strip().split("\n")[0][:40] in out


def test_a_page_is_plain_text_where_it_is_not_a_terminal(ran):
    code, out, err = ran("ledger init --help")
    assert code == 0 and err == "" and "\x1b" not in out
    assert "The name of the account: which data set." in out
