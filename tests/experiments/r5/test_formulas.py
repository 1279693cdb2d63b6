# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r5.formulas import EXPERIMENT, FORMULAS, amplified


@pytest.fixture(scope="module")
def rows():
    scale = Scale(quick=True)
    return [{**case, **EXPERIMENT.measure(case, scale)} for case in EXPERIMENT.cases(scale)]


def test_numbers_are_those_of_the_errata(rows):
    assert amplified(4.0, 0.01) == pytest.approx(0.430, abs=1e-3)
    one = next(row for row in rows if row["epsilon"] == 1)
    assert one["basic"] == pytest.approx(17.04, abs=0.01)
    assert one["gaussian_upper"] == pytest.approx(0.295, abs=1e-3)
    four = next(row for row in rows if row["epsilon"] == 4)
    assert four["strong"] == pytest.approx(10.96, rel=0.01)


def test_a_formula_that_states_too_little_is_refuted_and_others_are_not(rows):
    assert EXPERIMENT.finding(rows).verdict is Verdict.REFUTED
    enough = [{**row, **{f"{name}_claimed": row[name] + 1 for name in FORMULAS}} for row in rows]
    assert EXPERIMENT.finding(enough).verdict is Verdict.CONFIRMED


def test_it_is_shown(rows):
    assert len(EXPERIMENT.tables(rows)[0].rows) == len(rows)
    assert list(EXPERIMENT.figures(rows)) == ["epsilon"]
