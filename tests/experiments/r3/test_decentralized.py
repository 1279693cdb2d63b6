# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.accounting import price
from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r3.decentralized import DELTA, EXPERIMENT, TOGETHER, WAYS, steps_for

QUICK = Scale(quick=True, device="cpu")


def made_up(lost: dict[str, float]) -> list[dict]:
    """Rows in which a ring loses so much accuracy, for each unit."""
    return [
        {
            "unit": unit,
            "way": way,
            "epsilon": epsilon,
            "seed": s,
            "accuracy": 0.8 - lost[unit] * (way == "ring") + s / 1000 * (1 + len(way) / 50),
            "honest epsilon": epsilon,
        }
        for unit, ways in WAYS.items()
        for way in ways
        for epsilon in (1.0, 8.0)
        for s in range(3)
    ]


@pytest.mark.parametrize(
    ("row", "node", "verdict"),
    [(0.1, 0.1, Verdict.REFUTED), (0.1, -0.1, Verdict.PARTLY), (-0.1, -0.1, Verdict.CONFIRMED)],
)
def test_the_finding_follows_from_the_rows(row, node, verdict):
    assert EXPERIMENT.finding(made_up({"row": row, "node": node})).verdict is verdict


def test_it_is_shown_as_a_table_and_a_figure_for_each_unit():
    rows = made_up({"row": 0.1, "node": 0.1})
    assert [len(table.rows) for table in EXPERIMENT.tables(rows)] == [4, 3]
    assert list(EXPERIMENT.figures(rows)) == ["row", "node"]


def test_steps_of_a_node_meet_the_budget():
    cost = price(steps_for(2.0, size=100, rounds=3).event(3), delta=DELTA)
    assert 1.98 < cost.epsilon <= 2.0


@pytest.mark.parametrize(
    ("unit", "way"), [("row", "ring"), ("row", "alone"), ("node", TOGETHER), ("node", "ring")]
)
def test_a_way_keeps_to_its_budget(unit, way):
    measured = EXPERIMENT.measure({"unit": unit, "way": way, "epsilon": 8.0, "seed": 0}, QUICK)
    assert 7.9 < measured["honest epsilon"] <= 8.001 and measured["accuracy"] > 0
