# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r4.samples import EXPERIMENT


def _rows(ours, theirs):
    accuracies = {"dp-cgan": ours, "dp-cgan-r4": theirs, "dp-gan": None, "dp-gan-r4": None}
    found = {"epsilon": 9.6, "delta": 1e-5, "relation": "add-remove", "distance": 2.0, "floor": 0.1}
    return [
        {
            **case,
            **found,
            "accuracy": accuracies[case["generator"]],
            "collapsed": True,
            "pictures": ["0f", "f0"],
        }
        for case in EXPERIMENT.cases(Scale(quick=True))
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [(0.97, 0.8, Verdict.CONFIRMED), (0.97, 0.3, Verdict.PARTLY), (0.1, 0.1, Verdict.REFUTED)],
)
def test_the_finding_follows_from_what_a_network_learned(ours, theirs, verdict):
    found = EXPERIMENT.finding(_rows(ours, theirs))
    assert found.verdict is verdict and f"{100 * ours:.2f}%" in found.sentence


def test_generators_without_classes_have_no_accuracy_in_the_table():
    table = EXPERIMENT.tables(_rows(0.9, 0.9))[0]
    assert [row[3] for row in table.rows] == ["90.00", "90.00", "no classes", "no classes"]
    assert {row[1] for row in table.rows} == {"not stated"}


def test_every_generator_has_a_grid():
    assert len(EXPERIMENT.figures(_rows(0.9, 0.9))["samples"].axes) == 4
