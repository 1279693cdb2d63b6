# SPDX-License-Identifier: Apache-2.0
"""Bugs of training by somebody who knew the documentation, and had not read the code of the audit.

Written down again in our words. How many were found before anything was changed for them is in docs/audit.md.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.testing import seeded
from sfumato.training.data import rows
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.passes import Passes
from sfumato.training.loop import TrainingLoop
from sfumato.training.privacy.batch_draws import poisson
from sfumato.training.privacy.clipping import Clipper
from sfumato.training.privacy.noise import IndependentNoise
from sfumato.training.trainer import Trainer
from sfumato.training.weight_average import WeightAverage

from .catalogue import Planted
from .steps import documented, drawn, noise_by, sampled_by, weights_by

__all__ = ["BUGS"]


# --- noise ------------------------------------------------------------------------------------------------


def no_noise_in_the_last_step(patch: pytest.MonkeyPatch) -> None:
    noise_by(
        patch, lambda source, sums, stddev, step: drawn(source, sums, stddev if step < 19 else 1e-30, step)
    )


def noise_moved_along(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        return [noise.roll(step) for noise in drawn(source, sums, stddev, 0)]

    noise_by(patch, made)


def noise_of_the_steps_number(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        known = IndependentNoise(seeded(step))
        return drawn(known, sums, stddev, step)

    noise_by(patch, made)


def _without_noise_in(patch: pytest.MonkeyPatch, left_out: Callable[[str, Tensor], bool]) -> None:
    original = PrivateGradients._noised

    def _noised(self, noise_multiplier):
        self._sums.flat()
        views = self._sums._views
        plain = {n: views[n].clone() for n, p in self.parameters.items() if left_out(n, p)}
        original(self, noise_multiplier)
        for name, value in plain.items():
            views[name].copy_(value / self.expected_batch_size)

    patch.setattr(PrivateGradients, "_noised", _noised)


def no_noise_in_vectors(patch: pytest.MonkeyPatch) -> None:
    _without_noise_in(patch, lambda name, parameter: parameter.dim() < 2)


def no_noise_in_the_last_chunk(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        noise = drawn(source, sums, stddev, step)
        for part in noise:
            part[len(part) // 32 * 32 :] = 0
        return noise

    noise_by(patch, made)


def noise_on_a_grid(patch: pytest.MonkeyPatch) -> None:
    def made(source, sums, stddev, step):
        return [(noise * 4).round() / 4 for noise in drawn(source, sums, stddev, step)]  # of clip norms

    noise_by(patch, made)


def noise_for_typical_norms(patch: pytest.MonkeyPatch) -> None:
    weighed, noised = Clipper.weighed, PrivateGradients._noised

    def measured(self, run, squared_norms):
        self.typical = float(squared_norms.sum(0).sqrt().clamp(max=self.bound).mean()) / self.bound
        return weighed(self, run, squared_norms)

    def _noised(self, noise_multiplier):
        noised(self, noise_multiplier * max(getattr(self._clipper, "typical", 1.0), 1e-6))

    patch.setattr(Clipper, "weighed", measured)
    patch.setattr(PrivateGradients, "_noised", _noised)


# --- clipping ---------------------------------------------------------------------------------------------


def clip_from_the_second_on(patch: pytest.MonkeyPatch) -> None:
    def changed(weights, norms, thresholds):
        weights[:, :1] = 1.0
        return weights

    weights_by(patch, changed)


def clip_by_the_largest_coordinate(patch: pytest.MonkeyPatch) -> None:
    original = Clipper.weighed

    def weighed(self, run, squared_norms):
        largest = [
            torch.stack([run.per_unit(name).flatten(1).abs().amax(1) for name in group]).amax(0)
            for group in self.groups
        ]
        return original(self, run, torch.stack(largest).square())

    patch.setattr(Clipper, "weighed", weighed)


def clip_unless_short_on_average(patch: pytest.MonkeyPatch) -> None:
    def changed(weights, norms, thresholds):
        short = bool((norms.mean(1, keepdim=True) <= thresholds).all())
        return torch.ones_like(weights) if short else weights

    weights_by(patch, changed)


def biases_as_they_are(patch: pytest.MonkeyPatch) -> None:
    original = Clipper.weighed

    def weighed(self, run, squared_norms):
        others = [[name for name in group if not name.endswith("bias")] for group in self.groups]
        raw = {n: run.per_unit(n).sum(0) for group in self.groups for n in group if n.endswith("bias")}
        found = original(self, run, run.squared_norms(others))
        found.sums.update(raw)
        return found

    patch.setattr(Clipper, "weighed", weighed)


def classes_weighed_after_clipping(patch: pytest.MonkeyPatch) -> None:
    clipped, original = Passes._clipped, Clipper._weights

    def _clipped(self, batch, per_unit, recorded=None):
        self._clipper.factors = 1.0 + 2.0 * (batch[2] == 1).float()  # of weights, features and labels
        return clipped(self, batch, per_unit, recorded)

    def _weights(self, norms, thresholds):
        weights, factors = original(self, norms, thresholds), getattr(self, "factors", None)
        return weights if factors is None or len(factors) != norms.shape[1] else weights * factors

    patch.setattr(Passes, "_clipped", _clipped)
    patch.setattr(Clipper, "_weights", _weights)


def first_piece_twice(patch: pytest.MonkeyPatch) -> None:
    original = Passes.run

    def run(self, batch, per_unit, add):
        first = slice(0, min(32 * per_unit, rows.count(batch)))
        original(self, rows.take(batch, first), per_unit, add)  # to warm up
        original(self, batch, per_unit, add)

    patch.setattr(Passes, "run", run)


# --- batches ----------------------------------------------------------------------------------------------


def same_batches_each_epoch(patch: pytest.MonkeyPatch) -> None:
    sampled_by(
        patch, lambda size, rate, stream: lambda step: poisson(size, rate, stream.fork("batch", step % 10))
    )


def a_window_at_a_time(patch: pytest.MonkeyPatch) -> None:
    def made(size, rate, stream):
        def batch(step):
            width = size // 5
            return poisson(width, 5 * rate, stream.fork("batch", step)) + step % 5 * width

        return batch

    sampled_by(patch, made)


def drawn_with_replacement(patch: pytest.MonkeyPatch) -> None:
    def made(size, rate, stream):
        return lambda step: np.random.default_rng(step).integers(size, size=round(size * rate))

    sampled_by(patch, made)


def some_rows_always_in(patch: pytest.MonkeyPatch) -> None:
    def made(size, rate, stream):
        def batch(step):
            return np.union1d(poisson(size, rate, stream.fork("batch", step)), np.arange(0, 1000, 50))

        return batch

    sampled_by(patch, made)


# --- between the sums and the weights ---------------------------------------------------------------------


def momentum_without_noise(patch: pytest.MonkeyPatch) -> None:
    original = PrivateGradients._noised

    def _noised(self, noise_multiplier):
        before = self.__dict__.setdefault("before", {})
        for place, total in enumerate(self._sums.flat()):
            if place in before:
                total.add_(before[place], alpha=0.9)
            before[place] = total.clone()
        original(self, noise_multiplier)

    patch.setattr(PrivateGradients, "_noised", _noised)


def _keep_raw(patch: pytest.MonkeyPatch) -> None:
    """Keep gradients without noise, where a careless programmer would find them."""
    original = PrivateGradients._noised

    def _noised(self, noise_multiplier):
        self._sums.flat()
        self.raw = {name: view / self.expected_batch_size for name, view in self._sums._views.items()}
        original(self, noise_multiplier)

    patch.setattr(PrivateGradients, "_noised", _noised)


def _raw_of(session: TrainingLoop) -> list[tuple[Tensor, Tensor]]:
    """Return the model's parameters, each with its gradient without noise."""
    own = {id(parameter) for parameter in session.model.parameters()}
    private = session.private
    return [(p, private.raw[name]) for name, p in private.parameters.items() if id(p) in own]


def _before_the_optimizer(patch: pytest.MonkeyPatch, change: Callable[[TrainingLoop], None]) -> None:
    _keep_raw(patch)
    original = TrainingLoop._denoise

    def _denoise(self):
        original(self)
        change(self)

    patch.setattr(TrainingLoop, "_denoise", _denoise)


def _raw_norm(session: TrainingLoop) -> float:
    return float(torch.stack([raw.norm() for _, raw in _raw_of(session)]).norm())


def divided_by_raw_squares(patch: pytest.MonkeyPatch) -> None:
    def change(session):
        moments = session.__dict__.setdefault("moments", {})
        for parameter, raw in _raw_of(session):
            kept = moments.setdefault(id(parameter), torch.zeros_like(raw))
            kept.mul_(0.9).add_(raw.square(), alpha=0.1)
            parameter.grad = parameter.grad / (kept.sqrt() + 1e-3) * 0.05

    _before_the_optimizer(patch, change)


def rate_by_the_raw_norm(patch: pytest.MonkeyPatch) -> None:
    def change(session):
        for group in session.optimizer.param_groups:
            group["lr"] = 0.5 / (1 + _raw_norm(session))

    _before_the_optimizer(patch, change)


def raw_spikes_skipped(patch: pytest.MonkeyPatch) -> None:
    def change(session):
        norm = _raw_norm(session)
        if norm > session.__dict__.get("before", float("inf")):
            for parameter, _ in _raw_of(session):
                parameter.grad = torch.zeros_like(parameter.grad)
        session.before = norm

    _before_the_optimizer(patch, change)


def average_without_noise(patch: pytest.MonkeyPatch) -> None:
    _keep_raw(patch)
    take_step, original = TrainingLoop.take_step, WeightAverage.update

    def remembered(self):
        if self.average is not None:
            self.average.session = self
        take_step(self)

    @torch.no_grad()
    def update(self):
        noise = [(p, p.grad - raw) for p, raw in _raw_of(self.session)]
        for sign in (1, -1):
            for parameter, part in noise:
                parameter.add_(part, alpha=sign * self.session.learning_rate)
            if sign == 1:
                original(self)

    patch.setattr(TrainingLoop, "take_step", remembered)
    patch.setattr(WeightAverage, "update", update)


def bias_set_at_the_end(patch: pytest.MonkeyPatch) -> None:
    original = Trainer._finish

    @torch.no_grad()
    def _finish(self, session, record):
        x, y = self._units.held()[0]
        layer = session.model[-1]
        shares = torch.bincount(y, minlength=layer.out_features) / len(y)
        layer.bias.add_((shares + 1e-6).log() - session.model(x).softmax(1).mean(0).log())
        return original(self, session, record)

    patch.setattr(Trainer, "_finish", _finish)


def _bug(name: str, bug: str, plant, audit=documented) -> Planted:
    return Planted(name=name, bug=bug, found_by="canaries", plant=plant, audit=audit)


BUGS = (
    _bug("last-step-without-noise", "the last step adds no noise", no_noise_in_the_last_step),
    _bug(
        "noise-moved-along",
        "noise is drawn once, and each step moves it along by one coordinate",
        noise_moved_along,
    ),
    _bug(
        "noise-of-the-steps-number",
        "the seed of the noise is the number of the step",
        noise_of_the_steps_number,
    ),
    _bug("noise-missing-in-vectors", "parameters with one axis get no noise", no_noise_in_vectors),
    _bug(
        "noise-missing-in-the-last-chunk",
        "noise is added in chunks of 32 coordinates, and a last one that is not full is left out",
        no_noise_in_the_last_chunk,
    ),
    _bug("noise-on-a-grid", "noise is rounded to a grid, and the sums are not", noise_on_a_grid),
    _bug(
        "noise-for-typical-norms",
        "noise is made for the mean norm of the batch, and not for the clip norm",
        noise_for_typical_norms,
    ),
    _bug("clipped-from-the-second-on", "the first unit of a batch is not clipped", clip_from_the_second_on),
    _bug(
        "clipped-by-the-largest-coordinate",
        "the norm that gradients are clipped by is their largest coordinate",
        clip_by_the_largest_coordinate,
    ),
    _bug(
        "not-clipped-if-short-on-average",
        "a batch is not clipped where its mean norm is within the clip norm",
        clip_unless_short_on_average,
    ),
    _bug(
        "biases-not-clipped", "biases take no part in norms, and are added up as they are", biases_as_they_are
    ),
    _bug(
        "classes-weighed-after-clipping",
        "clipped gradients of one class are multiplied by three",
        classes_weighed_after_clipping,
    ),
    _bug(
        "first-piece-twice", "a pass over the first rows to warm up is added to the sums", first_piece_twice
    ),
    _bug("same-batches-each-epoch", "each epoch has the batches of the first", same_batches_each_epoch),
    _bug(
        "a-window-at-a-time",
        "a step samples from a fifth of the rows, at five times the rate",
        a_window_at_a_time,
    ),
    _bug("drawn-with-replacement", "batches are drawn with replacement", drawn_with_replacement),
    _bug("some-rows-always-in", "some rows are put into every batch", some_rows_always_in),
    _bug("momentum-without-noise", "momentum is taken of sums before they get noise", momentum_without_noise),
    _bug(
        "divided-by-raw-squares",
        "noisy gradients are divided by squares of gradients without noise",
        divided_by_raw_squares,
    ),
    _bug(
        "average-without-noise",
        "the average of weights takes in weights that leave out the noise of their step",
        average_without_noise,
        partial(documented, ema_decay=0.9),
    ),
    _bug(
        "rate-by-the-raw-norm",
        "the learning rate of a step depends on its gradient without noise",
        rate_by_the_raw_norm,
    ),
    _bug(
        "raw-spikes-skipped",
        "a step is skipped where its gradient without noise is longer than the last",
        raw_spikes_skipped,
    ),
    _bug(
        "bias-set-at-the-end",
        "after the last step, a bias is set by exact means over the data",
        bias_set_at_the_end,
    ),
)
