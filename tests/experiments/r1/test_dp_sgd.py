# SPDX-License-Identifier: Apache-2.0
from sfumato.experiments import Scale
from sfumato.experiments.r1.dp_sgd import EXPERIMENT

QUICK = Scale(quick=True, device="cpu")


def test_both_ways_are_measured_and_the_code_costs_more_than_the_algorithm():
    cases = [case for case in EXPERIMENT.cases(QUICK) if case["claimed"] == 0.1]
    written, code = (EXPERIMENT.measure(case, QUICK) for case in cases)
    assert 0 <= written["accuracy"] <= 1 and 0 <= code["accuracy"] <= 1
    assert 0 < written["epsilon"] < written["epsilon_fixed"] < code["epsilon"]
    assert [step for step, _ in written["curve"]][-1] == 20


def test_it_shows_table_2_and_figure_1():
    assert EXPERIMENT.shows == ("Table 2", "Figure 1")
