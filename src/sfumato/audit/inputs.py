# SPDX-License-Identifier: Apache-2.0
"""Audit a training procedure from outside: input canaries, one run, and the final model alone.

Canaries   Rows that are unlike the data, such as ones with random labels, which a model learns only by heart.
           Each is in with chance 1/2, independently. Whoever trains needs no change: a black box.
Guarantee  All canaries are in one model, so their scores are not independent: the bounds are those that hold
           nevertheless, `one_run.binary_guesses` and `one_run.f_dp`, each with half of the error.
Weak       The final model shows less than every noisy gradient does: expect bounds far below the claim, and
           below those of `canaries`. Many runs on neighboring data (`audit_mechanism`) show more, dearer.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting.guarantee import Guarantee
from sfumato.audit import one_run
from sfumato.audit.results import AuditResult, confidence_of_each
from sfumato.audit.shadows import coin_flips, loss_scores
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, uniform_below
from sfumato.training.losses import Loss, cross_entropy

__all__ = ["audit_inputs", "mislabeled"]

Rows = tuple[Tensor, Tensor]  # features and labels
Train = Callable[[Rows], nn.Module]  # canaries that are in -> the model trained on them and on the data


def mislabeled(features: Tensor, *, classes: int, generator: Generator | None = None) -> Rows:
    """Return rows with labels drawn at random: canaries of the simplest kind.

    >>> mislabeled(torch.zeros(3, 2), classes=2)[1].shape
    torch.Size([3])
    """
    _check.count(classes=classes)
    return features, torch.from_numpy(uniform_below(classes, len(features), generator))


def audit_inputs(
    train: Train,
    canaries: Rows,
    *,
    claim: Guarantee,
    subject: str = "training, seen from outside",
    loss: Loss = cross_entropy,
    confidence: float = 0.95,
    generator: Generator | None = None,
) -> AuditResult:
    """Train once with a random half of the canaries, and return what their losses prove.

    `train` is given the canaries that are in, adds them to its data, and returns the trained model.
    """
    features, labels = canaries
    if len(features) != len(labels):
        raise InvalidParameterError(
            f"canaries must be features and labels of the same number of rows, not {len(features)} and "
            f"{len(labels)}."
        )
    present = coin_flips(len(features), generator=generator)
    inside = torch.from_numpy(np.flatnonzero(present))
    model = train((features[inside], labels[inside]))
    scores = loss_scores(model, canaries, loss=loss)
    each = confidence_of_each(confidence, 2)
    bounds = tuple(
        bound(scores[present], scores[~present], delta=claim.delta, confidence=each)
        for bound in (one_run.binary_guesses, one_run.f_dp)
    )
    return AuditResult(
        subject=subject,
        claim=claim,
        bounds=bounds,
        in_scores=tuple(scores[present].tolist()),
        out_scores=tuple(scores[~present].tolist()),
    )
