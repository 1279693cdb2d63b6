# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r4.pate_cgan import EXPERIMENT

QUICK = Scale(quick=True, device="cpu")


def _rows(as_described, started):
    accuracies = {"pate-r4": as_described, "pate-10": started, "pate-250": 0.8}
    found = {"epsilon": 8.6, "delta": 1e-5, "relation": "add-remove", "distance": 2.0, "queries": 3}
    return [
        {**case, **found, "accuracy": accuracies[case["generator"]], "pictures": ["0f", "f0"]}
        for case in EXPERIMENT.cases(QUICK)
    ]


@pytest.mark.parametrize(
    ("as_described", "started", "verdict"),
    [(0.9, 0.9, Verdict.CONFIRMED), (0.1, 0.9, Verdict.PARTLY), (0.1, 0.2, Verdict.REFUTED)],
)
def test_the_finding_is_about_ten_teachers_as_described(as_described, started, verdict):
    found = EXPERIMENT.finding(_rows(as_described, started))
    assert found.verdict is verdict and "answer 3 queries" in found.sentence


def test_a_case_has_its_number_of_queries_and_is_shown():
    case = EXPERIMENT.cases(QUICK)[0]
    assert EXPERIMENT.measure(case, QUICK)["queries"] == 3
    rows = _rows(0.1, 0.9)
    assert EXPERIMENT.tables(rows)[0].rows[0][3] == 3
    assert len(EXPERIMENT.figures(rows)["samples"].axes) == 3
