# SPDX-License-Identifier: Apache-2.0
"""Flip labels, run the real training loop, and try to tell from what it shows which label was there.

Trials     Row i has a feature of its own, so its gradient lies in column i of the weights, clipped, and its
           sign is that of the label. Column i is then a trial of its own: two runs whose labels differ in
           row i alone differ in nothing else that is seen there. A denoiser that watches records what every
           step shows, and returns zeros, so that all steps start from the same weights.
Test       The likelihood ratio of a trial's steps, against a threshold fixed beforehand: the claim itself,
           where the two laws differ by exactly delta. The bound is that of Clopper and Pearson, at 99%.
Controls   The same bound exceeds the price without the factor 2 of a replaced label, and of batches that are
           shown the price with amplification.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm
from torch import nn

from sfumato.accounting import Relation, price
from sfumato.labels import AltConv, LabelDpSgd, NoisyGradients, SelfConv, SelfSpan
from sfumato.labels.methods.denoisers import SelfSpanDenoiser
from sfumato.testing import seeded
from sfumato.training import PoissonSampling, Trainer

ROWS = 400  # labels that are attacked, each in a column of its own
CONFIDENCE = 0.99
SEED = 1


@dataclass(kw_only=True)
class Watching:
    """A denoiser that records what it is shown: noisy gradients, and rows where batches are revealed."""

    reveals_batches: bool
    inner: SelfSpanDenoiser | None = None
    seen: list = field(default_factory=list, repr=False)  # of each step: a number for each row
    present: list = field(default_factory=list, repr=False)  # ... and which rows were in the batch

    def denoise(self, model, gradient, *, rows, generator):
        if self.inner is not None:
            gradient = self.inner.denoise(model, gradient, rows=rows, generator=generator)
        weight = gradient["weight"]
        self.seen.append(((weight[0] - weight[1]) / math.sqrt(2)).numpy().copy())
        assert (rows is not None) == self.reveals_batches
        self.present.append(np.isin(np.arange(ROWS), rows) if rows is not None else None)
        return {name: torch.zeros_like(part) for name, part in gradient.items()}

    def statement(self):
        return "Watched."

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def watched(mechanism, watching, *, features, labels):
    """Return what a step shows of each row, in clip norms: [steps, rows]."""
    model = nn.Linear(ROWS, 2, bias=False)
    nn.init.zeros_(model.weight)
    Trainer(
        model,
        (features, labels),
        mechanism=mechanism,
        public_size=ROWS,
        denoiser=watching,
        delta=1e-5,
        learning_rate=1.0,
        evaluate_every=mechanism.steps,
        progress=False,
        generator=seeded(SEED),
    ).fit()
    scale = mechanism.sampling.expected_batch_size(ROWS) / mechanism.step.clipping.clip_norm
    return np.stack(watching.seen) * scale


def loss(shown, *, rate, noise):
    """Return the log of how much likelier a label of 0 makes what was shown than one of 1 does."""
    absent = norm.logpdf(shown, 0, noise) + math.log1p(-rate) if rate < 1 else np.full_like(shown, -np.inf)
    zero, one = (norm.logpdf(shown, at, noise) + math.log(rate) for at in (-1, 1))
    return np.logaddexp(absent, zero) - np.logaddexp(absent, one)


def lower_bound(losses, labels, *, threshold, delta):
    """Return an epsilon that is exceeded, but for a chance of 1 - CONFIDENCE."""
    hits = [losses[..., labels == label].ravel() > threshold for label in (0, 1)]
    (hit, of), (false, among) = ((int(found.sum()), found.size) for found in hits)
    tail = (1 - CONFIDENCE) / 2
    least = beta.ppf(tail, hit, of - hit + 1)
    most = beta.ppf(1 - tail, false + 1, among - false)
    return math.log(max(least - delta, 1e-12) / most)


class Case(NamedTuple):
    kind: type[NoisyGradients]
    batch: int
    noise: float  # multiplier
    steps: int  # of a trial
    trials: int  # of each row
    delta: float


@dataclass(frozen=True, kw_only=True)
class Audit:
    claim: float
    bound: float
    added: float  # the price of an added row: without the factor 2 of a replaced label
    amplified: float  # the price of batches that nobody knows


@lru_cache
def audited(case):
    """Audit runs of some steps: one long run is many of them for each row."""
    kind, batch, noise, steps, trials, delta = case
    method = kind(
        epsilon=1e6,  # no limit: noise and steps are given
        delta=1e-5,
        classes=2,
        public_size=ROWS,
        steps=steps * trials,
        expected_batch_size=batch,
        noise_multiplier=noise,
    )
    features, labels = torch.eye(ROWS) * 1000, torch.arange(ROWS) % 2
    span = SelfSpanDenoiser(features=features, classes=2, clip_norm=method.clip_norm)
    watching = Watching(reveals_batches=method.reveals_batches, inner=span if kind is SelfSpan else None)
    whole = method.mechanism()
    assert whole.steps == steps * trials
    shown = watched(whole, watching, features=features, labels=labels)
    if method.reveals_batches:
        losses = np.where(np.stack(watching.present), loss(shown, rate=1.0, noise=noise), 0.0)
    else:
        losses = loss(shown, rate=batch / ROWS, noise=noise)
    run = whole.first(steps)
    claim = run.price(delta=delta).epsilon
    found = losses.reshape(trials, steps, ROWS).sum(1)
    secret = dataclasses.replace(run, sampling=PoissonSampling(sampling_rate=batch / ROWS))
    return Audit(
        claim=claim,
        bound=lower_bound(found, labels.numpy(), threshold=claim, delta=delta),
        added=price(run.event(), delta=delta, relation=Relation.ADD_REMOVE).epsilon,
        amplified=secret.price(delta=delta).epsilon,
    )


CASES = {
    "every-row-in-every-step": Case(LabelDpSgd, batch=400, noise=3.0, steps=1, trials=60, delta=0.05),
    "poisson-one-step": Case(LabelDpSgd, batch=100, noise=0.5, steps=1, trials=200, delta=0.1),
    "poisson-many-steps": Case(AltConv, batch=40, noise=1.0, steps=16, trials=50, delta=0.05),
    "span-one-epoch": Case(SelfSpan, batch=100, noise=2.0, steps=4, trials=40, delta=0.05),
    "span-two-epochs": Case(SelfSpan, batch=200, noise=3.0, steps=4, trials=40, delta=0.05),
    "conv-one-epoch": Case(SelfConv, batch=50, noise=2.0, steps=8, trials=40, delta=0.02),
}
SLOW = ("span-two-epochs",)  # an epoch more than another case
EVERY, SHOWN = (
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW))
        for name, case in CASES.items()
        if issubclass(case.kind, kinds)
    ]
    for kinds in (NoisyGradients, (SelfSpan, SelfConv))
)


@pytest.mark.parametrize("name", EVERY)
def test_labels_are_told_apart_no_better_than_claimed_and_better_than_an_added_row(name):
    audit = audited(CASES[name])
    assert audit.added < audit.bound <= audit.claim


@pytest.mark.parametrize("name", SHOWN)
def test_batches_that_are_shown_are_not_amplified(name):
    audit = audited(CASES[name])
    assert audit.amplified < audit.bound <= audit.claim
