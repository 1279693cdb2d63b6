# SPDX-License-Identifier: Apache-2.0
"""Labels of public clusters: count each cluster's labels, add noise once, and smooth what comes out.

Guarantee  Rows are put into clusters by their public features alone. Replacing one label moves two counts of
           one cluster by 1 each: 2 added up, sqrt(2) in norm, however many clusters there are. All counts
           get noise for the whole epsilon, once; `event()` is what that costs.
Unit       One label, or a user who owns up to k of them, in whichever clusters: in cluster c, with k_c of the
           rows, counts move by at most 2 k_c added up and by a square of at most 2 k_c^2 (counts are not
           negative), so by 2 k added up and sqrt(2) k in norm. Who owns which row is public.
Noise      Discrete Laplace where delta is 0, discrete Gaussian where it is above: `statistics.noise`.
Neighbors  Replace-label. Features, clusters, their sizes and the number of classes are public.
How many   `cluster_count` says how many clusters to make: public numbers in, before any label is seen.
Smoothing  Post-processing: features and noisy counts only. `soft_labels` takes the share of a class among
           like rows for a Gaussian process: smooth along the spectrum of public features, with a part of its
           own for each cluster, seen through the noise whose size is known. Small clusters borrow from those
           nearby. Sums of noisy counts are free as well (`LabelCounts.coarser`), and so is learning from the
           result, predicting, and learning again (`rounds`).
Edges      A cluster without rows has noise for counts. Counts below zero stay, as clamping would bias sums.
Source     Counts: Dwork, McSherry, Nissim, Smith 2006. Smoothing: Rasmussen, Williams 2006, equation 2.25.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import DpEvent
from sfumato.errors import InvalidParameterError
from sfumato.labels.features import Spectrum
from sfumato.labels.input_checks import Given, check_classes, checked_labels
from sfumato.labels.learning import Released, Teach, soft_cross_entropy
from sfumato.labels.projection.simplex import onto_simplex
from sfumato.mechanisms import inputs
from sfumato.mechanisms.random import Generator
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts

__all__ = ["ClusterLabels", "LabelCounts", "cluster_count", "soft_labels"]

_ROWS_FOR_NOISE = 6.0  # times log(classes) scales of noise: rows for a majority that noise will not overturn
_LEAST_ROWS = 60  # of a cluster on average; below, noise is no reason to be coarser and k-means grows slow
_SMOOTH = 0.09  # variance of a class's share along the spectrum: shares range over [0, 1], so 0.3^2
_OWN = 0.02  # variance of what one cluster has of its own
_MIXED = 0.05  # variance that labels of like rows add to a count, for each row
_DIFFUSION = 10  # power of the eigenvalues in the prior, as in Spectrum.points


def cluster_count(public_size: int, *, classes: int, epsilon: float, contribution_bound: int = 1) -> int:
    """Return how many clusters to make of so many rows: a rule of public numbers, fixed beforehand.

    An average cluster has 6 log(classes) scales of noise (2 * contribution_bound / epsilon) in rows, and 60
    at least. There are never fewer clusters than classes, where rows allow.

    >>> cluster_count(60_000, classes=10, epsilon=0.1), cluster_count(60_000, classes=10, epsilon=1.0)
    (217, 1000)
    """
    _check.count(public_size=public_size, contribution_bound=contribution_bound)
    _check.positive(epsilon=epsilon)
    check_classes(classes)
    for_noise = _ROWS_FOR_NOISE * math.log(classes) * 2 * contribution_bound / epsilon
    affordable = int(public_size / max(for_noise, _LEAST_ROWS))
    return min(max(affordable, classes), public_size)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LabelCounts:
    """Noisy counts of each cluster's labels, with what is public about them."""

    counts: Tensor  # float64 [clusters, classes]: whole numbers, some below zero
    sizes: Tensor  # int64 [clusters]: rows of each, public
    variances: Tensor  # float64 [clusters]: of the noise on each of a cluster's counts, public

    def coarser(self, parents: Tensor) -> "LabelCounts":
        """Add up clusters with the same parent, 0 ... m - 1. It costs nothing: the noise is added up too.

        >>> fine = LabelCounts(counts=torch.tensor([[3.0, -1.0], [5.0, 2.0]]), sizes=torch.tensor([4, 6]),
        ...                    variances=torch.tensor([2.0, 2.0]))
        >>> fine.coarser(torch.tensor([0, 0])).counts
        tensor([[8., 1.]])
        """
        if parents.shape != self.sizes.shape:
            raise InvalidParameterError(
                f"parents must name one parent for each of {len(self.sizes)} clusters."
            )
        above = int(_checked_clusters(parents).max()) + 1
        return LabelCounts(
            counts=self.counts.new_zeros(above, self.counts.shape[1]).index_add_(0, parents, self.counts),
            sizes=self.sizes.new_zeros(above).index_add_(0, parents, self.sizes),
            variances=self.variances.new_zeros(above).index_add_(0, parents, self.variances),
        )


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class ClusterLabels:
    """Noisy label counts of public clusters, smoothed to a soft label for each row.

    `clusters` names the cluster of each row; `spectrum` is that of the same rows, if they have one.

    >>> method = ClusterLabels(epsilon=0.5, classes=2, clusters=torch.tensor([0] * 300 + [1] * 300))
    >>> method.event()
    UnsampledDpEvent(event=DiscreteLaplaceDpEvent(noise_parameter=0.25, sensitivity=1))
    >>> method.release([0] * 300 + [1] * 300).targets[[0, 599]].round()
    tensor([[1., 0.],
            [0., 1.]])
    """

    epsilon: float
    classes: int
    clusters: Tensor
    spectrum: Spectrum | None = None
    delta: float = 0.0
    contribution_bound: int = 1
    rounds: int = 0

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        check_classes(self.classes)
        _check.count(contribution_bound=self.contribution_bound)
        if self.delta != 0:
            _check.delta(delta=self.delta)
        if self.rounds != 0:
            _check.count(rounds=self.rounds)
        inputs.settle(self, "epsilon", "delta")
        _checked_clusters(self.clusters)
        _check_spectrum(self.spectrum, len(self.clusters))

    @property
    def name(self) -> str:
        """How the method is called."""
        return "clusters"

    @property
    def relation(self) -> Relation:
        """Labels are replaced; features are public."""
        return Relation.REPLACE_LABEL

    def event(self) -> DpEvent:
        """Return what a run costs one unit."""
        return self._noise().event()

    def check_size(self, *, rows: int, units: int) -> None:
        """Require a cluster for each row."""
        if rows != len(self.clusters):
            raise InvalidParameterError(
                f"clusters are of {len(self.clusters)} rows, but there are {rows} rows of features. Cluster "
                "the rows that are learned from."
            )

    def lessons(self, rows: int) -> Sequence[int]:
        """Learn from all rows, each time."""
        return [rows]

    def counts(self, labels: Given, *, generator: Generator | None = None) -> LabelCounts:
        """Return the noisy counts: all that is ever told about the labels."""
        noise = self._noise()
        true = checked_labels(labels, classes=self.classes, rows=len(self.clusters))
        groups = self._groups()
        cells = (self.clusters * self.classes + true).bincount(minlength=groups * self.classes)
        noisy = noise.add(cells.numpy(), generator=generator)
        return LabelCounts(
            counts=torch.from_numpy(noisy).view(groups, self.classes),
            sizes=self.clusters.bincount(minlength=groups),
            variances=torch.full((groups,), noise.law.stddev**2, dtype=torch.float64),
        )

    def release(
        self, labels: Given, *, teach: Teach | None = None, generator: Generator | None = None
    ) -> Released:
        """Return soft labels to learn from: float32 [rows, classes].

        With `rounds`, `teach` learns from them and predicts every row, and so on: half of each new soft label
        is what the counts say, half what the last model says.
        """
        if self.rounds and teach is None:
            raise InvalidParameterError(f"rounds={self.rounds} need teach=..., which learns between them.")
        counted = self.counts(labels, generator=generator)
        said = soft_labels(counted, clusters=self.clusters, spectrum=self.spectrum)
        released = Released(targets=said, loss=soft_cross_entropy)
        if teach is not None:
            for _ in range(self.rounds):
                predicted = teach(torch.arange(len(said)), released)
                released = Released(targets=(said + predicted.to(said)) / 2, loss=soft_cross_entropy)
        return released

    def _groups(self) -> int:
        return int(self.clusters.max()) + 1

    def _noise(self) -> WholeNoise:
        reach = 2 * self.contribution_bound
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=reach,
            l2_sensitivity=l2_of_counts(self.contribution_bound, self.relation),
            coordinates=min(reach, self._groups() * self.classes),
        )


def soft_labels(counted: LabelCounts, *, clusters: Tensor, spectrum: Spectrum | None = None) -> Tensor:
    """Return weights of the classes for each row, from noisy counts of its cluster and of those nearby.

    Post-processing: features and noisy counts only. Without a spectrum no cluster is near another, and each
    is drawn towards the shares of all.

    >>> counted = LabelCounts(counts=torch.tensor([[90.0, 13.0], [2.0, -4.0]]).double(),
    ...                       sizes=torch.tensor([100, 3]), variances=torch.tensor([200.0, 200.0]).double())
    >>> soft_labels(counted, clusters=torch.tensor([0, 1]))
    tensor([[0.8891, 0.1109],
            [0.9138, 0.0862]])
    """
    _check_spectrum(spectrum, len(_checked_clusters(clusters)))
    if int(clusters.max()) >= len(counted.sizes):
        raise InvalidParameterError(
            f"clusters must be numbered below {len(counted.sizes)}, as they were counted."
        )
    shares = _overall_shares(counted.counts)
    sizes = counted.sizes.double()
    own = _OWN if spectrum is not None else _OWN + _SMOOTH
    seen = torch.diag(counted.variances + _MIXED * sizes + own * sizes**2)
    basis = torch.zeros(len(clusters), 1).double() if spectrum is None else _prior_basis(spectrum)
    sums = basis.new_zeros(len(sizes), basis.shape[1]).index_add_(0, clusters, basis)
    excess = counted.counts - sizes.unsqueeze(1) * shares
    weights = torch.linalg.solve(seen + sums @ sums.T, excess)  # [clusters, classes]
    expected = shares + basis @ (sums.T @ weights) + (own * sizes.unsqueeze(1) * weights)[clusters]
    return onto_simplex(expected).float()


def _prior_basis(spectrum: Spectrum) -> Tensor:
    """Return eigenvectors scaled so that a sum with standard normal weights has the prior's variance."""
    powers = spectrum.values.clamp(min=0) ** _DIFFUSION
    return spectrum.vectors * (powers * (_SMOOTH * len(spectrum.vectors) / powers.sum())).sqrt()


def _overall_shares(counts: Tensor) -> Tensor:
    """Return how common each class is, from sums of noisy counts; even where noise has left nothing."""
    sums = counts.sum(0)
    return onto_simplex(sums / sums.sum()) if sums.sum() > 0 else torch.full_like(sums, 1 / len(sums))


def _checked_clusters(clusters: Tensor) -> Tensor:
    whole = isinstance(clusters, Tensor) and clusters.dtype is torch.int64 and clusters.device.type == "cpu"  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
    if not (whole and clusters.dim() == 1 and len(clusters) and int(clusters.min()) >= 0):
        raise InvalidParameterError(
            "clusters must be an int64 tensor on the CPU that numbers the cluster of each row, from 0, with "
            "a row at least, as features.k_means returns it."
        )
    if int(clusters.max()) >= len(clusters):
        raise InvalidParameterError("clusters must be numbered below the number of rows: leave no gaps.")
    return clusters


def _check_spectrum(spectrum: Spectrum | None, rows: int) -> None:
    if spectrum is not None and len(spectrum.vectors) != rows:
        raise InvalidParameterError(
            f"the spectrum is of {len(spectrum.vectors)} rows, but clusters are of {rows}. "
            "Both must be of the same rows."
        )
    if spectrum is not None and not bool(_prior_basis(spectrum).isfinite().all()):
        raise InvalidParameterError(
            "the spectrum has no eigenvalue above zero, or values that are not finite: it says nothing about "
            "which clusters are near. Make it with features.spectrum, or leave it out."
        )
