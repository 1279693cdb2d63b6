# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r1.claimed_epsilon import EXPERIMENT, ROWS, edges_of
from sfumato.experiments.r1.reported import TABLE_2, TABLE_3

QUICK = Scale(quick=True, device="cpu")


def made_up(gain):
    """Return rows that are better than the report by this much."""
    return [
        {
            **case,
            "accuracy": (TABLE_2 if case["protects"] == ROWS else TABLE_3)[case["epsilon"]] + gain,
            "honest": case["epsilon"],
            "method": "clusters",
        }
        for case in EXPERIMENT.cases(Scale())
    ]


def test_the_honest_epsilon_is_the_claimed_one():
    for case in EXPERIMENT.cases(QUICK):
        found = EXPERIMENT.measure(case, QUICK)
        assert 0.99 < found["honest"] <= case["epsilon"] and found["accuracy"] > 0.5


def test_edges_of_a_row_do_not_depend_on_other_rows():
    images = torch.rand(4, 1, 8, 8)
    assert torch.allclose(edges_of(images)[:1], edges_of(images[:1]), atol=1e-6)
    assert torch.allclose(edges_of(images).norm(dim=1), torch.ones(4))


@pytest.mark.parametrize(("gain", "verdict"), [(0.01, Verdict.CONFIRMED), (-0.01, Verdict.REFUTED)])
def test_the_finding_compares_with_the_report(gain, verdict):
    found = EXPERIMENT.finding(made_up(gain))
    assert found.verdict is verdict and "of 10 cases" in found.sentence


def test_the_reports_accuracy_is_beside_ours():
    table = EXPERIMENT.tables(made_up(0.01))[0]
    assert table.rows[0][4:] == ("91.59", "92.59 ± 0.00")
    assert list(EXPERIMENT.figures(made_up(0.01))) == ["accuracy"]
