# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r5.noise import EXPERIMENT


@pytest.fixture(scope="module")
def rows():
    scale = Scale(quick=True, device="cpu")
    return [{**case, **EXPERIMENT.measure(case, scale)} for case in EXPERIMENT.cases(scale)]


def test_more_noise_costs_less_and_rdp_states_more_than_pld(rows):
    low, high = rows
    assert high["noise"] > low["noise"] and high["epsilon"] < low["epsilon"]
    assert all(row["epsilon_rdp"] >= row["epsilon"] for row in rows)


def test_the_finding_follows_the_rows(rows):
    def made_up(*accuracies):
        return [{**row, "accuracy": a} for row, a in zip(rows, accuracies, strict=True)]

    assert EXPERIMENT.finding(made_up(0.9, 0.5)).verdict is Verdict.CONFIRMED
    assert EXPERIMENT.finding(made_up(0.5, 0.9)).verdict is Verdict.PARTLY


def test_it_is_shown(rows):
    assert len(EXPERIMENT.tables(rows)[0].rows) == 2
    assert list(EXPERIMENT.figures(rows)) == ["epsilon", "accuracy"]
