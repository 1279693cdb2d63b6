# SPDX-License-Identifier: Apache-2.0
"""Bugs of DP-SGD that canaries in one run find: noise, clipping, sampling and its price."""

import importlib
import math
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from sfumato.accounting import Relation, events, gaussian
from sfumato.audit.runs.canaries import Canaries
from sfumato.mechanisms import tensors
from sfumato.mechanisms.random import resolve
from sfumato.testing import seeded
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling, Trainer
from sfumato.training.engine import gradients
from sfumato.training.privacy import noise, sampling
from sfumato.training.privacy.batch_draws import IndependentSampler, ShuffledSampler, poisson
from sfumato.training.privacy.clipping import Clipper
from sfumato.training.privacy.sampling import Sampling, Steps

from .catalogue import CONFIDENCE, Planted

__all__ = ["BUGS"]

ROWS = 20


def audited(
    seed: int,
    *,
    relation: str = "add-remove",
    sampling: Sampling | None = None,
    noise: Sequence[tuple[float, int]] = ((2.0, 4),),
    clipping: Clipping | None = None,
    count: int = 800,
    clip_schedule: object = None,
) -> bool:
    """Train a small model with canaries, and return whether they refute what the run claims."""
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0) if clipping is None else clipping),
        sampling=PoissonSampling(sampling_rate=1.0) if sampling is None else sampling,
        noise=noise,
        relation=relation,
    )
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    run = Trainer(
        model,
        (torch.ones(ROWS, 2), torch.zeros(ROWS, dtype=torch.int64)),
        mechanism=mechanism,
        public_size=ROWS,
        delta=1e-5,
        learning_rate=0.1,
        clip_schedule=clip_schedule,
        evaluate_every=mechanism.steps,
        progress=False,
        generator=seeded(seed),
        audit=Canaries(count=count, confidence=CONFIDENCE),
    ).fit()
    return run.audit.refuted


# --- noise ------------------------------------------------------------------------------------------------


def forget_noise(patch: pytest.MonkeyPatch) -> None:
    def add_(self, sums, *, stddev, step):
        noisy = [total.clone() for total in sums]  # and nobody looks at these any more
        tensors.add_gaussian_many_(noisy, stddev=stddev, generator=self.generator.fork("noise", step))

    patch.setattr(noise.IndependentNoise, "add_", add_)


def noise_for_the_mean(patch: pytest.MonkeyPatch) -> None:
    def _noised(self, noise_multiplier):
        sums = self._sums.flat()
        stddev = self.noise_multiplier * self.bound / self.expected_batch_size  # divided again, below
        self._noise.add_(sums, stddev=stddev, step=self.steps)
        for total in sums:
            total.div_(self.expected_batch_size)

    patch.setattr(gradients.PrivateGradients, "_noised", _noised)


def variance_for_stddev(patch: pytest.MonkeyPatch) -> None:
    original = tensors.add_gaussian_many_

    def add_(self, sums, *, stddev, step):  # whoever wrote this thought of N(0, sigma^2)
        original(sums, stddev=math.sqrt(stddev), generator=self.generator.fork("noise", step))

    patch.setattr(noise.IndependentNoise, "add_", add_)


def one_draw_for_all(patch: pytest.MonkeyPatch) -> None:
    def add_(self, sums, *, stddev, step):
        drawn = tensors.gaussian((1,), stddev=stddev, generator=self.generator.fork("noise", step))
        for total in sums:
            total.add_(drawn)  # broadcast over all coordinates

    patch.setattr(noise.IndependentNoise, "add_", add_)


def forget_the_schedule_in_the_noise(patch: pytest.MonkeyPatch) -> None:
    stated = property(lambda self: self.step.clipping.bound(list(self.parameters)))
    patch.setattr(gradients.PrivateGradients, "bound", stated)


# --- clipping ---------------------------------------------------------------------------------------------


def forget_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Clipper, "_weights", lambda self, norms, thresholds: torch.ones_like(norms))


def each_layer_at_the_whole_norm(patch: pytest.MonkeyPatch) -> None:
    def thresholds(self, names):
        return [self.clip_norm for _ in self.groups(names)]  # and `bound` is still clip_norm

    patch.setattr(Clipping, "thresholds", thresholds)


def squared_norms(patch: pytest.MonkeyPatch) -> None:
    original = Clipper._weights

    def _weights(self, norms, thresholds):
        return original(self, norms.sqrt(), thresholds)  # these were no squares any more

    patch.setattr(Clipper, "_weights", _weights)


# --- sampling ---------------------------------------------------------------------------------------------


def shuffle_instead(patch: pytest.MonkeyPatch) -> None:
    def sampler(self, num_units, generator=None):
        return ShuffledSampler(num_units, max(1, round(self.sampling_rate * num_units)), generator)

    patch.setattr(PoissonSampling, "sampler", sampler)


def sample_twice(patch: pytest.MonkeyPatch) -> None:
    def sampler(self, num_units, generator=None):
        rate = min(1.0, 2 * self.sampling_rate)  # as if two workers drew a sample each
        return IndependentSampler(lambda stream: poisson(num_units, rate, stream), resolve(generator))

    patch.setattr(PoissonSampling, "sampler", sampler)


# --- price ------------------------------------------------------------------------------------------------


def forget_the_replaced_unit(patch: pytest.MonkeyPatch) -> None:
    def by_gaussian(event, delta, relation):
        found = gaussian.epsilon(1 / events.gaussian_scale(event), delta)  # C moves the sum, not 2 C
        return found * (1 - 1e-6), found

    patch.setattr(importlib.import_module("sfumato.accounting.price"), "_by_gaussian", by_gaussian)


def forget_the_replaced_label(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Relation, "diameter", property(lambda self: 2 if self is Relation.REPLACE_ONE else 1))


def count_one_step(patch: pytest.MonkeyPatch) -> None:
    def composed(steps: Steps):
        return events.compose(*(event for event, _ in steps))

    patch.setattr(sampling, "composed", composed)


_TENTH, _FIFTH = (PoissonSampling(sampling_rate=rate) for rate in (0.1, 0.2))

BUGS = (
    Planted(
        name="noise-forgotten",
        bug="noise is added to a copy of the sums",
        found_by="canaries",
        plant=forget_noise,
        audit=audited,
    ),
    Planted(
        name="noise-on-the-mean",
        bug="noise for the mean (divided by the batch size) is added to the sum, which is then divided",
        found_by="canaries",
        plant=noise_for_the_mean,
        audit=audited,
    ),
    Planted(
        name="variance-for-stddev",
        bug="the standard deviation is taken for a variance",
        found_by="canaries",
        plant=variance_for_stddev,
        audit=lambda seed: audited(seed, noise=((8.0, 64),)),
    ),
    Planted(
        name="one-draw-for-all-coordinates",
        bug="one noise is drawn and added to every coordinate",
        found_by="canaries",
        plant=one_draw_for_all,
        audit=audited,
    ),
    Planted(
        name="clip-schedule-without-noise",
        bug="a schedule raises the clip norm, and the noise stays",
        found_by="canaries",
        plant=forget_the_schedule_in_the_noise,
        audit=lambda seed: audited(seed, clip_schedule=lambda step: 4.0),
    ),
    Planted(
        name="clipping-forgotten",
        bug="gradients are summed as they are",
        found_by="canaries",
        plant=forget_clipping,
        audit=audited,
    ),
    Planted(
        name="clipped-per-layer-accounted-flat",
        bug="each layer is clipped at the whole clip norm, and the noise is made for one",
        found_by="canaries",
        plant=each_layer_at_the_whole_norm,
        audit=lambda seed: audited(seed, clipping=Clipping(clip_norm=1.0, per_layer=True)),
    ),
    Planted(
        name="root-of-the-norm",
        bug="a square root too many: gradients are clipped by the root of their norm",
        found_by="canaries",
        plant=squared_norms,
        audit=audited,
    ),
    Planted(
        name="shuffled-with-poisson-epsilon",
        bug="batches are cut from a shuffled epoch, and priced as Poisson samples",
        found_by="canaries",
        plant=shuffle_instead,
        audit=lambda seed: audited(seed, sampling=_TENTH, noise=((0.3, 10),), count=2400),
    ),
    Planted(
        name="sampled-at-twice-the-rate",
        bug="units are sampled at twice the rate that is priced",
        found_by="canaries",
        plant=sample_twice,
        audit=lambda seed: audited(seed, sampling=_FIFTH, noise=((0.5, 10),), count=1600),
    ),
    Planted(
        name="replace-one-at-sensitivity-c",
        bug="a replaced unit is priced as if it moved the sum by the clip norm, and not by twice that",
        found_by="canaries",
        plant=forget_the_replaced_unit,
        audit=lambda seed: audited(seed, relation="replace-one"),
    ),
    Planted(
        name="labels-at-sensitivity-c",
        bug="a replaced label is priced as if it moved the sum by the clip norm, and not by twice that",
        found_by="canaries",
        plant=forget_the_replaced_label,
        audit=lambda seed: audited(seed, relation="replace-label"),
    ),
    Planted(
        name="steps-not-counted",
        bug="the event of a run forgets how often each step is taken",
        found_by="canaries",
        plant=count_one_step,
        audit=lambda seed: audited(seed, noise=((4.0, 16),)),
    ),
)
