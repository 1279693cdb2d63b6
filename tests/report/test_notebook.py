# SPDX-License-Identifier: Apache-2.0
import math
import re

import pytest

from sfumato import Guarantee, Plan, Relation, plan, price
from sfumato.accounting.events import PureDpEvent
from sfumato.report import notebook

HOSTILE = "<script>alert(1)</script>"
PROMISE = Guarantee(epsilon=2.38201, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit=HOSTILE)


def view(**facts):
    return notebook.RunView(title=HOSTILE, guarantee=PROMISE, statement=HOSTILE, **facts).html()


def test_a_run_shows_names_as_text():
    shown = view(
        facts={HOSTILE: HOSTILE},
        study_note=HOSTILE,
        figures=[notebook.bars({HOSTILE: 1, "b": 2}, title=HOSTILE)],
    )
    assert "<script" not in shown and shown.count("&lt;script&gt;") >= 6


def test_noise_that_does_not_protect_is_said_first():
    shown = view(study_note="for study only: the noise was seeded")
    assert shown.index("does not protect anyone") < shown.index("epsilon")


def test_a_panel_takes_its_colors_from_the_notebook():
    shown = view(figures=[notebook.bars({"a": 1, "b": 2}, title="t")])
    assert not re.search(r"background(-color)?:\s*(?!none)", shown)
    assert (
        "<script" not in shown
        and "<style" not in shown
        and "http" not in shown.replace("http://www.w3.org/2000/svg", "")
    )


def test_bars_are_drawn_only_for_what_they_can_show():
    assert notebook.bars({"a": -1.0, "b": 2.0}, title="t") == ""
    assert notebook.bars({str(n): 1.0 for n in range(41)}, title="t") == ""
    assert notebook.bars({"a": 1.0}, title="t") == ""


def test_a_claim_and_its_bound_are_rounded_away_from_each_other():
    shown = notebook.claim_and_bound(2.00001, 1.9999)
    assert "2.001" in shown and "1.99" in shown and "1.9999" not in shown
    assert notebook.claim_and_bound(2.0, math.inf) == ""


@pytest.mark.parametrize(
    "shown", [PROMISE, price(PureDpEvent(0.123456), delta=1e-6)], ids=["guarantee", "price"]
)
def test_costs_are_shown_rounded_up(shown):
    assert ("2.383" if shown is PROMISE else "0.1235") in shown._repr_html_()
    assert "<script" not in shown._repr_html_()


def test_a_plan_says_that_nothing_is_spent():
    found = plan(epsilon=3, delta=1e-5, sampling_rate=0.01, steps=100)
    assert isinstance(found, Plan) and "nothing is spent yet" in found._repr_html_()
    assert "at most 3" in found._repr_html_()
