# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r2.logistic import EXPERIMENT, METHODS, OBJECTIVE, OBJECTIVE_R2, OUTPUT, PLAIN

QUICK = Scale(quick=True)


@pytest.fixture(scope="module")
def rows():
    return [{**case, **EXPERIMENT.measure(case, QUICK)} for case in EXPERIMENT.cases(QUICK)]


def made_up(loss):
    """Rows of two seeds at one setting, with a loss for each method."""
    return [
        {"rows": 100, "epsilon": 1.0, "method": name, "seed": seed, "honest": 1.0, "accuracy": 0.8}
        | {"loss": loss.get(name, 1.0) + seed / 1000}
        for name in METHODS
        for seed in range(2)
    ]


def test_every_method_costs_what_it_says_but_that_of_the_report(rows):
    for row in rows:
        if row["method"] == OBJECTIVE_R2:
            assert row["honest"] > row["epsilon"]
        elif row["method"] != PLAIN:
            assert row["honest"] == pytest.approx(row["epsilon"], rel=1e-3)


def test_a_loss_without_privacy_is_the_smallest(rows):
    for row in rows:
        best = [r["loss"] for r in rows if r["method"] == PLAIN and r["rows"] == row["rows"]]
        assert row["loss"] >= best[0]


def test_the_finding_follows_from_the_rows():
    near = made_up({PLAIN: 0.50, OBJECTIVE: 0.505, OUTPUT: 0.6})
    assert EXPERIMENT.finding(near).verdict is Verdict.CONFIRMED
    behind = made_up({PLAIN: 0.50, OBJECTIVE: 0.505, OUTPUT: 0.503})
    assert EXPERIMENT.finding(behind).verdict is Verdict.PARTLY
    far = made_up({PLAIN: 0.50, OBJECTIVE: 0.9, OUTPUT: 0.6})
    assert EXPERIMENT.finding(far).verdict is Verdict.REFUTED


def test_it_is_shown_as_tables_and_figures(rows):
    assert [table.heads[0] for table in EXPERIMENT.tables(rows)] == ["rows", "epsilon", "epsilon", "rows"]
    assert list(EXPERIMENT.figures(rows)) == ["rows", "epsilon"]
