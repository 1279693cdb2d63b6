# SPDX-License-Identifier: Apache-2.0
"""Accuracy against epsilon where two parties hold different columns of breast cancer data.

The first 15 columns are one party's, the other 15 another's. A third party has the labels. The bottom
networks of `learn_top` were trained on every fifth row of the training set, which is taken for public and
left out of the private rows. Epsilon is that of one party's columns of one person, replace-one neighbors;
where gradients are returned, it is shared among embeddings and steps, and labels have the same epsilon. The
larger class has 62% of the test set.
"""

from collections.abc import Iterator, Sequence
from statistics import mean

import torch
from models.results import Row
from torch import Tensor, nn

from sfumato.datasets.embedded import breast_cancer
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.federated.vertical.learn_top import learn_top
from sfumato.federated.vertical.parties import FeatureParty, LabelParty
from sfumato.federated.vertical.train_split import SplitSteps, train_split
from sfumato.labels import LabelDpSgd, Learner
from sfumato.mechanisms import FastGenerator

DELTA, COLUMNS, PUBLIC_EVERY = 1e-5, 15, 5
EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0, 1e6)
LABEL_EPSILON = 2.0
EPOCHS = 8


def rows(quick: bool) -> Iterator[Row]:
    """Measure the accuracy on the test set, with noise on its embeddings as on all others."""
    seeds = range(2 if quick else 5)
    for epsilon in EPSILONS[3:] if quick else EPSILONS:
        subject = f"breast cancer, columns of two parties, epsilon {epsilon:g}"
        once = mean(embeddings_once(epsilon, seed) for seed in seeds)
        yield Row(subject=subject, name="embeddings once, top stays", value=100 * once)
        leaves = mean(embeddings_once(epsilon, seed, released=True) for seed in seeds)
        name = f"embeddings once, top leaves (labels epsilon {LABEL_EPSILON:g})"
        yield Row(subject=subject, name=name, value=100 * leaves)
        back = mean(gradients_back(epsilon, seed) for seed in seeds)
        yield Row(subject=subject, name=f"noisy gradients, {EPOCHS} epochs", value=100 * back)


def _columns(features: Tensor) -> list[Tensor]:
    return [features[:, :COLUMNS], features[:, COLUMNS:]]


def _rows() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return private rows and public ones."""
    data = breast_cancer().train
    public = torch.arange(len(data.labels)) % PUBLIC_EVERY == 0
    centered = data.features - 0.5
    return (centered[~public], data.labels[~public]), (centered[public], data.labels[public])


def _test() -> tuple[Sequence[Tensor], Tensor]:
    data = breast_cancer().test
    return _columns(data.features - 0.5), data.labels


def _public_bottom(columns: Tensor, labels: Tensor) -> nn.Module:
    """Return a network to one number, trained on public rows: the score of one class over the other."""
    bottom = nn.Linear(columns.shape[1], 1)
    optimizer = torch.optim.Adam(bottom.parameters(), lr=0.05, weight_decay=1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(bottom(columns)[:, 0], labels.float())
        loss.backward()
        optimizer.step()
    return bottom


def embeddings_once(epsilon: float, seed: int, *, released: bool = False) -> float:
    """Return the accuracy where embeddings of one number are sent once."""
    torch.manual_seed(seed)
    (features, labels), (shown, known) = _rows()
    noise = ClippedNoise.calibrated(epsilon=epsilon, delta=DELTA, clip_norm=2.0)
    parties = [
        FeatureParty(name=name, columns=own, bottom=_public_bottom(seen, known), embeddings=noise)
        for name, own, seen in zip(("clinic", "laboratory"), _columns(features), _columns(shown), strict=True)
    ]
    held = LabelParty(labels=labels, classes=2, top=nn.Linear(2, 2))
    method = LabelDpSgd(
        epsilon=LABEL_EPSILON,
        delta=DELTA,
        classes=2,
        public_size=len(labels),
        steps=60,
        expected_batch_size=90,
        clip_norm=1.0,
        learning_rate=0.5,
    )
    run = learn_top(
        parties,
        held,
        delta=DELTA,
        method=method if released else None,
        learner=None if released else Learner(epochs=60, batch_size=32, learning_rate=0.02),
        evaluation=_test(),
        generator=FastGenerator(seed),
    )
    return run.accuracy or 0.0


def gradients_back(epsilon: float, seed: int) -> float:
    """Return the accuracy where all parts learn from private rows alone."""
    torch.manual_seed(seed)
    (features, labels), _ = _rows()

    def noise(clip_norm: float) -> ClippedNoise:
        return ClippedNoise.calibrated(epsilon=epsilon, delta=DELTA, releases=2 * EPOCHS, clip_norm=clip_norm)

    parties = [
        FeatureParty(
            name=name, columns=own, bottom=nn.Linear(COLUMNS, 1), embeddings=noise(1.0), updates=noise(0.5)
        )
        for name, own in zip(("clinic", "laboratory"), _columns(features), strict=True)
    ]
    held = LabelParty(labels=labels, classes=2, top=nn.Linear(2, 2), gradients=noise(0.3), updates=noise(0.5))
    run = train_split(
        parties,
        held,
        delta=DELTA,
        steps=SplitSteps(epochs=EPOCHS, batch_size=46, learning_rate=4.0),
        evaluation=_test(),
        generator=FastGenerator(seed),
    )
    return run.accuracy or 0.0
