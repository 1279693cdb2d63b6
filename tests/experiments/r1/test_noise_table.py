# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r1.noise_table import (
    AS_WRITTEN,
    PUBLISHED,
    cases_of,
    figures_of,
    finding_of,
    table_of,
)
from sfumato.experiments.r1.reported import NOISE, TABLE_2


def rows_with(price, accuracy=0.91):
    """Return made-up rows whose honest epsilon is a function of the claimed one."""
    return [
        {
            **case,
            "accuracy": accuracy + case["seed"] / 1000,
            "epsilon": price(case["claimed"]) if case["way"] == AS_WRITTEN else 2e7,
            "epsilon_fixed": 2 * price(case["claimed"]),
            "curve": [(500, 0.5), (1000, 0.9)],
        }
        for case in cases_of(Scale())
    ]


def test_every_noise_runs_both_ways_with_three_seeds():
    cases = cases_of(Scale())
    assert len(cases) == len(NOISE) * 2 * 3 and {case["way"] for case in cases} == {AS_WRITTEN, PUBLISHED}


@pytest.mark.parametrize(
    ("price", "verdict"),
    [
        (lambda claimed: 3 * claimed, Verdict.REFUTED),
        (lambda claimed: claimed / 2, Verdict.CONFIRMED),
        (lambda claimed: claimed**2, Verdict.PARTLY),
    ],
)
def test_the_verdict_follows_from_how_many_epsilons_hold(price, verdict):
    assert finding_of(rows_with(price), TABLE_2).verdict is verdict


def test_an_epsilon_that_holds_confirms_nothing_without_the_accuracy():
    assert finding_of(rows_with(lambda claimed: claimed / 2, 0.5), TABLE_2).verdict is Verdict.REFUTED


def test_the_finding_gives_the_honest_epsilons():
    found = finding_of(rows_with(lambda claimed: 3 * claimed), TABLE_2).sentence
    assert "None of 5 rows hold" in found and "0.3, 1.5, 3, 15, 30" in found and "2e+07" in found


def test_claimed_and_honest_epsilon_are_side_by_side():
    table = table_of(rows_with(lambda claimed: 3 * claimed), TABLE_2, "a title", "add-remove")
    assert table.rows[0][1:5] == ("0.1", "0.3", "0.6", "2e+07")
    assert table.rows[0][5] == "91.59" and "±" in table.rows[0][6]


def test_there_is_a_figure_of_epsilon_and_one_of_training():
    drawn = figures_of(rows_with(lambda claimed: 3 * claimed), TABLE_2, "a title")
    assert set(drawn) == {"epsilon", "training"}
