# SPDX-License-Identifier: Apache-2.0
"""The bar shows rounds, and nothing without a terminal."""

import io

from rich.console import Console

from sfumato.generative.tables.progress_bar import rounds_bar


def test_a_terminal_shows_rounds():
    text = io.StringIO()
    with rounds_bar(3, shown=True, console=Console(file=text, force_terminal=True, width=80)) as advance:
        advance()
    assert "1/3" in text.getvalue()


def test_nothing_is_shown_without_a_terminal_or_if_not_wanted():
    for shown, terminal in ((True, False), (False, True)):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal)
        with rounds_bar(3, shown=shown, console=console) as advance:
            advance()
        assert text.getvalue().strip() == ""
