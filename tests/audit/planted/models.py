# SPDX-License-Identifier: Apache-2.0
"""Bugs of estimators and of label privacy."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.audit.mechanisms.mechanism_attack import audit_outputs
from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.estimators import LogisticRegression
from sfumato.labels import NoisyGradients, SelfConv
from sfumato.mechanisms.random import Generator
from sfumato.testing import seeded
from sfumato.training import Trainer
from sfumato.training.privacy import denoising

from .catalogue import CONFIDENCE, Planted, leaks

__all__ = ["BUGS"]

# --- classes ----------------------------------------------------------------------------------------------

ROWS = np.array([[0.1, 0.2], [0.3, -0.4], [-0.5, 0.6], [0.2, 0.1]])
LABELS = np.array(["no", "yes", "no", "perhaps"])


def classifier(random_state: Any) -> LogisticRegression:
    return LogisticRegression(
        epsilon=1.0,
        clip_norm=1.0,
        classes=("no", "yes", "perhaps"),
        method="output",
        random_state=random_state,
    )


def fit_replayed(seed: int) -> bool:
    """Fit with and without the only row of a class, with the same noise: does more change than may?"""

    def release(kept: slice, generator: Generator) -> tuple[Any, Any]:
        model = classifier(generator).fit(ROWS[kept], LABELS[kept])
        return model.coef_, model.intercept_

    # One row moves each of three models, and the intercept is at most as long as the weights.
    most = math.sqrt(3) * classifier(seed)._minimizer(dimension=3).sensitivity
    return leaks(
        lambda: check_sensitivity(release, slice(0, 4), slice(0, 3), sensitivity=most, generator=seeded(seed))
    )


def classes_from_the_data(patch: pytest.MonkeyPatch) -> None:
    original = LogisticRegression._learn

    def _learn(self, X, y, *, generator):
        self.classes = tuple(np.unique(y).tolist())
        return original(self, X, y, generator=generator)

    patch.setattr(LogisticRegression, "_learn", _learn)


# --- labels -----------------------------------------------------------------------------------------------

LABELED, BATCH, NOISE, STEPS, TRIALS = 200, 50, 2.0, 4, 20
DELTA = 0.02


@dataclass(kw_only=True)
class Watching:
    """Sees what a denoiser sees that shows the batch: who is in it, and the noisy gradient."""

    reveals_batches: bool = True
    seen: list[np.ndarray] = field(default_factory=list, repr=False)  # of each step, a number for each row

    def denoise(self, model, gradient, *, rows, generator):
        weight = gradient["weight"]
        told = ((weight[0] - weight[1]) / math.sqrt(2)).numpy().copy()
        self.seen.append(np.where(np.isin(np.arange(LABELED), rows), told, 0.0))
        return {name: torch.zeros_like(part) for name, part in gradient.items()}

    def statement(self):
        return "Watched."

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def labels_told_apart(seed: int) -> bool:
    """Train with batches that are shown, on rows in a column each: which label has each row?"""
    method = SelfConv(
        epsilon=1e6,  # no limit: noise and steps are given
        delta=DELTA,
        classes=2,
        public_size=LABELED,
        steps=STEPS * TRIALS,
        expected_batch_size=BATCH,
        noise_multiplier=NOISE,
    )
    model, watching = nn.Linear(LABELED, 2, bias=False), Watching()
    nn.init.zeros_(model.weight)
    labels = torch.arange(LABELED) % 2
    whole = method.mechanism()
    Trainer(
        model,
        (torch.eye(LABELED) * 1000, labels),
        mechanism=whole,
        public_size=LABELED,
        denoiser=watching,
        delta=DELTA,
        learning_rate=1.0,
        evaluate_every=whole.steps,
        progress=False,
        generator=seeded(seed),
    ).fit()
    # A run of some steps is told apart by the sum of what they show; one long run is many of them.
    sums = np.stack(watching.seen).reshape(TRIALS, STEPS, LABELED).sum(1)
    claim = whole.first(STEPS).price(delta=DELTA).guarantee("label")
    zeros, ones = (sums[:, labels.numpy() == label].ravel() for label in (0, 1))
    return audit_outputs(zeros, ones, claim=claim, confidence=CONFIDENCE).refuted


def amplify_shown_batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NoisyGradients, "_sampling", lambda self: None)  # Poisson batches, for all denoisers
    patch.setattr(denoising, "require", lambda denoiser, mechanism: None)


BUGS = (
    Planted(
        name="classes-read-from-the-data",
        bug="a classifier takes its classes from the labels it is given",
        found_by="replay on neighbors",
        plant=classes_from_the_data,
        audit=fit_replayed,
    ),
    Planted(
        name="amplification-claimed-for-selfconv",
        bug="batches that SelfConv shows are priced as secret Poisson samples",
        found_by="event search",
        plant=amplify_shown_batches,
        audit=labels_told_apart,
    ),
)
