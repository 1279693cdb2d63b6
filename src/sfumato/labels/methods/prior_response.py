# SPDX-License-Identifier: Apache-2.0
"""Randomized response among the likeliest labels: RRWithPrior.

k is chosen so that the report is the true label as often as possible, if labels are drawn from the prior:
P[report = label] = e^epsilon / (e^epsilon + k - 1) * (prior of the k likeliest). No epsilon-private report
of a label is right more often (proved in the source). Ties go to the smaller k and the lower class.
Probabilities are those of `mechanisms.randomized_response`, rounded towards noise, with secure bits. A label
outside of the k likeliest is first replaced by an even draw, which randomized response leaves exactly even.
The number of bits used does not depend on labels.

Guarantee  Whatever one label is, its report is at most e^epsilon times likelier than under any other label,
           for every prior. A label outside of the k likeliest is reported as one of them, drawn evenly. The
           prior must be public: known beforehand, or computed from features and from reports of OTHER
           labels. A prior computed from the label itself is not covered.
Neighbors  Replace-label.
Source     Ghazi, Golowich, Kumar, Manurangsi, Zhang 2021, "Deep learning with label differential privacy",
           arXiv:2102.06062, Algorithms 1 (RRTop-k) and 2 (RRWithPrior).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _check
from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import DpEvent
from sfumato.labels.input_checks import ArrayLike, check_classes, checked_labels, checked_prior
from sfumato.labels.methods.randomized_response import response
from sfumato.mechanisms import inputs
from sfumato.mechanisms.random import Generator, uniform_below

__all__ = ["RRWithPrior"]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RRWithPrior:
    """Report each label by randomized response among the classes that its prior makes likely.

    >>> mechanism = RRWithPrior(epsilon=1.0, classes=4)
    >>> mechanism.sizes([[0.9, 0.1, 0.0, 0.0], [0.4, 0.4, 0.1, 0.1]]).tolist()
    [1, 2]
    >>> mechanism.event()
    PureDpEvent(epsilon=1.0)
    """

    epsilon: float
    classes: int

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        inputs.settle(self, "epsilon")
        check_classes(self.classes)
        response(
            epsilon=self.epsilon, classes=self.classes
        )  # refuses an epsilon too small, for any smaller k too

    @property
    def relation(self) -> Relation:
        """Neighbors differ in one label."""
        return Relation.REPLACE_LABEL

    def event(self) -> DpEvent:
        """Describe what one report costs: epsilon, whatever the prior."""
        return PureDpEvent(self.epsilon)

    def sizes(self, prior: ArrayLike) -> Tensor:
        """Return k for each row of a prior [rows, classes]: the number of classes its reports come from."""
        return torch.from_numpy(_Lists.of(_rows(prior, self.classes), self.epsilon).sizes)

    def release(self, labels: ArrayLike, *, prior: ArrayLike, generator: Generator | None = None) -> Tensor:
        """Return one report for each label, int64 on the CPU. The prior has a row for each label, or one
        row.

        >>> RRWithPrior(epsilon=50.0, classes=3).release([2, 0], prior=[1.0, 1.0, 1.0])
        tensor([2, 0])
        """
        rows = len(labels)
        true = checked_labels(labels, classes=self.classes, rows=rows).numpy()
        lists = _Lists.of(checked_prior(prior, classes=self.classes, rows=rows), self.epsilon)
        ranks = lists.ranks[np.arange(rows), true]
        reports = lists.order[:, 0].copy()  # if k is 1 nothing is drawn
        for size in np.unique(lists.sizes[lists.sizes > 1]).tolist():
            some = np.flatnonzero(lists.sizes == size)
            reports[some] = lists.order[some, self._place(ranks[some], size, generator)]
        return torch.from_numpy(reports)

    def likelihoods(self, reports: Tensor, *, prior: ArrayLike) -> Tensor:
        """Return the log of the probability of each report under each class: float64 [rows, classes]."""
        lists = _Lists.of(checked_prior(prior, classes=self.classes, rows=len(reports)), self.epsilon)
        noise = np.array([self._noise(size) for size in range(1, self.classes + 1)])[lists.sizes - 1]
        inside = lists.ranks < lists.sizes[:, None]
        chances = np.where(inside, noise[:, None], 1.0) / lists.sizes[:, None]
        chances[np.arange(len(reports)), reports.cpu().numpy()] += 1 - noise
        return torch.from_numpy(np.log(chances))

    def _place(self, ranks: Integers, size: int, generator: Generator | None) -> Integers:
        """Report the place of each label in its list of `size` classes."""
        evenly = uniform_below(size, ranks.size, generator)
        among = response(epsilon=self.epsilon, classes=size)
        return among.release(np.where(ranks < size, ranks, evenly), generator=generator)

    def _noise(self, size: int) -> float:
        return 1.0 if size == 1 else response(epsilon=self.epsilon, classes=size).noise_parameter


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lists:
    """For each row: the classes from the likeliest on, the rank of each class, and how many are reported."""

    order: Integers
    ranks: Integers
    sizes: Integers

    @classmethod
    def of(cls, prior: Floats, epsilon: float) -> "_Lists":
        order = np.argsort(-prior, axis=1, kind="stable")
        covered = np.take_along_axis(prior, order, axis=1).cumsum(1)
        others = np.arange(
            prior.shape[1]
        )  # e^epsilon / (e^epsilon + k - 1), written so that it cannot overflow
        right = covered / (1 + others * np.exp(-epsilon))
        sizes = right.argmax(1) + 1
        return cls(order=order, ranks=np.argsort(order, axis=1), sizes=sizes)


def _rows(prior: ArrayLike, classes: int) -> Floats:
    shape = np.shape(inputs.array(prior.detach().cpu() if isinstance(prior, Tensor) else prior, what="prior"))
    return checked_prior(prior, classes=classes, rows=shape[0] if len(shape) == 2 else 1)
