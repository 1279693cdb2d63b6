# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.training import (
    AdaptiveClip,
    BandedNoise,
    Clipping,
    CoordinateClipping,
    CyclicBatches,
    DpSgd,
    FixedSizeSampling,
    NoisyStep,
    PoissonSampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)
from sfumato.training.record.mechanism_words import told

POISSON = PoissonSampling(sampling_rate=0.25)
CYCLES = CyclicBatches(batch_size=5, public_size=20)


def words(sampling=POISSON, relation="add-remove", noise=((2.0, 3),), correlation=None, **step):
    step = NoisyStep(**{"clipping": Clipping(clip_norm=1.0)} | step)
    run = DpSgd(step=step, sampling=sampling, noise=noise, relation=relation, correlation=correlation)
    return " ".join(told(run, unit="patient", divided_by=5.0))


@pytest.mark.parametrize(
    ("sampling", "relation", "said"),
    [
        (POISSON, "add-remove", "each patient with probability 0.25"),
        (
            TruncatedPoissonSampling(sampling_rate=0.1, batch_size=5, public_size=20),
            "add-remove",
            "at most 20",
        ),
        (FixedSizeSampling(batch_size=5, public_size=20), "replace-one", "fresh random 5 of 20"),
        (ShuffledBatches(batch_size=5, public_size=20), "replace-one", "shuffled each epoch"),
        (CYCLES, "zero-out", "in a fixed order"),
    ],
)
def test_every_sampler_is_told(sampling, relation, said):
    assert said in words(sampling, relation)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({}, "an L2 norm of 1"),
        ({"clipping": CoordinateClipping(coordinate_bound=0.5)}, "each coordinate"),
        ({"clipping": Clipping(clip_norm=1.0, per_layer=True)}, "layer by layer"),
        (
            {
                "clipping": Clipping(
                    clip_norm=1.0, adaptive=AdaptiveClip(quantile=0.5, count_noise_multiplier=9.0)
                )
            },
            "followed a quantile",
        ),
        ({"group_size": 4}, "groups of about 4"),
        ({"projections": 8}, "8 random projections"),
    ],
)
def test_every_way_to_clip_is_told(step, said):
    assert said in words(**step)


def test_noise_and_its_schedule_are_told_rounded_down():
    assert "standard deviation 2 times" in words() and "divided by 5" in words()
    assert "2 then 1.23456 (for 3, 4 steps)" in words(noise=((2.0, 3), (1.234569, 4)))


def test_correlated_noise_is_told():
    assert "taken back in the next 2 steps" in words(CYCLES, "zero-out", correlation=BandedNoise(bands=3))
    assert "taken back" not in words()
