# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r5.transfer import EXPERIMENT, PRETRAINED, SCRATCH


def rows(gain, private_gain):
    return [
        {"start": start, "share": share, "epsilon": epsilon, "seed": seed, "spent": epsilon,
         "noise": None if epsilon is None else 1.0,
         "accuracy": 0.5 + share / 10 + seed / 1000
         + (start == PRETRAINED) * (gain if epsilon is None else private_gain)}
        for share in (0.1, 1.0)
        for epsilon in (None, 1.0)
        for start in (PRETRAINED, SCRATCH)
        for seed in (0, 1, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [((0.2, 0.2), Verdict.CONFIRMED), ((0.2, -0.2), Verdict.PARTLY), ((-0.1, -0.2), Verdict.REFUTED)],
)
def test_the_finding_follows_the_rows(gains, verdict):
    found = EXPERIMENT.finding(rows(*gains))
    assert found.verdict is verdict and "Less data lowers" in found.sentence


def test_features_of_other_classes_beat_few_steps_from_scratch():
    scale = Scale(quick=True, device="cpu")
    cases = [case for case in EXPERIMENT.cases(scale) if case["epsilon"] is None]
    found = {case["start"]: EXPERIMENT.measure(case, scale)["accuracy"] for case in cases}
    assert found[PRETRAINED] > found[SCRATCH]


def test_the_full_scale_has_five_seeds():
    assert {case["seed"] for case in EXPERIMENT.cases(Scale())} == {1, 2, 3, 4, 5}


def test_it_is_shown():
    assert len(EXPERIMENT.tables(rows(0.2, 0.2))[0].rows) == 4
    assert list(EXPERIMENT.figures(rows(0.2, 0.2))) == ["accuracy"]
