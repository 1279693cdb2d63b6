# SPDX-License-Identifier: Apache-2.0
"""Which method of label privacy to use: a rule of public numbers.

Privacy    Epsilon, the number of classes and the number of rows are public, and no label or feature is looked
           at: asking costs nothing, and cannot leak. Trying several methods on the same labels costs.
Reports    Randomized response tells the label with chance s = (e^epsilon - 1) / (e^epsilon + classes - 1),
           and otherwise a class drawn evenly. From s = 0.38 on, which is an epsilon of about 2 for 10
           classes, methods that report each label win in the tables of Ghazi et al. 2024 (MNIST,
           Fashion-MNIST, KMNIST, CIFAR-10); stages help until reports are almost always true.
Clusters   Below, where `cluster_count` affords 5 clusters for each class. What it takes for granted is that
           like features mean like labels; where they do not, `otherwise` has the method to use.
Gradients  Else, noisy gradients: AltConv below epsilon 0.3, DP-SGD from there on. Both bounds and the one for
           clusters come from validation rows of MNIST and Fashion-MNIST with settings fixed beforehand.
Nothing    Where noise hides even the size of a class, no method learns: `useful` is False.
"""

import math
from dataclasses import dataclass

from sfumato import _check
from sfumato.labels.input_checks import check_classes
from sfumato.labels.methods.clusters import cluster_count
from sfumato.labels.methods.released_labels import label_share

__all__ = ["Choice", "choose"]

_TELLING = 0.38  # chance s from which reports win
_ALMOST_TRUE = 0.95  # chance s from which stages gain nothing
_CLUSTERS_PER_CLASS = 5
_GENTLE = 0.3  # epsilon below which noisy gradients are worth denoising
_SCALES_PER_CLASS = 6.0  # times log(classes) scales of noise in rows of a class: as in `clusters`


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A recommendation, by the name of a method, and the reason for it."""

    method: str
    why: str
    otherwise: (
        str  # the next best; where clusters are advised, the best for features that do not cluster well
    )
    useful: bool = True  # whether anything can be learned at all


def choose(epsilon: float, classes: int, size: int, *, contribution_bound: int = 1) -> Choice:
    """Recommend a method for `size` rows whose labels are secret, and say why.

    >>> choose(0.1, 10, 60_000).method, choose(4.0, 10, 60_000).method
    ('clusters', 'multi-stage')
    >>> print(choose(0.1, 10, 60_000).why)
    At epsilon 0.1, 60000 rows afford 217 clusters of like features whose majority noise seldom overturns, ...
    """
    _check.positive(epsilon=epsilon)
    check_classes(classes)
    _check.count(size=size, contribution_bound=contribution_bound)
    asked = _Asked(epsilon, classes, size, contribution_bound)
    telling = asked.telling
    if telling >= _TELLING and size * telling >= classes:
        return _reports(asked, telling)
    if asked.hidden:
        return _nothing(asked)
    clusters = cluster_count(size, classes=classes, epsilon=epsilon, contribution_bound=contribution_bound)
    if clusters >= _CLUSTERS_PER_CLASS * classes:
        return _clusters(asked, clusters)
    return _gradients(asked)


@dataclass(frozen=True, slots=True)
class _Asked:
    epsilon: float
    classes: int
    size: int
    contribution_bound: int

    @property
    def telling(self) -> float:
        """The chance that a report tells the label, where a unit's labels share its epsilon."""
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


def _reports(asked: _Asked, telling: float) -> Choice:
    said = f"At {asked}, a randomized report tells the label with chance {telling:.2f}"
    if telling >= _ALMOST_TRUE:
        why = f"{said}, so that plain reports are almost as good as labels, and the simplest."
        return Choice(method="randomized-response", why=why, otherwise="multi-stage")
    why = (
        f"{said} (else a class drawn evenly), which is enough to learn from reports of single labels; stages "
        "make later reports truer."
    )
    return Choice(method="multi-stage", why=why, otherwise="alibi")


def _nothing(asked: _Asked) -> Choice:
    why = (
        f"At {asked}, nothing useful can be learned from {asked.size} rows: counts of labels have noise of "
        f"scale {asked.noise:g}, and a class of {asked.classes} has {asked.size / asked.classes:.3g} rows on "
        "average. Use more rows, fewer classes or a larger epsilon."
    )
    return Choice(method="clusters", why=why, otherwise=_denoised_or_not(asked), useful=False)


def _clusters(asked: _Asked, clusters: int) -> Choice:
    otherwise = _denoised_or_not(asked)
    why = (
        f"At {asked}, {asked.size} rows afford {clusters} clusters of like features whose majority noise "
        f"seldom overturns, at least {_CLUSTERS_PER_CLASS} for each class, and their labels are paid for "
        f"once. Where like features do not mean like labels, use {otherwise}."
    )
    return Choice(method="clusters", why=why, otherwise=otherwise)


def _gradients(asked: _Asked) -> Choice:
    method = _denoised_or_not(asked)
    few = f"At {asked}, {asked.size} rows afford too few clusters for {asked.classes} classes"
    if method == "altconv":
        why = f"{few}, and gradients are so noisy that projecting them on what features allow pays."
        return Choice(method=method, why=why, otherwise="dp-sgd")
    why = f"{few}, and gradients have little enough noise to be used as they are."
    return Choice(method=method, why=why, otherwise="altconv")


def _denoised_or_not(asked: _Asked) -> str:
    return "altconv" if asked.epsilon < _GENTLE else "dp-sgd"
