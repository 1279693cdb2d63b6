# SPDX-License-Identifier: Apache-2.0
"""Audit a training procedure from outside: input canaries, one run, and the final model alone.

Canaries   Rows that are unlike the data, such as ones with random labels, which a model learns only by heart.
           Each is in with chance 1/2, independently. Whoever trains needs no change: a black box.
Guarantee  All canaries are in one model, so their scores are not independent: the bound is one that holds
           nevertheless, and for every kind of noise, `one_run.binary_guesses`.
Gaussian   `gaussian=True` adds `one_run.f_dp`, each bound then with half of the error. It shows more, and
           holds only for what is mu-GDP for some mu: Gaussian noise in every step, with all units in every
           step. Of other mechanisms (Laplace, randomized response, a run that samples its batches) it would
           call true claims false.
Weak       The final model shows less than every noisy gradient does: expect bounds far below the claim, and
           below those of `canaries`. Many runs on neighboring data (`audit_mechanism`) show more, dearer.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting.guarantee import Guarantee
from sfumato.audit.evidence import one_run
from sfumato.audit.evidence.results import AuditResult, confidence_of_each
from sfumato.audit.models.shadow_models import coin_flips, loss_scores
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, uniform_below
from sfumato.training.engine.losses import Loss, cross_entropy

__all__ = ["audit_inputs", "mislabeled"]

Rows = tuple[Tensor, Tensor]  # features and labels
Train = Callable[[Rows], nn.Module]  # canaries that are in -> the model trained on them and on the data


def mislabeled(features: Tensor, *, classes: int, generator: Generator | None = None) -> Rows:
    """Return rows with labels drawn at random: canaries of the simplest kind.

    >>> mislabeled(torch.zeros(3, 2), classes=2)[1].shape
    torch.Size([3])
    """
    _check.count(classes=classes)
    if classes < 2:
        raise InvalidParameterError(
            f"a label drawn from classes={classes} is what it was: canaries need 2 classes or more."
        )
    return features, torch.from_numpy(uniform_below(classes, len(features), generator))


def audit_inputs(
    train: Train,
    canaries: Rows,
    *,
    claim: Guarantee,
    subject: str = "training, seen from outside",
    loss: Loss = cross_entropy,
    confidence: float = 0.95,
    gaussian: bool = False,
    generator: Generator | None = None,
) -> AuditResult:
    """Train once with a random half of the canaries, and return what their losses prove.

    `train` is given the canaries that are in, adds them to its data, and returns the trained model. Say
    `gaussian` only where the claim is that of Gaussian noise on all units ("Gaussian" above).

    >>> from sfumato.accounting.guarantee import Relation
    >>> claim = Guarantee(epsilon=1.0, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="example")
    >>> canaries = mislabeled(torch.zeros(400, 2), classes=2)
    >>> audit_inputs(lambda rows: nn.Linear(2, 2), canaries, claim=claim).refuted  # it learns from nobody
    False
    """
    features, labels = canaries
    if len(features) != len(labels):
        raise InvalidParameterError(
            f"canaries must be features and labels of the same number of rows, not {len(features)} and "
            f"{len(labels)}."
        )
    present = coin_flips(len(features), generator=generator)
    inside = torch.from_numpy(np.flatnonzero(present))
    scores = loss_scores(_trained(train, (features[inside], labels[inside])), canaries, loss=loss)
    tried = (one_run.binary_guesses, one_run.f_dp) if gaussian else (one_run.binary_guesses,)
    each = confidence_of_each(confidence, tried)
    bounds = tuple(
        bound(scores[present], scores[~present], delta=claim.delta, confidence=each) for bound in tried
    )
    return AuditResult(
        subject=subject,
        claim=claim,
        bounds=bounds,
        in_scores=tuple(scores[present].tolist()),
        out_scores=tuple(scores[~present].tolist()),
    )


def _trained(train: Train, rows: Rows) -> nn.Module:
    model = train(rows)
    if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(
            f"train must return the trained model, but a {type(model).__name__} came back: end it by "
            "`return model`."
        )
    return model
