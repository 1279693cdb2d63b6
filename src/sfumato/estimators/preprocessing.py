# SPDX-License-Identifier: Apache-2.0
"""Private preprocessing for pipelines: a standard scaler and principal components.

`transform` uses only what was released. Rows that are not finite, or become so, stay so: the next private
step leaves them out. No row causes a warning.

Guarantee  `StandardScaler`: the number of rows, and for each feature the sum and the sum of squares of values
           clipped to public bounds, each with noise of its own. Sums are exact: values are put on the grid of
           `statistics.columns.columns` first.
           `PCA`: the matrix of second moments of rows clipped to a public norm, with a constant appended, in
           one release: its Frobenius norm moves by at most A^2 under add-remove and by sqrt(2) A^2 under
           replace-one, where A bounds a row with its constant. Its sums are exact, too: rows are put on a
           grid, products are added up as whole numbers and rounded down once, for which a step an entry is
           added to the sensitivity. Everything else is computed from these.
Neighbors  Under replace-one the number of rows is public.
Failure    Where the noisy number of rows is not above 0, the scaler falls back to the middle and half the
           width of the bounds; the components are those of the noisy matrix, whatever it is.
Source     Dwork, Talwar, Thakurta, Zhang 2014, "Analyze Gauss" (PCA).
"""

import math
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from sfumato import _check
from sfumato.accounting.events import DpEvent, PureDpEvent, UnsampledDpEvent
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.estimators.base import Floats, PrivateEstimator
from sfumato.estimators.linear import exact_gram, finite_rows
from sfumato.estimators.reading import matrix_of
from sfumato.estimators.rows import clipped_steps
from sfumato.estimators.spherical import gaussian_vector, on_grid, spherical_laplace
from sfumato.estimators.trees.bins import pairs_of
from sfumato.ledger.account import Account
from sfumato.mechanisms.additive import Gaussian, Laplace
from sfumato.mechanisms.random import Generator
from sfumato.statistics.columns.columns import STEPS, in_steps

__all__ = ["PCA", "StandardScaler"]

_ROUNDING = 1 + 1e-12  # covers the rounding of a product
_LEAST_SPREAD = 0.01  # of half the width of the bounds: a feature is never scaled up by more than this allows


class StandardScaler(OneToOneFeatureMixin, TransformerMixin, PrivateEstimator):
    """Subtract a private mean and divide by a private standard deviation, feature by feature.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9.
        bounds: Lower and upper bound of all features, or a list with one pair for each; public.
        with_mean: Whether to subtract the mean.
        with_std: Whether to divide by the standard deviation. If not, all of epsilon is spent on the mean,
            and `scale_` is None.
        delta: The delta of the guarantee; 0 for pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> scaler = StandardScaler(epsilon=1.0, bounds=(0.0, 100.0)).fit(np.full((1000, 1), 30.0))
    >>> scaler.guarantee_.epsilon
    1.0
    """

    def __init__(
        self,
        *,
        epsilon: float,
        bounds: Any,
        with_mean: bool = True,
        with_std: bool = True,
        delta: float = 0.0,
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
        self.bounds = bounds
        self.with_mean = with_mean
        self.with_std = with_std

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone.

        With one pair of bounds, it is stated for any number of features.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        self._check_common()
        if not (self.with_mean or self.with_std):
            raise InvalidParameterError(
                "with_mean and with_std are both False, so there is nothing to learn: leave the scaler out."
            )
        pairs_of(self.bounds, None)
        if self.delta == 0:
            return PureDpEvent(float(self.epsilon))
        gaussian = dp.GaussianDpEvent(stddev_for(self.epsilon, self.delta, 1.0) * self._diameter())
        return UnsampledDpEvent(gaussian) if self._relation().replaces else gaussian

    def _diameter(self) -> int:
        return self._relation().diameter

    def _check_features(self, features: int, names: tuple[str, ...] | None) -> None:
        pairs_of(self.bounds, features)

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        rows = self._matrix(X, reset=True)
        pairs = pairs_of(self.bounds, rows.shape[1])
        known = rows[np.isfinite(rows).all(axis=1)]
        steps = np.stack([in_steps(known[:, j], pair) for j, pair in enumerate(pairs)], axis=1)
        sums = [float(len(known)), *steps.sum(axis=0)]
        if self.with_std:
            sums += [*np.rint(steps * steps / STEPS).sum(axis=0)]
        noisy = np.array([self._noisy(value, i, len(pairs), generator) for i, value in enumerate(sums)])
        self._keep(noisy, np.array(pairs, dtype=np.float64))

    def _noisy(self, value: float, index: int, features: int, generator: Generator) -> float:
        """Return one of the sums with its share of the noise: a count, and one or two for each feature."""
        relation, shares = self._relation(), 1 + (2 if self.with_std else 1) * features
        # A replaced row moves a sum of values in [-STEPS, STEPS] by twice that, one of squares by STEPS.
        moved = 1.0 if index == 0 else float(STEPS)
        sensitivity = moved * (2 if relation.replaces and 1 <= index <= features else 1)
        if self.delta == 0:
            noise = Laplace.calibrated(
                epsilon=self.epsilon / shares, sensitivity=sensitivity, relation=relation
            )
        else:
            stddev = sensitivity * stddev_for(self.epsilon, self.delta, math.sqrt(shares))
            noise = Gaussian(stddev=stddev, sensitivity=sensitivity, relation=relation)
        return noise.release(value, generator=generator)

    def _keep(self, noisy: Floats, pairs: Floats) -> None:
        features = len(pairs)
        middle, half = pairs.mean(axis=1), (pairs[:, 1] - pairs[:, 0]) / 2
        count, sums, squares = noisy[0], noisy[1 : 1 + features], noisy[1 + features :]
        mean = np.clip(sums / STEPS / count, -1.0, 1.0) if count >= 1 else np.zeros(features)
        self.mean_: Floats = middle + half * mean
        self.scale_: Floats | None = None
        if self.with_std:
            spread = squares / STEPS / count - mean**2 if count >= 1 else np.ones(features)
            self.scale_ = half * np.sqrt(np.clip(spread, _LEAST_SPREAD**2, 1.0))

    def _rule(self) -> tuple[Floats | float, Floats | float]:
        """Return what is subtracted, and by what is divided."""
        check_is_fitted(self, "mean_")
        return self.mean_ if self.with_mean else 0.0, 1.0 if self.scale_ is None else self.scale_

    def transform(self, X: Any) -> Floats:
        """Return (X - mean_) / scale_, as far as both are used.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The scaled rows.
        """
        mean, scale = self._rule()
        with np.errstate(all="ignore"):  # a warning would tell of a row
            return (self._matrix(X, reset=False) - mean) / scale

    def inverse_transform(self, X: Any) -> Floats:
        """Return X * scale_ + mean_, as far as both are used.

        Args:
            X: Scaled rows, [rows, features].

        Returns:
            The rows.
        """
        mean, scale = self._rule()
        with np.errstate(all="ignore"):
            return matrix_of(X) * scale + mean


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PrivateEstimator):
    """Project on the leading eigenvectors of a private covariance matrix.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9.
        clip_norm: Public bound on the L2 norm of a row, from the origin. Longer rows are scaled down to it.
        n_components: How many components are kept; public.
        delta: The delta of the guarantee; 0 for pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> X = np.outer(np.linspace(-1, 1, 5000), [0.6, 0.8])
    >>> pca = PCA(n_components=1, epsilon=1.0, delta=1e-5, clip_norm=1.0).fit(X)
    >>> np.abs(pca.components_).round(1).tolist()
    [[0.6, 0.8]]
    """

    def __init__(
        self,
        *,
        epsilon: float,
        clip_norm: float,
        n_components: int,
        delta: float = 0.0,
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
        self.clip_norm = clip_norm
        self.n_components = n_components

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        self._check_common()
        _check.scale(clip_norm=self.clip_norm)
        _check.count(n_components=self.n_components)
        if self.delta == 0:
            return PureDpEvent(float(self.epsilon))
        gaussian = dp.GaussianDpEvent(self._relation().diameter * self._noise())
        return UnsampledDpEvent(gaussian) if self._relation().replaces else gaussian

    def _noise(self) -> float:
        """Return the scale of the noise in sensitivities, or its standard deviation for delta above 0."""
        return 1 / self.epsilon if self.delta == 0 else stddev_for(self.epsilon, self.delta, 1.0)

    def _sensitivity(self, features: int) -> float:
        """Return how many steps one row moves the matrix in Frobenius norm.

        Rounding down adds less than a step for each entry, of a matrix of one more than `features` a side.
        """
        squared = 2.0 * STEPS  # of the norm of a row with its constant
        return (math.sqrt(2) * squared if self._relation().replaces else squared) * _ROUNDING + features + 1

    def _check_features(self, features: int, names: tuple[str, ...] | None) -> None:
        if self.n_components > features:
            raise InvalidParameterError(
                f"n_components={self.n_components} must be at most the number of features, {features}."
            )

    def _width_after(self, features: int) -> int:
        return self.n_components

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        rows = self._matrix(X, reset=True)
        self._check_features(rows.shape[1], None)
        self._keep(self._noisy(self._moments(rows), generator) / STEPS)

    def _moments(self, rows: Floats) -> Floats:
        """Return sums of products of features, over the clip norm, and a constant 1, in steps: private."""
        short = clipped_steps(rows[finite_rows(rows)], clip_norm=self.clip_norm)
        whole = np.hstack([short, np.full((len(short), 1), float(STEPS))])
        return (exact_gram(whole) // STEPS).astype(np.float64)

    def _noisy(self, matrix: Floats, generator: Generator) -> Floats:
        """Return a symmetric matrix with noise on each entry; off the diagonal an entry stands twice.

        Only noise is weighed and rounded before the two are added: sums are whole numbers, and stay exact.
        """
        upper = np.triu_indices(len(matrix))
        weight = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))  # so that the norm is Frobenius's
        size = self._noise() * self._sensitivity(len(matrix) - 1)
        if self.delta == 0:
            noise = spherical_laplace(len(weight), scale=size, generator=generator)
        else:
            noise = gaussian_vector(len(weight), stddev=size, generator=generator)
        noisy = np.zeros_like(matrix)
        noisy[upper] = on_grid(matrix[upper] + noise / weight, noise=size)
        return noisy + np.triu(noisy, 1).T

    def _keep(self, noisy: Floats) -> None:
        """Keep what follows from noisy sums of products: of rows over the clip norm, and a constant 1."""
        count = max(1.0, float(noisy[-1, -1]))
        mean = noisy[-1, :-1] / count
        mean *= min(1.0, 1 / max(float(np.linalg.norm(mean)), 1e-300))
        values, vectors = np.linalg.eigh(noisy[:-1, :-1] / count - np.outer(mean, mean))
        order = np.argsort(values)[::-1][: self.n_components]
        self.mean_ = self.clip_norm * mean
        self.components_ = vectors[:, order].T
        self.explained_variance_ = self.clip_norm**2 * np.maximum(values[order], 0.0)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Any) -> Floats:
        """Return the coordinates of each row along the components.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The coordinates, [rows, components].
        """
        check_is_fitted(self, "components_")
        with np.errstate(all="ignore"):
            return (self._matrix(X, reset=False) - self.mean_) @ self.components_.T

    def inverse_transform(self, X: Any) -> Floats:
        """Return the points that belong to coordinates.

        Args:
            X: Coordinates, [rows, components].

        Returns:
            The points, [rows, features].
        """
        check_is_fitted(self, "components_")
        with np.errstate(all="ignore"):
            return matrix_of(X) @ self.components_ + self.mean_
