# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r2 import linear
from sfumato.experiments.r2.linear import BILLS, EXPERIMENT, MADE, MATCH, METHODS, NOISY_STATS, PLAIN, SGD


@pytest.fixture(scope="module")
def points():
    x = np.linspace(0, 1, 4000)
    return x, 0.2 + 0.5 * x


@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_a_line_if_there_is_hardly_any_noise(points, name):
    slope, intercept = METHODS[name](*points, 400.0, 0)
    assert slope == pytest.approx(0.5, abs=0.1) and intercept == pytest.approx(0.2, abs=0.05)


def test_a_case_has_a_loss_for_every_method():
    case = {"data": MADE, "rows": 200, "epsilon": 5.0, "seed": 0}
    measured = EXPERIMENT.measure(case, Scale(quick=True))
    assert list(measured) == list(METHODS) and all(loss > 0 for loss in measured.values())


def test_columns_of_the_quick_set_lie_in_the_unit_square():
    (x, y), (test_x, test_y) = linear._columns({"data": BILLS, "rows": 50, "seed": 0}, quick=True)
    assert len(x) == 50 and all(c.min() >= 0 and c.max() <= 1 for c in (x, y, test_x, test_y))


def made_up(**losses):
    """Rows of two seeds at three settings of both sets, with a loss for each method."""
    return [
        {"data": data, "rows": rows, "epsilon": epsilon, "seed": seed}
        | {name: losses.get(name, 0.3) + seed / 1000 for name in METHODS}
        for data in (BILLS, MADE)
        for rows, epsilon in ((100, 1.0), (1000, 1.0), (100, 3.0))
        for seed in range(2)
    ]


def test_the_finding_follows_from_the_rows():
    good = made_up(**{PLAIN: 0.2, MATCH: 0.25, NOISY_STATS: 0.4, SGD: 0.21})
    assert EXPERIMENT.finding(good).verdict is Verdict.CONFIRMED
    slow = made_up(**{PLAIN: 0.2, MATCH: 0.25, NOISY_STATS: 0.4, SGD: 0.9})
    assert EXPERIMENT.finding(slow).verdict is Verdict.PARTLY
    worse = made_up(**{PLAIN: 0.2, MATCH: 0.5, NOISY_STATS: 0.4, SGD: 0.9})
    found = EXPERIMENT.finding(worse)
    assert found.verdict is Verdict.REFUTED and "0 of 6 settings" in found.sentence


def test_it_is_shown_as_tables_and_figures():
    rows = made_up()
    assert [table.heads[0] for table in EXPERIMENT.tables(rows)] == ["rows", "epsilon"] * 2
    assert list(EXPERIMENT.figures(rows)) == ["bills-rows", "bills-epsilon", "line-rows", "line-epsilon"]
