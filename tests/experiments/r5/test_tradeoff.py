# SPDX-License-Identifier: Apache-2.0
from sfumato.experiments import Verdict
from sfumato.experiments.r5.tradeoff import AFRESH, DURING, EXPERIMENT


def rows(first, last):
    during = [
        {"way": DURING, "epsilon": None, "seed": s, "spent": 3.0, "accuracy": last,
         "points": [[1.0, first + s / 1000], [2.0, last], [3.0, last + s / 1000]]}
        for s in (0, 1, 2)
    ]  # fmt: skip
    one = {"way": AFRESH, "epsilon": 1.0, "spent": 1.0, "accuracy": 0.7, "points": [[0.999, 0.7]]}
    fresh = [{**one, "seed": s} for s in (0, 1, 2)]
    return during + fresh


def test_the_finding_follows_the_rows():
    found = EXPERIMENT.finding(rows(0.5, 0.8))
    assert found.verdict is Verdict.CONFIRMED
    assert "from epsilon 2 on" in found.sentence and "70.00" in found.sentence
    assert EXPERIMENT.finding(rows(0.8, 0.5)).verdict is Verdict.REFUTED


def test_it_is_shown():
    assert len(EXPERIMENT.tables(rows(0.5, 0.8))[0].rows) == 4
    assert list(EXPERIMENT.figures(rows(0.5, 0.8))) == ["accuracy"]
