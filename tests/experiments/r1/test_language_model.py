# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r1.language_model import EXPERIMENT, KNOWN, LAST

QUICK = Scale(quick=True, device="cpu")


def made_up(accuracy):
    """Return rows whose accuracy is a function of epsilon; 0.5 is chance and 0.8 without privacy."""
    return [
        {
            **case,
            "larger": 0.5,
            "honest": case["epsilon"],
            "accuracy": 0.8 if case["method"] == KNOWN else accuracy(case["epsilon"]),
        }
        for case in EXPERIMENT.cases(Scale())
    ]


def test_fine_tuning_the_last_layer_has_the_epsilon_that_was_asked_for():
    case = next(case for case in EXPERIMENT.cases(QUICK) if case["method"] == LAST)
    found = EXPERIMENT.measure(case, QUICK)
    assert 0 <= found["accuracy"] <= 1 and 1.9 < found["honest"] <= 2


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [
        (lambda epsilon: 0.79, Verdict.CONFIRMED),
        (lambda epsilon: 0.79 if epsilon > 1 else 0.6, Verdict.PARTLY),
        (lambda epsilon: 0.6, Verdict.REFUTED),
    ],
)
def test_the_finding_follows_from_what_is_kept_of_the_accuracy(accuracy, verdict):
    assert EXPERIMENT.finding(made_up(accuracy)).verdict is verdict


def test_methods_are_shown_by_epsilon_with_the_accuracy_without_privacy():
    rows = made_up(lambda epsilon: 0.6)
    table = EXPERIMENT.tables(rows)[0]
    assert table.heads[1] == "epsilon 0.1" and table.rows[-2][-1] == "80.00 ± 0.00"
    assert list(EXPERIMENT.figures(rows)) == ["accuracy"]
