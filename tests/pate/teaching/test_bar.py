# SPDX-License-Identifier: Apache-2.0
import io

from rich.console import Console

from sfumato.pate.teaching.bar import bar
from sfumato.pate.teaching.quiet import quiet


def shown(**settings):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    with bar(3, console=console, **settings) as advance:
        for _ in range(2):
            with quiet():
                advance()
    return out.getvalue()


def test_the_bar_shows_how_many_of_how_many():
    assert "teachers" in shown(shown=True) and "2/3" in shown(shown=True)


def test_a_bar_that_is_not_wanted_is_absent():
    assert shown(shown=False) == ""


def test_without_a_terminal_nothing_is_shown(capfd):
    with bar(1, shown=True) as advance:
        advance()
    assert capfd.readouterr() == ("", "")
