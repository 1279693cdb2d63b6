# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.accounting import Relation
from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r3.epsilon_noise import EXPERIMENT, doubled, epsilon_of


@pytest.fixture(scope="module")
def rows():
    cases = EXPERIMENT.cases(Scale(quick=True))
    return [{**case, **EXPERIMENT.measure(case, Scale(quick=True))} for case in cases]


def test_one_release_costs_what_the_closed_form_says():
    assert epsilon_of(1.0, "one release") == pytest.approx(4.378, abs=0.01)
    doubled = epsilon_of(2.0, "one release", Relation.REPLACE_ONE)
    assert doubled == pytest.approx(epsilon_of(1.0, "one release"), rel=1e-3)


def test_epsilon_falls_faster_than_an_inverse_relationship(rows):
    found = EXPERIMENT.finding(rows)
    assert found.verdict is Verdict.PARTLY and "always falls" in found.sentence
    curve = {
        r["noise"]: r["epsilon"] for r in rows if r["relation"] == "add-remove" and "30" in r["releases"]
    }
    assert min(doubled(curve)) > 2.5


def test_an_inverse_relationship_would_be_confirmed_and_a_rising_one_refuted(rows):
    inverse = [{**row, "epsilon": 3 / row["noise"]} for row in rows]
    rising = [{**row, "epsilon": 3 * row["noise"]} for row in rows]
    assert EXPERIMENT.finding(inverse).verdict is Verdict.CONFIRMED
    assert EXPERIMENT.finding(rising).verdict is Verdict.REFUTED


def test_it_is_shown_as_a_table_and_a_figure(rows):
    assert EXPERIMENT.tables(rows)[0].heads[-3:] == ("0.5", "1", "2")
    assert list(EXPERIMENT.figures(rows)) == ["epsilon"]
