# SPDX-License-Identifier: Apache-2.0
"""Laplace noise on one-hot labels, and posteriors by Bayes: ALIBI.

Noise is drawn on the grid of multiples of 2^-10 by the exact discrete Laplace distribution with secure bits,
so no floating-point noise has to be trusted; an entry moves by 2^10 steps of the grid. Given a prior, the
posterior of a class c is proportional to prior_c * exp((|o_c| - |o_c - 1|) / scale): the other entries
cancel. The prior of a row is a moving average of the predictions of the model in training, from an even
start. That model was trained on noisy labels only, so the prior costs nothing.

Guarantee  Whatever one label is, its noisy one-hot vector is at most e^epsilon times likelier than under any
           other label. A one-hot vector has one entry 1, else zeros. Replacing a label moves two entries by
           1 each, an L1 distance of 2, so Laplace noise of scale 2 / epsilon on each entry is enough. Bayes
           is post-processing.
Neighbors  Replace-label.
Source     Malek, Mironov, Prasad, Shilov, Tramer 2021, "Antipodes of label differential privacy: PATE and
           ALIBI", arXiv:2106.03408 (Additive Laplace with Iterative Bayesian Inference).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import DpEvent
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.labels.input_checks import ArrayLike, check_classes, checked_labels
from sfumato.mechanisms import inputs
from sfumato.mechanisms.additive import DiscreteLaplace
from sfumato.mechanisms.discrete import discrete_laplace
from sfumato.mechanisms.random import Generator

__all__ = ["BayesTargets", "NoisyOneHot", "check_decay"]

_STEPS = 2**10  # of the grid, from 0 to 1
_MOVED = 2  # entries that change when a label is replaced


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisyOneHot:
    """One-hot labels with Laplace noise on each entry.

    >>> NoisyOneHot(epsilon=1.0, classes=10).scale
    2.0
    >>> NoisyOneHot(epsilon=50.0, classes=3).release([2, 0]).round().abs()
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """

    epsilon: float
    classes: int

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        inputs.settle(self, "epsilon")
        check_classes(self.classes)
        self._entry()  # refuses an epsilon whose noise does not fit the grid

    @property
    def relation(self) -> Relation:
        """Neighbors differ in one label."""
        return Relation.REPLACE_LABEL

    @property
    def scale(self) -> float:
        """The scale of the noise on each entry: 2 / epsilon, rounded up."""
        return self._entry().scale / _STEPS

    def event(self) -> DpEvent:
        """Describe what one label costs: two entries of its vector change, and each has independent noise."""
        return dp.SelfComposedDpEvent(self._entry().event(), _MOVED)

    def release(self, labels: ArrayLike, *, generator: Generator | None = None) -> Tensor:
        """Return a noisy one-hot vector for each label: float32 [rows, classes] on the CPU."""
        true = checked_labels(labels, classes=self.classes, rows=len(labels))
        steps = F.one_hot(true, self.classes) * _STEPS
        steps += discrete_laplace(steps.shape, scale=self._entry().scale, generator=generator)
        return (steps.double() / _STEPS).float()

    def likelihoods(self, noisy: Tensor) -> Tensor:
        """Return the log of each vector's chance under each class, up to a number for each row."""
        return (noisy.abs() - (noisy - 1).abs()) / self.scale

    def _entry(self) -> DiscreteLaplace:
        """Return the mechanism of one entry, in steps of the grid."""
        return DiscreteLaplace.calibrated(
            epsilon=self.epsilon / _MOVED, sensitivity=_STEPS, relation=Relation.REPLACE_LABEL
        )


class BayesTargets:
    """Posterior weights of the classes, under a prior that follows the model.

    >>> targets = BayesTargets(torch.tensor([[0.0, 2.0]]), prior_decay=0.0)
    >>> targets.at(torch.tensor([0]), torch.tensor([[2.0, 0.0]]))  # the model contradicts the release
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, log_likelihoods: Tensor, *, prior_decay: float) -> None:
        check_decay(prior_decay)
        self._likelihoods = log_likelihoods
        self._prior = torch.full_like(log_likelihoods, 1 / log_likelihoods.shape[1])
        self._decay = prior_decay

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._likelihoods)

    def at(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Update the prior of some rows with the predictions of the model, and return their posteriors."""
        self._likelihoods, self._prior = self._likelihoods.to(logits.device), self._prior.to(logits.device)
        rows = rows.to(logits.device)
        predicted = logits.detach().to(self._prior.dtype).softmax(1)
        self._prior[rows] = prior = torch.lerp(predicted, self._prior[rows], self._decay)
        return (prior.log() + self._likelihoods[rows]).softmax(1)


def check_decay(prior_decay: float) -> None:
    """Raise unless the share of the old prior is in [0, 1)."""
    _check.non_negative(prior_decay=prior_decay)
    if prior_decay >= 1:
        raise InvalidParameterError(f"prior_decay must be below 1, but {prior_decay!r} was given.")
