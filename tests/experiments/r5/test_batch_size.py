# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r5.batch_size import EPOCHS, EPSILON, EXPERIMENT, STEPS


def rows(gain, *, dearer=True):
    return [
        {"fixed": fixed, "batch": batch, "seed": seed, "noise_multiplier": 0.7, "steps": 10, "seconds": 1.0,
         "loss": 1.0, "accuracy": 0.7 + gain * (batch > 64) + seed / 1000,
         "epsilon": 2.0 if (batch > 64) is dearer else 1.0}
        for fixed in (EPOCHS, STEPS, EPSILON)
        for batch in (64, 256)
        for seed in (0, 1, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gain", "dearer", "verdict"),
    [(0.1, True, Verdict.CONFIRMED), (-0.1, True, Verdict.PARTLY), (0.1, False, Verdict.REFUTED)],
)
def test_the_finding_follows_the_rows(gain, dearer, verdict):
    assert EXPERIMENT.finding(rows(gain, dearer=dearer)).verdict is verdict


def test_the_full_scale_has_five_seeds_of_each_setting():
    cases = EXPERIMENT.cases(Scale())
    assert {case["seed"] for case in cases} == {1, 2, 3, 4, 5}


def test_it_is_shown():
    assert len(EXPERIMENT.tables(rows(0.1))[0].rows) == 6
    assert list(EXPERIMENT.figures(rows(0.1))) == ["epsilon", "accuracy"]
