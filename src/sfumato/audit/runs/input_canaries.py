# SPDX-License-Identifier: Apache-2.0
"""Audits of a training procedure as a black box: input canaries, one run, and the final model alone.

Canaries are rows that are unlike the data, such as rows with random labels, which a model can only memorize.
Each is in with probability 1/2, independently. The training procedure needs no change. The final model shows
less than every noisy gradient does: expect bounds far below the claim, and below those of `canaries`. Many
runs on neighboring data (`audit_mechanism`) show more, at a higher cost.

Guarantee  All canaries are in one model, so their scores are not independent. The bound that is used holds
           nevertheless, for every kind of noise: `one_run.binary_guesses`. `gaussian=True` adds
           `one_run.f_dp`, and each bound then gets half of the error. It shows more, and holds only for
           mechanisms that are mu-GDP for some mu: Gaussian noise in every step, with all units in every step.
           For other mechanisms (Laplace, randomized response, a run that samples its batches) it would
           refute true claims.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting.guarantee import Guarantee
from sfumato.audit.evidence import one_run
from sfumato.audit.evidence.results import AuditResult
from sfumato.audit.evidence.terms import confidence_of_each
from sfumato.audit.models.shadow_models import coin_flips, loss_scores
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, uniform_below
from sfumato.training.engine.losses import Loss, cross_entropy

__all__ = ["audit_inputs", "mislabeled"]

Rows = tuple[Tensor, Tensor]  # features and labels
Train = Callable[[Rows], nn.Module]  # canaries that are in -> the model trained on them and on the data


def mislabeled(features: Tensor, *, classes: int, generator: Generator | None = None) -> Rows:
    """Return rows with labels drawn at random: the simplest canaries.

    Args:
        features: The features of the rows, one row each.
        classes: The number of classes that labels are drawn from, at least 2.
        generator: The source of the labels. None means operating-system entropy.

    Returns:
        The features and their random labels.

    Raises:
        InvalidParameterError: If there are fewer than 2 classes.

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
    """Train once with a random half of the canaries, and return the lower bound that their losses give.

    Args:
        train: A function that takes the canaries that are in, trains on them and on its data, and returns the
            trained model.
        canaries: Features and labels of all canaries.
        claim: The guarantee that is claimed for the trained model.
        subject: What is audited, in a few words.
        loss: The loss by which canaries are scored, one number for each row.
        confidence: The probability with which the bounds hold together.
        gaussian: True adds a bound that holds only if Gaussian noise is added to all units in every step.
        generator: The source that decides which canaries are in. None means operating-system entropy.

    Returns:
        The claim beside the lower bounds, and the scores of the canaries.

    Raises:
        InvalidParameterError: If the canaries do not fit together, if there are too few of them, or if
            `train` does not return a model.

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
