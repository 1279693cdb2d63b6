# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r2 import medians
from sfumato.experiments.r2.medians import EXPERIMENT, INTERVALS, METHODS, REPORT

QUICK = Scale(quick=True)


@pytest.fixture(scope="module")
def rows():
    return [{**case, **EXPERIMENT.measure(case, QUICK)} for case in EXPERIMENT.cases(QUICK)]


def test_every_method_has_a_rank_error_of_at_most_half(rows):
    assert all(0 <= row[name] <= 0.5 for row in rows for name in METHODS)


def test_the_rule_of_the_report_prefers_the_ends():
    values = np.arange(1.0, 1001.0)
    drawn = [medians._of_report(values, (0, 1000), 1.0, seed) for seed in range(200)]
    assert np.mean([medians.rank_error(values, answer) for answer in drawn]) > 0.3  # 1/3; 0.25 if even


def test_intervals_find_the_middle_and_global_sensitivity_does_not():
    values = np.linspace(0, 1000, 1000)
    found = {name: METHODS[name](values, (0.0, 1000.0), 5.0, 0) for name in METHODS}
    assert medians.rank_error(values, found[INTERVALS]) < 0.02


def test_the_finding_follows_from_the_rows(rows):
    bad = [{**row, REPORT: 0.33} for row in rows]
    assert EXPERIMENT.finding(bad).verdict is Verdict.REFUTED
    good = [{**row, REPORT: 0.01} for row in rows]
    assert EXPERIMENT.finding(good).verdict is Verdict.PARTLY  # it would still not be private


def test_it_is_shown_as_a_table_and_a_figure(rows):
    assert EXPERIMENT.tables(rows)[0].heads[:2] == ("rows", "epsilon")
    assert list(EXPERIMENT.figures(rows)) == ["error"]
