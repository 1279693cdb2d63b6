# SPDX-License-Identifier: Apache-2.0
"""Bugs of some steps, some rows, some coordinates or a part of the noise: a sum of scores hides them."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.audit.runs.canaries import Canaries
from sfumato.mechanisms import tensors
from sfumato.mechanisms.random import resolve
from sfumato.testing import seeded
from sfumato.training import PoissonSampling, PrivateGradients, train
from sfumato.training.privacy.batch_draws import IndependentSampler, poisson
from sfumato.training.privacy.clipping import Clipper
from sfumato.training.privacy.noise import IndependentNoise

from .catalogue import CONFIDENCE, Planted

__all__ = ["BUGS", "documented", "drawn", "noise_by", "sampled_by", "weights_by"]

_SIZE, _WIDTH = 2000, 20


def documented(seed: int, **more: object) -> bool:
    """Train as docs/audit.md does, with canaries; return whether the audit refutes the claim."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(_SIZE, _WIDTH, generator=draws)
    model = nn.Sequential(nn.Linear(_WIDTH, 8), nn.ReLU(), nn.Linear(8, 2))
    run = train(
        model,
        (x, (x[:, 0] > 0).long()),
        public_size=_SIZE,
        expected_batch_size=200,
        epochs=2,
        epsilon=4,
        delta=1e-5,
        learning_rate=0.5,
        audit=Canaries(count=1000, confidence=CONFIDENCE),
        progress=False,
        generator=seeded(seed),
        **more,  # type: ignore[arg-type]  # settings of `train`
    )
    return run.audit.refuted


# --- noise ------------------------------------------------------------------------------------------------


def drawn(source, sums, stddev, step):
    """Return the noise of a step, one tensor for each of the sums."""
    noise = [torch.zeros_like(total) for total in sums]
    tensors.add_gaussian_many_(noise, stddev=stddev, generator=source.generator.fork("noise", step))
    return noise


def noise_by(patch: pytest.MonkeyPatch, made) -> None:
    """Let `made(source, sums, stddev, step)` make the noise that is added."""

    def add_(self, sums, *, stddev, step):
        for total, noise in zip(sums, made(self, sums, stddev, step), strict=True):
            total.add_(noise)

    patch.setattr(IndependentNoise, "add_", add_)


def no_noise_in_one_step_of_ten(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        return drawn(source, sums, stddev if step % 10 else 1e-30, step)

    noise_by(patch, made)


def less_noise(patch: pytest.MonkeyPatch) -> None:
    noise_by(patch, lambda source, sums, stddev, step: drawn(source, sums, 0.8 * stddev, step))


def noise_used_twice(patch: pytest.MonkeyPatch) -> None:
    noise_by(patch, lambda source, sums, stddev, step: drawn(source, sums, stddev, step // 2))


def noise_taken_back(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        sign = -1 if step % 2 else 1
        return [sign * noise for noise in drawn(source, sums, stddev, step // 2)]

    noise_by(patch, made)


def noise_beside_the_model_only(patch: pytest.MonkeyPatch) -> None:
    original = PrivateGradients._noised

    def _noised(self, noise_multiplier):
        own = {name: view for name, view in self._sums._views.items() if name.startswith("model.")}
        plain = {name: view.clone() if name in self._sums._filled else 0.0 for name, view in own.items()}
        original(self, noise_multiplier)
        for name, view in own.items():
            view.copy_(torch.as_tensor(plain[name]) / self.expected_batch_size)

    patch.setattr(PrivateGradients, "_noised", _noised)


def no_noise_in_the_first_layer(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        noise = drawn(source, sums, stddev, step)
        for part in noise:
            part[: 8 * _WIDTH] = 0
        return noise

    noise_by(patch, made)


_MODEL = slice(1001, 1001 + 8 * _WIDTH + 8 + 2 * 8 + 2)  # of all sums, between two tables of 1001 numbers


def noise_kept_in_the_model(patch: pytest.MonkeyPatch) -> None:
    kept = []

    def made(source, sums, stddev, step):
        (noise,) = drawn(source, sums, stddev, step)
        kept.append(noise[_MODEL].clone())
        noise[_MODEL] = kept[0]
        return [noise]

    noise_by(patch, made)


def noise_of_a_slow_stream(patch: pytest.MonkeyPatch) -> None:
    stream, calls = torch.randn(1 << 16, generator=torch.Generator().manual_seed(5)), []

    def made(source, sums, stddev, step):
        calls.append(step)
        (total,) = sums
        return [stddev * stream[100 * len(calls) :][: len(total)]]

    noise_by(patch, made)


def noise_rolled_in_the_model(patch: pytest.MonkeyPatch) -> None:
    kept = []

    def made(source, sums, stddev, step):
        (noise,) = drawn(source, sums, stddev, step)
        kept.append(noise[_MODEL].clone())
        noise[_MODEL] = kept[0].roll(len(kept))
        return [noise]

    noise_by(patch, made)


def noise_of_halves_that_cancel(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        (noise,) = drawn(source, sums, stddev, step)
        half = len(noise) // 2
        noise[half : 2 * half] = -noise[:half]
        return [noise]

    noise_by(patch, made)


def noise_taken_back_in_a_layer(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        (noise,) = drawn(source, sums, stddev, step)
        layer = noise[_MODEL]
        layer[64:128] = -layer[:64]
        return [noise]

    noise_by(patch, made)


def noise_cut_off(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        return [noise.clamp(-2 * stddev, 2 * stddev) for noise in drawn(source, sums, stddev, step)]

    noise_by(patch, made)


def uniform_noise(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        noise = drawn(source, sums, 1.0, step)
        half = math.sqrt(3) * stddev  # of the interval: then the standard deviation is the one stated
        return [(torch.special.ndtr(part) * 2 - 1) * half for part in noise]

    noise_by(patch, made)


def noise_in_tiles(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        noise = drawn(source, sums, stddev, step)
        return [part[torch.arange(len(part)) % 64] for part in noise]

    noise_by(patch, made)


def noise_that_fades(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        return drawn(source, sums, stddev * 0.97**step, step)

    noise_by(patch, made)


def noise_mixed_with_that_before(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        new = drawn(source, sums, stddev, step)
        old = drawn(source, sums, stddev, max(step - 1, 0))
        return [0.8 * a - 0.6 * b for a, b in zip(new, old, strict=True)]  # of the right variance

    noise_by(patch, made)


# --- rows -------------------------------------------------------------------------------------------------


def weights_by(patch: pytest.MonkeyPatch, changed) -> None:
    """Let `changed(weights, norms, thresholds)` change the factors that gradients are clipped by."""
    original = Clipper._weights

    def _weights(self, norms, thresholds):
        return changed(original(self, norms, thresholds), norms, thresholds)

    patch.setattr(Clipper, "_weights", _weights)


def clip_the_last_half(patch: pytest.MonkeyPatch) -> None:
    def changed(weights, norms, thresholds):
        weights[:, : weights.shape[1] // 2] = 1.0
        return weights

    weights_by(patch, changed)


def clip_all_but_one(patch: pytest.MonkeyPatch) -> None:
    def changed(weights, norms, thresholds):
        weights[:, ::50] = 1.0  # the first row of each piece of 50
        return weights

    weights_by(patch, changed)


def clip_what_is_far_too_long(patch: pytest.MonkeyPatch) -> None:
    weights_by(patch, lambda weights, norms, at: torch.where(norms > 8 * at, weights, 1.0))


def forget_a_layer_in_the_norm(patch: pytest.MonkeyPatch) -> None:
    original = Clipper.weighed

    def weighed(self, run, squared_norms):
        biases = [[name for name in group if name.endswith("bias")] for group in self.groups]
        return original(self, run, (squared_norms - run.squared_norms(biases)).clamp(min=0))

    patch.setattr(Clipper, "weighed", weighed)


# --- batches ----------------------------------------------------------------------------------------------


def sampled_by(patch: pytest.MonkeyPatch, made) -> None:
    """Let `made(num_units, rate, generator)` return a function from the step to the units of its batch."""

    class Changed(IndependentSampler):
        def __init__(self, batch, generator):
            super().__init__(lambda stream: np.zeros(0, dtype=np.int64), generator)
            self._made = batch

        def batch(self, step):
            return torch.from_numpy(np.sort(self._made(step)))

    def sampler(self, num_units, generator=None):
        stream = resolve(generator)
        return Changed(made(num_units, self.sampling_rate, stream), stream)

    patch.setattr(PoissonSampling, "sampler", sampler)


def same_batch_in_all_steps(patch: pytest.MonkeyPatch) -> None:
    sampled_by(patch, lambda size, rate, stream: lambda step: poisson(size, rate, stream.fork("batch", 0)))


def batch_used_twice(patch: pytest.MonkeyPatch) -> None:
    sampled_by(
        patch, lambda size, rate, stream: lambda step: poisson(size, rate, stream.fork("batch", step // 2))
    )


def whole_blocks(patch: pytest.MonkeyPatch) -> None:
    def made(size, rate, stream):
        def batch(step):
            blocks = poisson(size // 50 + 1, rate, stream.fork("batch", step))
            rows = (blocks[:, None] * 50 + np.arange(50)).ravel()
            return rows[rows < size]

        return batch

    sampled_by(patch, made)


def rows_drawn_with_replacement(patch: pytest.MonkeyPatch) -> None:
    def made(size, rate, stream):
        def batch(step):
            once = poisson(size, rate, stream.fork("batch", step))
            again = poisson(size, rate, stream.fork("again", step))
            return np.concatenate([once[: len(once) // 2], again[: len(again) // 2]])

        return batch

    sampled_by(patch, made)


_FOUND_BY = "canaries"


def _bug(name: str, bug: str, plant) -> Planted:
    return Planted(name=name, bug=bug, found_by=_FOUND_BY, plant=plant, audit=documented)


BUGS = (
    _bug("noise-missing-in-one-step-of-ten", "every tenth step adds no noise", no_noise_in_one_step_of_ten),
    _bug("noise-of-four-fifths", "the standard deviation of the noise is 0.8 of the one stated", less_noise),
    _bug("noise-used-twice", "two steps in a row add the same noise", noise_used_twice),
    _bug(
        "noise-kept-in-the-model",
        "the model's own tensors get the noise of the first step in every step",
        noise_kept_in_the_model,
    ),
    _bug(
        "noise-of-a-slow-stream",
        "the noise of each step begins 100 coordinates after that of the step before, in one stream",
        noise_of_a_slow_stream,
    ),
    _bug(
        "noise-rolled-in-the-model",
        "the model's own tensors get the noise of the step before, moved by one coordinate",
        noise_rolled_in_the_model,
    ),
    _bug(
        "noise-of-halves-that-cancel",
        "the second half of all coordinates gets the noise of the first, with the other sign",
        noise_of_halves_that_cancel,
    ),
    _bug(
        "noise-taken-back-in-a-layer",
        "64 coordinates of a layer get the noise of the 64 before them, with the other sign",
        noise_taken_back_in_a_layer,
    ),
    _bug("noise-taken-back", "a step takes away the noise that the step before added", noise_taken_back),
    _bug(
        "noise-beside-the-model-only",
        "noise is added where canaries are, and not to the model's own tensors",
        noise_beside_the_model_only,
    ),
    _bug("noise-missing-in-a-layer", "one layer gets no noise", no_noise_in_the_first_layer),
    _bug("noise-cut-off", "noise beyond two standard deviations is cut off", noise_cut_off),
    _bug("uniform-noise", "noise is uniform, with the right standard deviation", uniform_noise),
    _bug("noise-in-tiles", "64 draws are repeated over all coordinates", noise_in_tiles),
    _bug("noise-that-fades", "each step adds 3% less noise than the one before", noise_that_fades),
    _bug(
        "noise-mixed-with-that-before",
        "noise of the right size takes back a part of that of the step before",
        noise_mixed_with_that_before,
    ),
    _bug("last-half-clipped", "only the last half of a batch is clipped", clip_the_last_half),
    _bug(
        "one-row-in-fifty-not-clipped",
        "the first row of each piece of a batch is not clipped",
        clip_all_but_one,
    ),
    _bug(
        "outliers-alone-clipped",
        "gradients are clipped only if they are eight times too long",
        clip_what_is_far_too_long,
    ),
    _bug(
        "biases-left-out-of-the-norm",
        "the norm that gradients are clipped by leaves the biases out",
        forget_a_layer_in_the_norm,
    ),
    _bug("same-batch-in-all-steps", "one batch is drawn and used in all steps", same_batch_in_all_steps),
    _bug("batch-used-twice", "each batch is used in two steps", batch_used_twice),
    _bug("blocks-of-rows", "blocks of 50 rows are sampled, and not each row on its own", whole_blocks),
    _bug(
        "a-row-twice-in-a-batch",
        "halves of a batch are drawn apart, so that a row may be in it twice",
        rows_drawn_with_replacement,
    ),
)
