# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r2 import logistic_sgd
from sfumato.experiments.r2.logistic_sgd import COLUMNS, EXPERIMENT, METHODS, RAW, UNIT
from sfumato.experiments.r2.public_rows import Part


def made_up(private, usual):
    """Rows of two seeds: the balanced accuracy of DP-SGD, and that of small learning rates."""
    shared = {"honest": 1.0, "loss": 0.5, "accuracy": 0.8}
    curves = [
        {"part": "methods", "method": name, "epsilon": epsilon, "seed": seed, "balanced": private} | shared
        for name in METHODS
        for epsilon in (1.0, 3.0)
        for seed in range(2)
    ]
    ablation = [
        {"part": "rates", "columns": columns, "rate": rate, "epsilon": epsilon, "seed": seed}
        | shared
        | {"balanced": usual if rate <= 0.1 else private}
        for columns in COLUMNS
        for rate in (0.1, 1.0)
        for epsilon in (1.0, 1000.0)
        for seed in range(2)
    ]
    return [*curves, *ablation]


def test_a_case_of_each_kind_states_the_epsilon_that_it_costs():
    quick = Scale(quick=True)
    case = {"part": "rates", "columns": RAW, "rate": 0.1, "epsilon": 2.0, "seed": 0}
    assert 1.9 < EXPERIMENT.measure(case, quick)["honest"] <= 2.0
    case = {"part": "methods", "method": "objective", "epsilon": 2.0, "seed": 0}
    assert 1.9 < EXPERIMENT.measure(case, quick)["honest"] <= 2.0


def test_rows_of_norm_one_keep_their_direction():
    rows = np.array([[30.0, 40.0], [0.3, 0.6]])
    assert logistic_sgd._unit(rows) == pytest.approx(np.array([[0.6, 0.8], [0.1, 0.2]]))
    case = {"part": "rates", "columns": UNIT, "rate": 4.0, "epsilon": 1000.0, "seed": 0}
    assert EXPERIMENT.measure(case, Scale(quick=True))["accuracy"] > 0.5


def test_a_balanced_accuracy_gives_both_classes_the_same_weight():
    test = Part(np.zeros((4, 1)), np.array([0, 0, 0, 1]))
    assert logistic_sgd._found(-np.ones(4), test)["balanced"] == 0.5


def test_the_finding_follows_from_the_rows():
    assert EXPERIMENT.finding(made_up(0.5, 0.5)).verdict is Verdict.CONFIRMED
    refuted = EXPERIMENT.finding(made_up(0.65, 0.51))
    assert refuted.verdict is Verdict.REFUTED and "without any noise" in refuted.sentence
    assert "without any noise" not in EXPERIMENT.finding(made_up(0.65, 0.64)).sentence


def test_it_is_shown_as_tables_and_figures():
    rows = made_up(0.65, 0.5)
    assert len(EXPERIMENT.tables(rows)) == 3
    assert list(EXPERIMENT.figures(rows)) == ["methods", "why"]
