# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r5.microbatches import CLAIMED, EXPERIMENT, HELD


def rows(*, seconds, accuracy):
    return [
        {"size": size, "noise_for": way, "seed": seed, "noise_multiplier": 1.0, "steps": 5, "loss": 1.0,
         "epsilon": 15.0 if way == CLAIMED else 4.0, "seconds": 1.0 if size == 1 else seconds,
         "accuracy": (0.9 if size == 1 else accuracy) + seed / 1000}
        for size, way in ((1, HELD), (4, CLAIMED), (4, HELD))
        for seed in (0, 1, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "accuracy", "verdict"),
    [(0.5, 0.9, Verdict.CONFIRMED), (0.5, 0.6, Verdict.PARTLY), (2.0, 0.9, Verdict.REFUTED)],
)
def test_the_finding_follows_the_rows(seconds, accuracy, verdict):
    assert EXPERIMENT.finding(rows(seconds=seconds, accuracy=accuracy)).verdict is verdict


def test_microbatches_need_twice_the_noise_or_cost_more_than_claimed():
    scale = Scale(quick=True, device="cpu")
    cases = [case for case in EXPERIMENT.cases(scale) if case["size"] == 4]
    found = {case["noise_for"]: EXPERIMENT.measure(case, scale) for case in cases}
    assert found[HELD]["epsilon"] <= 4 < found[CLAIMED]["epsilon"]
    assert found[HELD]["noise_multiplier"] == pytest.approx(2 * found[CLAIMED]["noise_multiplier"], rel=1e-3)


def test_it_is_shown():
    found = rows(seconds=0.5, accuracy=0.9)
    assert len(EXPERIMENT.tables(found)[0].rows) == 3 and list(EXPERIMENT.figures(found)) == ["accuracy"]
