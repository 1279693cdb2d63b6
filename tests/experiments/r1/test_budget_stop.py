# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.accounting import Relation
from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r1.budget_stop import EXPERIMENT, PLAIN, PUBLISHED, REPORTED, SAMPLED, most_steps

QUICK = Scale(quick=True, device="cpu")


def made_up(counted):
    """Return rows of a full run in which the report counts to this epsilon."""
    measured = {
        "steps": 100,
        "epsilon": 0.3,
        "epsilon_fixed": 0.4,
        "epsilon_plain": 88.0,
        "epsilon_as_counted": counted,
    }
    code = {"steps": 100, "epsilon_code": 3e7}
    return [
        {**case, "accuracy": 0.5 + case["noise"] / 100, **(code if case["stop"] == PUBLISHED else measured)}
        for case in EXPERIMENT.cases(Scale())
    ]


def test_as_many_plain_steps_fit_as_the_errata_state():
    for noise, once, twice in ((1.0, 21, 5), (5.0, 542, 135), (10.0, 2168, 542)):
        assert most_steps(noise, relation=Relation.ADD_REMOVE) == once
        assert most_steps(noise, relation=Relation.REPLACE_LABEL) == twice


def test_a_case_is_priced_in_four_ways_and_sampling_is_the_cheapest():
    found = EXPERIMENT.measure({"noise": 10.0, "stop": SAMPLED, "seed": 1}, QUICK)
    assert found["steps"] == 4
    assert found["epsilon"] < found["epsilon_fixed"] < found["epsilon_as_counted"] < found["epsilon_plain"]


@pytest.mark.parametrize(
    ("counted", "verdict", "word"), [(31.0, Verdict.REFUTED, "exceeded"), (29.0, Verdict.CONFIRMED, "kept")]
)
def test_the_finding_says_whether_the_budget_was_kept(counted, verdict, word):
    found = EXPERIMENT.finding(made_up(counted))
    assert found.verdict is verdict and f"{word} in 3 of 3" in found.sentence


def test_every_stop_is_shown_with_its_steps():
    rows = made_up(31.0)
    table = EXPERIMENT.tables(rows)[0]
    assert len(table.rows) == 12 and {row[1] for row in table.rows} == {REPORTED, PUBLISHED, PLAIN, SAMPLED}
    assert list(EXPERIMENT.figures(rows)) == ["accuracy"]
