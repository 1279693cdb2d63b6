# SPDX-License-Identifier: Apache-2.0
import io
from dataclasses import replace

from rich.console import Console

from sfumato.training import Metrics
from sfumato.training.record.progress import ProgressBar, note

ROW = Metrics(step=3, epsilon=1.0001, learning_rate=0.1, loss=0.25, accuracy=0.75)


def test_the_bar_shows_steps_epsilon_rounded_up_and_evaluation():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with ProgressBar(steps=5, done=2, shown=True, console=console) as bar:
        bar.advance()
        bar.note(ROW)
    shown = screen.getvalue()
    assert "3/5" in shown and "epsilon 1.001" in shown and "accuracy 75.0%" in shown


def test_the_bar_is_silent_where_there_is_no_terminal():
    screen = io.StringIO()
    with ProgressBar(steps=5, done=0, shown=True, console=Console(file=screen)) as bar:
        bar.advance()
        bar.note(ROW)
    assert screen.getvalue() == ""


def test_figures_that_were_not_measured_are_left_out():
    assert note(replace(ROW, loss=None, accuracy=None)) == "epsilon 1.001"
    assert note(replace(ROW, accuracy=None)) == "epsilon 1.001  loss 0.250"


def test_a_line_is_shown_once_it_is_another_one_than_at_the_start():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with ProgressBar(steps=5, done=0, shown=True, console=console) as bar:
        for line in ("run eagerly", "run eagerly", "run in [graphs]", "run in [graphs]"):
            bar.say(line)
    assert screen.getvalue().count("run in [graphs]") == 1 and "run eagerly" not in screen.getvalue()
