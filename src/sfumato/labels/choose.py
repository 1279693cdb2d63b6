# SPDX-License-Identifier: Apache-2.0
"""The recommendation of a method of label privacy, from public numbers alone.

- Randomized response reports the label with probability s = (e^epsilon - 1) / (e^epsilon + classes - 1), and
  otherwise a class drawn evenly. From s = 0.38 on, which is an epsilon of about 2 for 10 classes, methods
  that report each label win in the tables of Ghazi et al. 2024 (MNIST, Fashion-MNIST, KMNIST, CIFAR-10).
  Stages help until reports are almost always true.
- Below that, clusters are recommended if `cluster_count` allows 5 clusters for each class. They assume that
  rows with similar features have similar labels; `otherwise` names the method for features that do not.
- Else noisy gradients are recommended: AltConv below epsilon 0.3, DP-SGD from there on. Both bounds and the
  one for clusters come from validation rows of MNIST and Fashion-MNIST with settings fixed beforehand.
- If noise hides even the size of a class, no method learns: `useful` is False.

Guarantee  Epsilon, the number of classes and the number of rows are public, and no label or feature is used,
           so a recommendation costs nothing. Trying several methods on the same labels costs budget.
"""

import math
from dataclasses import dataclass

from sfumato import _check
from sfumato.labels.input_checks import check_classes
from sfumato.labels.methods.clusters import cluster_count
from sfumato.labels.methods.released_labels import label_share

__all__ = ["Choice", "choose"]

_ENOUGH_TRUTH = 0.38  # chance s from which reports win
_ALMOST_TRUE = 0.95  # chance s from which stages gain nothing
_CLUSTERS_PER_CLASS = 5
_GENTLE = 0.3  # epsilon below which noisy gradients are worth denoising
_SCALES_PER_CLASS = 6.0  # times log(classes) scales of noise in rows of a class: as in `clusters`


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A recommended method, and the reason for it.

    Attributes:
        method: The name of the method.
        why: The reason, in a sentence or two.
        otherwise: The name of the next best method; if clusters are recommended, the best for features that
            do not cluster well.
        useful: Whether anything can be learned at all.
    """

    method: str
    why: str
    otherwise: str
    useful: bool = True


def choose(epsilon: float, classes: int, size: int, *, contribution_bound: int = 1) -> Choice:
    """Recommend a method for rows whose labels are secret.

    Args:
        epsilon: The privacy budget of the run.
        classes: The number of classes.
        size: The number of rows, public.
        contribution_bound: The largest number of labels one user owns.

    Returns:
        The recommendation.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> choose(0.1, 10, 60_000).method, choose(4.0, 10, 60_000).method
    ('clusters', 'multi-stage')
    >>> print(choose(0.1, 10, 60_000).why)
    At epsilon 0.1, 60000 rows allow 217 clusters of similar features whose majority label noise seldom ...
    """
    _check.positive(epsilon=epsilon)
    check_classes(classes)
    _check.count(size=size, contribution_bound=contribution_bound)
    numbers = _Numbers(epsilon, classes, size, contribution_bound)
    truth = numbers.truth
    if truth >= _ENOUGH_TRUTH and size * truth >= classes:
        return _reports(numbers, truth)
    if numbers.hidden:
        return _nothing(numbers)
    clusters = cluster_count(size, classes=classes, epsilon=epsilon, contribution_bound=contribution_bound)
    if clusters >= _CLUSTERS_PER_CLASS * classes:
        return _clusters(numbers, clusters)
    return _gradients(numbers)


@dataclass(frozen=True, slots=True)
class _Numbers:
    epsilon: float
    classes: int
    size: int
    contribution_bound: int

    @property
    def truth(self) -> float:
        """The probability that a report is the label, if the labels of a unit share its epsilon."""
        other = math.exp(
            -label_share(self.epsilon, self.contribution_bound)
        )  # of which classes - 1: no overflow
        return (1 - other) / (1 + (self.classes - 1) * other)

    @property
    def noise(self) -> float:
        """The scale of the noise on a count of labels."""
        return 2 * self.contribution_bound / self.epsilon

    @property
    def hidden(self) -> bool:
        """Whether a class has fewer rows than noise hides."""
        return self.size < self.classes * _SCALES_PER_CLASS * math.log(self.classes) * self.noise

    def __str__(self) -> str:
        shared = (
            f" for up to {self.contribution_bound} labels of a user" if self.contribution_bound > 1 else ""
        )
        return f"epsilon {self.epsilon:g}{shared}"


def _reports(numbers: _Numbers, truth: float) -> Choice:
    start = f"At {numbers}, a randomized report is the label with probability {truth:.2f}"
    if truth >= _ALMOST_TRUE:
        why = f"{start}. Plain reports are almost as good as labels, and the simplest method."
        return Choice(method="randomized-response", why=why, otherwise="multi-stage")
    why = (
        f"{start} (else a class drawn evenly), which is enough to learn from reports of single labels. With "
        "stages, later reports are true more often."
    )
    return Choice(method="multi-stage", why=why, otherwise="alibi")


def _nothing(numbers: _Numbers) -> Choice:
    why = (
        f"At {numbers}, nothing useful can be learned from {numbers.size} rows: counts of labels have noise "
        f"of scale {numbers.noise:g}, and a class has {numbers.size / numbers.classes:.3g} rows on average. "
        "Use more rows, fewer classes or a larger epsilon."
    )
    return Choice(method="clusters", why=why, otherwise=_denoised_or_not(numbers), useful=False)


def _clusters(numbers: _Numbers, clusters: int) -> Choice:
    otherwise = _denoised_or_not(numbers)
    why = (
        f"At {numbers}, {numbers.size} rows allow {clusters} clusters of similar features whose majority "
        f"label noise seldom changes, at least {_CLUSTERS_PER_CLASS} for each class. Labels are charged "
        f"once. If rows with similar features do not have similar labels, use {otherwise}."
    )
    return Choice(method="clusters", why=why, otherwise=otherwise)


def _gradients(numbers: _Numbers) -> Choice:
    method = _denoised_or_not(numbers)
    few = f"At {numbers}, {numbers.size} rows allow too few clusters for {numbers.classes} classes"
    if method == "altconv":
        why = f"{few}. Gradients are so noisy that projecting them improves the result."
        return Choice(method=method, why=why, otherwise="dp-sgd")
    why = f"{few}. Gradients have little noise and are used as they are."
    return Choice(method=method, why=why, otherwise="altconv")


def _denoised_or_not(numbers: _Numbers) -> str:
    return "altconv" if numbers.epsilon < _GENTLE else "dp-sgd"
