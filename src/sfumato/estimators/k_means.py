# SPDX-License-Identifier: Apache-2.0
"""k-means by noisy counts and sums: a coarse map of the data first, then a few steps of Lloyd.

1. The number of rows is released.
2. Cells: points are drawn at random in the bounds, without the data; the more of them, the more rows there
   are. The number of rows nearest to each, and the sum of their displacements, are released. The noisy
   means of the cells, weighted by their counts, are clustered without noise (k-means++ and Lloyd, on public
   numbers).
3. Steps: rows nearest to each center are counted, and the sums of their displacements from it are released.
   A displacement is clipped to a radius that follows from the distances between the centers, which are
   public by then. So rows near a center need less noise than the bounds would ask for.

Guarantee  (epsilon, delta) for one row. A row is in one cell or cluster at a time, so it moves the counts by
           one and the sums by one displacement, which is clipped: in L2 norm if delta > 0, in L1 norm else.
           Everything else is computed from noisy sums (`cell_noise`).
Edge cases A row that is not finite contributes nothing. Others are moved into the bounds. A cluster with few
           rows stays about where it was. No labels of the fitted rows are kept: they are private.
Source     Su, Cao, Li, Bertino, Jin 2016, arXiv:1504.05998 (cells first; few steps of Lloyd).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.estimators.base import Floats, PrivateEstimator
from sfumato.estimators.cell_noise import CellNoise, Part, Reach, counts, signed
from sfumato.estimators.linear import finite_rows
from sfumato.estimators.trees.bins import pairs_of
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator, words

__all__ = ["KMeans"]

_SIZE_SHARE, _CELL_SHARE = 0.02, 0.4  # of the budget; the rest is for the steps
_COUNT_SHARE = 0.2  # of a step, for counts
_STEPS = {"pure": 2, "gaussian": 4}
_MOST_CELLS = 400
_MOST_CLUSTERS = 1000  # beyond, memory would end a fit that was charged
_ROWS_IN_CELL = 6.0  # stddevs of the noise of a count, on average
_BELIEVED = 2.0  # a cell of fewer rows than so many stddevs counts as empty
_FEWEST = 2.0  # no cluster is believed to have fewer rows than so many stddevs
_RADIUS = 0.6  # of the distance to the nearest other center: beyond, displacements are clipped
_SPREAD = 0.8  # L1 norm of a typical displacement over sqrt(features) times its L2 norm
_BLOCK = 2**13
_STARTS, _ROUNDS = 10, 50  # of k-means on public numbers


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, PrivateEstimator):
    """k-means clustering with differential privacy.

    Args:
        n_clusters: How many clusters there are, up to 1000; public.
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9; at most 500 with a delta.
        bounds: Lower and upper bound of all features, or a list with one pair for each; public. Distances are
            those of the features as they are.
        delta: The delta of the guarantee; 0 for pure differential privacy.
        max_iter: How many steps of Lloyd follow the map of cells. None: 4, or 2 with delta 0.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> X = np.repeat([[0.2, 0.2], [0.8, 0.8]], 2000, axis=0)
    >>> model = KMeans(n_clusters=2, epsilon=1.0, delta=1e-6, bounds=(0, 1)).fit(X)
    >>> sorted(model.cluster_centers_.round(1).tolist())
    [[0.2, 0.2], [0.8, 0.8]]
    """

    def __init__(
        self,
        *,
        n_clusters: int,
        epsilon: float,
        bounds: Any,
        delta: float = 0.0,
        max_iter: int | None = None,
        relation: Relation | str = "add-remove",
        privacy_unit: str = "row",
        account: Account | None = None,
        purpose: str | None = None,
        random_state: int | Generator | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            privacy_unit=privacy_unit,
            account=account,
            purpose=purpose,
            random_state=random_state,
        )
        self.n_clusters = n_clusters
        self.bounds = bounds
        self.max_iter = max_iter

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone, for any number of features.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        self._check_common()
        _check.count(n_clusters=self.n_clusters, max_iter=self._steps())
        _check.in_range(1, _MOST_CLUSTERS, n_clusters=self.n_clusters)
        pairs_of(self.bounds, None)
        return self._noise().event()

    def _steps(self) -> int:
        return _STEPS["pure" if self.delta == 0 else "gaussian"] if self.max_iter is None else self.max_iter

    def _noise(self) -> CellNoise:
        return CellNoise(epsilon=self.epsilon, delta=self.delta, relation=self._relation())

    def _check_features(self, features: int, names: tuple[str, ...] | None) -> None:
        pairs_of(self.bounds, features)

    def _width_after(self, features: int) -> int:
        return self.n_clusters

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        rows = self._matrix(X, reset=True)
        box = _Box.of(self.bounds, rows.shape[1])
        known = box.inside(rows[finite_rows(rows)])
        parts = _Parts(noise=self._noise(), generator=generator)
        size = parts.size(len(known))
        cells = parts.random(parts.cells(size, self.n_clusters), box)
        radius = box.radius / len(cells) ** (1 / len(box.half))
        held, moved = parts.pass_over(known, cells, radius, _CELL_SHARE)
        believed = np.where(held.rows > _BELIEVED * held.noise, held.rows, 0.0)
        centers = _clustered(box.clip(cells + moved), believed, self.n_clusters, generator)
        steps = self._steps()
        for _ in range(steps):
            share = (1 - _SIZE_SHARE - _CELL_SHARE) / steps
            held, moved = parts.pass_over(known, centers, _reach(centers, box), share)
            centers = box.clip(centers + moved)
        self.cluster_centers_: Floats = box.outside(centers)
        self.n_iter_ = steps

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def transform(self, X: Any) -> Floats:
        """Return the distances of each row from the centers.

        Rows are moved into the bounds first. A missing coordinate is left out of the distance.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The distances, [rows, clusters].
        """
        check_is_fitted(self, "cluster_centers_")
        rows = self._matrix(X, reset=False)
        box = _Box.of(self.bounds, rows.shape[1])
        return np.sqrt(_squared(box.inside(rows), box.inside(self.cluster_centers_))) * box.unit

    def predict(self, X: Any) -> npt.NDArray[np.intp]:
        """Return the cluster of each row: that with the nearest center.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The places of the clusters in `cluster_centers_`.
        """
        return self.transform(X).argmin(axis=1)

    def fit_predict(self, X: Any, y: Any = None) -> npt.NDArray[np.intp]:  # type: ignore[override]  # no options
        """Fit, and return the cluster of each row, which is not a private release.

        Args:
            X: The rows, [rows, features].
            y: Not used.

        Returns:
            The places of the clusters in `cluster_centers_`.
        """
        return self.fit(X, y).predict(X)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Box:
    """The bounds: in it, coordinates are distances from the middle, over the largest half width."""

    middle: Floats
    half: Floats  # at most 1
    unit: float

    @classmethod
    def of(cls, bounds: Any, features: int) -> "_Box":
        lower, upper = np.array(pairs_of(bounds, features), dtype=np.float64).T
        half = upper / 2 - lower / 2
        return cls(middle=lower / 2 + upper / 2, half=half / half.max(), unit=float(half.max()))

    @property
    def radius(self) -> float:
        """The distance of a corner from the middle."""
        return float(np.linalg.norm(self.half))

    def inside(self, rows: Floats) -> Floats:
        with np.errstate(all="ignore"):
            return self.clip((rows - self.middle) / self.unit)

    def clip(self, points: Floats) -> Floats:
        return np.clip(points, -self.half, self.half)

    def outside(self, points: Floats) -> Floats:
        return points * self.unit + self.middle


@dataclass(frozen=True, slots=True)
class _Held:
    """Noisy numbers of rows, and the standard deviation of their noise."""

    rows: Floats
    noise: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Parts:
    """The parts of one fit."""

    noise: CellNoise
    generator: Generator

    def size(self, rows: int) -> float:
        """Return the noisy number of rows."""
        part = self.noise.part(_SIZE_SHARE, counts(1, self.noise.relation))
        return float(part.count(np.zeros(rows, dtype=np.intp), (1,), self.generator)[0])

    def cells(self, size: float, clusters: int) -> int:
        """Return into how many cells so many rows are divided, so that counts exceed their noise."""
        noise = self._counting(_CELL_SHARE).stddev
        return int(np.clip(size / (_ROWS_IN_CELL * noise), 2 * clusters, max(_MOST_CELLS, 2 * clusters)))

    def random(self, count: int, box: _Box) -> Floats:
        """Return points of the box, drawn without the data."""
        drawn = words(count * len(box.half), self.generator).astype(np.float64) * 2.0**-63 - 1
        return drawn.reshape(count, -1) * box.half

    def pass_over(self, rows: Floats, centers: Floats, radius: float, share: float) -> tuple[_Held, Floats]:
        """Return how many rows are nearest to each center, and their mean displacement from it: noisy."""
        near = _nearest(rows, centers)
        counting = self._counting(share)
        held = counting.count(near, (len(centers),), self.generator)
        moving = self._moving(share, radius, centers.shape[1])
        steps = moving.whole(_clipped(rows - centers[near], moving.reach, self.noise))
        sums = np.zeros(centers.shape)
        for feature, column in enumerate(steps.T):
            sums[:, feature] = np.bincount(near, weights=column, minlength=len(centers))
        moved = _calmed(moving.add(sums, generator=self.generator), moving.stddev)
        moved /= np.maximum(held, _FEWEST * counting.stddev)[:, None]
        lengths = np.linalg.norm(moved, axis=1, keepdims=True)
        return _Held(held, counting.stddev), moved * np.minimum(1.0, radius / np.maximum(lengths, radius))

    def _counting(self, share: float) -> Part:
        return self.noise.part(share * _COUNT_SHARE, counts(1, self.noise.relation))

    def _moving(self, share: float, radius: float, features: int) -> Part:
        l1 = radius * math.sqrt(features) * (_SPREAD if self.noise.delta == 0 else 1.0)
        reach = signed(l1, radius, self.noise.relation)
        return self.noise.part(share * (1 - _COUNT_SHARE), reach)


def _nearest(rows: Floats, centers: Floats) -> npt.NDArray[np.intp]:
    """Return the place of the nearest center, for each row; rows are taken in blocks to save memory."""
    near = np.zeros(len(rows), dtype=np.intp)
    for start in range(0, len(rows), _BLOCK):
        near[start : start + _BLOCK] = _squared(rows[start : start + _BLOCK], centers).argmin(axis=1)
    return near


def _calmed(sums: Floats, stddev: float) -> Floats:
    """Return noisy sums, pulled to 0 by what noise adds to their length (James and Stein 1961)."""
    squares = (sums**2).sum(axis=1, keepdims=True)
    added = max(sums.shape[1] - 2, 0) * stddev**2
    return sums * np.maximum(1 - added / np.where(squares > 0, squares, 1.0), 0.0)


def _squared(rows: Floats, centers: Floats) -> Floats:
    """Return squared distances, [rows, centers], each row by itself; what is missing is left out."""
    found = np.zeros((len(rows), len(centers)))
    for column, places in zip(rows.T, centers.T, strict=True):
        found += np.nan_to_num(column[:, None] - places, nan=0.0) ** 2
    return found


def _clipped(moves: Floats, reach: Reach, noise: CellNoise) -> Floats:
    """Return displacements, scaled down to the norm that one row may add."""
    diameter = noise.relation.diameter
    if noise.delta == 0:
        norms, most = np.abs(moves).sum(axis=1), reach.l1 / diameter
    else:
        norms, most = np.sqrt((moves**2).sum(axis=1)), reach.l2 / diameter
    inside = most * (1 - 2.0**-30)  # a norm computed in float64 is off by less
    return moves * np.minimum(1.0, inside / np.maximum(norms, inside))[:, None]


def _reach(centers: Floats, box: _Box) -> float:
    """Return the radius to which displacements are clipped, from noisy centers."""
    if len(centers) == 1:
        return box.radius
    apart = _squared(centers, centers)
    np.fill_diagonal(apart, math.inf)
    return float(np.clip(_RADIUS * np.median(np.sqrt(apart.min(axis=1))), 0.02 * box.radius, box.radius))


def _clustered(points: Floats, weights: Floats, clusters: int, generator: Generator) -> Floats:
    """Return the centers of public points of public weights: the best of several starts."""
    if weights.sum() <= 0:
        weights = np.ones(len(points))
    tries = [_lloyd(points, weights, _started(points, weights, clusters, generator)) for _ in range(_STARTS)]
    return min(tries, key=lambda centers: float(weights @ _squared(points, centers).min(axis=1)))


def _started(points: Floats, weights: Floats, clusters: int, generator: Generator) -> Floats:
    """Return centers drawn as k-means++ does."""
    chosen: list[int] = []
    for drawn in words(clusters, generator).astype(np.float64) * 2.0**-64:
        far = _squared(points, points[chosen]).min(axis=1) if chosen else np.ones(len(points))
        ends = np.cumsum(weights * far)
        ends = ends if ends[-1] > 0 else np.cumsum(np.ones(len(points)))
        chosen.append(int(min(np.searchsorted(ends, drawn * ends[-1], side="right"), len(points) - 1)))
    return points[chosen]


def _lloyd(points: Floats, weights: Floats, centers: Floats) -> Floats:
    before = None
    for _ in range(_ROUNDS):
        near = _nearest(points, centers)
        if before is not None and np.array_equal(near, before):
            break
        before = near
        held = np.bincount(near, weights=weights, minlength=len(centers))
        sums = np.stack([np.bincount(near, weights=weights * c, minlength=len(centers)) for c in points.T], 1)
        centers = np.where(held[:, None] > 0, sums / np.where(held > 0, held, 1.0)[:, None], centers)
    return centers
