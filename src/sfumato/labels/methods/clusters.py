# SPDX-License-Identifier: Apache-2.0
"""Noisy label counts of public clusters, smoothed to soft labels.

`cluster_count` recommends the number of clusters from public numbers, before any label is used.
`soft_labels` models the share of a class among similar rows as a Gaussian process: smooth along the spectrum
of public features, with a part of its own for each cluster, observed through noise of known size. Small
clusters borrow from those nearby. Sums of noisy counts cost nothing (`LabelCounts.coarser`); neither does
learning from the result, predicting, and learning again (`rounds`).

Guarantee  Rows are put into clusters by their public features alone. Replacing one label moves two counts of
           one cluster by 1 each: 2 in L1 norm, sqrt(2) in L2 norm, however many clusters there are. All
           counts get noise for the whole epsilon, once; `event()` is what that costs. Noise is discrete
           Laplace if delta is 0, and discrete Gaussian if it is above (`statistics.noise`). Smoothing is
           post-processing.
Neighbors  Replace-label. Features, clusters, their sizes and the number of classes are public.
Unit       One label, or a user who owns up to k labels, in any clusters: in cluster c, with k_c of the rows,
           counts move by at most 2 k_c in L1 norm and by a square of at most 2 k_c^2 (counts are not
           negative), so by 2 k in L1 norm and sqrt(2) k in L2 norm. Who owns which row is public.
Edge cases A cluster without rows has noise for counts. Counts below zero stay, as clamping would bias sums.
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
from sfumato.labels.input_checks import ArrayLike, check_classes, checked_labels
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
    """Return the number of clusters for a number of rows, by a rule of public numbers.

    An average cluster has 6 log(classes) scales of noise (2 * contribution_bound / epsilon) in rows, and at
    least 60. There are never fewer clusters than classes, if there are enough rows.

    Args:
        public_size: The number of rows, public.
        classes: The number of classes.
        epsilon: The privacy budget of the run.
        contribution_bound: The largest number of labels one user owns.

    Returns:
        The number of clusters.

    Raises:
        InvalidParameterError: If a parameter is out of range.

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
    """Noisy counts of the labels of each cluster.

    Attributes:
        counts: Whole numbers as float64 [clusters, classes], some below zero.
        sizes: The rows of each cluster, int64 [clusters], public.
        variances: The variance of the noise on each count of a cluster, float64 [clusters], public.
    """

    counts: Tensor
    sizes: Tensor
    variances: Tensor

    def coarser(self, parents: Tensor) -> "LabelCounts":
        """Add up clusters with the same parent. It costs nothing: the noise is added up too.

        Args:
            parents: The parent of each cluster, numbered from 0.

        Returns:
            The counts of the parents.

        Raises:
            InvalidParameterError: If there is not one parent for each cluster.

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

    Args:
        epsilon: The privacy budget of the run.
        classes: The number of classes, public.
        clusters: The cluster of each row, numbered from 0, as `features.k_means` returns it.
        spectrum: The spectrum of the same rows (`features.spectrum`), or None.
        delta: 0 for Laplace noise, above 0 for Gaussian noise.
        contribution_bound: The largest number of labels one user may own.
        rounds: How often a model learns from the soft labels and improves them. It costs nothing.

    Raises:
        InvalidParameterError: If a parameter is out of range.

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
        """The name of the method."""
        return "clusters"

    @property
    def relation(self) -> Relation:
        """Neighbors differ in the labels of one unit; features are public."""
        return Relation.REPLACE_LABEL

    def event(self) -> DpEvent:
        """Describe what a run costs one unit.

        Returns:
            The event, for an accountant.
        """
        return self._noise().event()

    def check_size(self, *, rows: int, units: int) -> None:
        """Check that there is a cluster for each row.

        Args:
            rows: The number of rows of features.
            units: The number of units. It is not used.

        Raises:
            InvalidParameterError: If clusters are those of another number of rows.
        """
        if rows != len(self.clusters):
            raise InvalidParameterError(
                f"clusters are of {len(self.clusters)} rows, but there are {rows} rows of features. Cluster "
                "the rows that are learned from."
            )

    def lessons(self, rows: int) -> Sequence[int]:
        """Learn from all rows in each training.

        Args:
            rows: The number of rows.

        Returns:
            The number of rows of each training.
        """
        return [rows]

    def counts(self, labels: ArrayLike, *, generator: Generator | None = None) -> LabelCounts:
        """Release the noisy counts: everything that is revealed about the labels.

        Args:
            labels: The secret labels, one for each row.
            generator: The source of noise, or None for secure randomness from the operating system.

        Returns:
            The noisy counts.

        Raises:
            InvalidParameterError: If shape or type of the labels are wrong.
        """
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
        self, labels: ArrayLike, *, teach: Teach | None = None, generator: Generator | None = None
    ) -> Released:
        """Release soft labels to learn from.

        With `rounds`, `teach` learns from them and predicts every row, several times. Half of each new soft
        label comes from the counts, half from the last model.

        Args:
            labels: The secret labels, one for each row.
            teach: Trains between rounds; required if `rounds` is above 0.
            generator: The source of noise, or None for secure randomness from the operating system.

        Returns:
            Soft labels, float32 [rows, classes], and their loss.

        Raises:
            InvalidParameterError: If `rounds` needs `teach`, or shape or type of the labels are wrong.
        """
        if self.rounds and teach is None:
            raise InvalidParameterError(f"rounds={self.rounds} needs teach=..., which learns between rounds.")
        counted = self.counts(labels, generator=generator)
        soft = soft_labels(counted, clusters=self.clusters, spectrum=self.spectrum)
        released = Released(targets=soft, loss=soft_cross_entropy)
        if teach is not None:
            for _ in range(self.rounds):
                predicted = teach(torch.arange(len(soft)), released)
                released = Released(targets=(soft + predicted.to(soft)) / 2, loss=soft_cross_entropy)
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

    This is post-processing. Without a spectrum no cluster is near another, and each is drawn towards the
    shares of all.

    Args:
        counted: The noisy counts.
        clusters: The cluster of each row.
        spectrum: The spectrum of the same rows, or None.

    Returns:
        Float32 [rows, classes] with sum 1 in each row.

    Raises:
        InvalidParameterError: If clusters or spectrum do not match the counts.

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
    """Return how common each class is, from sums of noisy counts; even shares if the sum is not positive."""
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
