# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r1.denoisers import EXPERIMENT

QUICK = Scale(quick=True, device="cpu")
MEASURED = {"honest": 1.0, "noise": 3.0, "steps": 9, "batch": 10, "sampled": True}


@pytest.fixture(scope="module")
def rows():
    return [{**case, **EXPERIMENT.measure(case, QUICK)} for case in EXPERIMENT.cases(QUICK)]


def made_up(*, altconv, selfconv, selfspan):
    accuracy = {"altconv": altconv, "selfconv": selfconv, "selfspan": selfspan, "dp-sgd": 0.5}
    return [
        {**case, **MEASURED, "accuracy": accuracy[case["denoiser"]]} for case in EXPERIMENT.cases(Scale())
    ]


def test_all_denoisers_have_the_same_honest_epsilon(rows):
    assert len(rows) == 4 and all(0.99 < row["honest"] <= 1.0 for row in rows)


def test_those_that_reveal_batches_need_more_noise(rows):
    noise = {row["denoiser"]: row["noise"] for row in rows}
    assert noise["selfconv"] > noise["altconv"] and noise["selfspan"] > noise["dp-sgd"]
    assert {row["denoiser"] for row in rows if row["sampled"]} == {"altconv", "dp-sgd"}


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [
        ({"altconv": 0.9, "selfconv": 0.8, "selfspan": 0.7}, Verdict.CONFIRMED),
        ({"altconv": 0.6, "selfconv": 0.8, "selfspan": 0.7}, Verdict.PARTLY),
        ({"altconv": 0.6, "selfconv": 0.7, "selfspan": 0.8}, Verdict.REFUTED),
    ],
)
def test_the_finding_follows_the_order(accuracy, verdict):
    assert EXPERIMENT.finding(made_up(**accuracy)).verdict is verdict


def test_accuracies_and_settings_are_shown(rows):
    accuracies, settings = EXPERIMENT.tables(rows)
    assert accuracies.rows[0][0] == "AltConv" and len(settings.rows) == 4
    assert list(EXPERIMENT.figures(rows)) == ["denoisers"]
