# SPDX-License-Identifier: Apache-2.0
"""The base of private linear regressions: exact sums, predictions, and failed fits.

Guarantee  `exact_gram` adds up products of whole numbers without rounding, in whatever order, so what one row
           moves is exactly its own products and no more.
Neighbors  Add-or-remove and replace-one. The other relations are refused: what a unit that contributes
           nothing, or a public feature, would mean is not worked out for these methods.
Failure    Some methods may fail, by a test that is itself private and charged. Then `failed_` is
           True, `coef_` and `intercept_` are NaN, and `predict` raises; with `fallback` given, a number that
           is public, it is predicted for every row instead, and is the `intercept_`.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.estimators.base import Floats, PrivateEstimator
from sfumato.estimators.reading import numbers_of
from sfumato.statistics.columns.columns import STEPS, Bounds

__all__ = [
    "LinearRegressor",
    "OneFeatureRegressor",
    "check_fallback",
    "exact_gram",
    "finite_rows",
    "public_bounds",
]

Exact = npt.NDArray[np.object_]  # of Python's whole numbers

_BLOCK = 2**12  # rows whose products of at most STEPS^2 = 2^40 float64 adds up exactly


def exact_gram(steps: Floats) -> Exact:
    """Return the sums over rows of all products of two columns, exactly: [columns, columns].

    `steps` are whole numbers of at most `STEPS` in size.

    >>> exact_gram(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[10, 14], [14, 20]]
    """
    columns = steps.shape[1]
    total: Exact = np.array([[0] * columns for _ in range(columns)], dtype=object).reshape(columns, columns)
    for start in range(0, len(steps), _BLOCK):
        block = steps[start : start + _BLOCK]
        total = total + (block.T @ block).astype(np.int64).astype(object)
    return total


def public_bounds(name: str, bounds: Bounds) -> Bounds:
    """Return bounds, checked, as floats."""
    _check.bounds(**{name: bounds})
    lower, upper = float(bounds[0]), float(bounds[1])
    if not (upper - lower) * STEPS < math.inf:
        raise InvalidParameterError(f"{name} is too wide for float64: {bounds!r} was given.")
    return lower, upper


def check_fallback(fallback: float | None) -> None:
    """Require None, or a finite number."""
    if fallback is not None:
        _check.finite(fallback=fallback)


class LinearRegressor(RegressorMixin, PrivateEstimator):
    """A private estimator that predicts X @ coef_ + intercept_."""

    coef_: Floats
    intercept_: float
    failed_: bool = False

    def predict(self, X: Any) -> Floats:
        """Return the predictions of the fitted line or plane.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The predictions, one for each row.

        Raises:
            QueryFailedError: If the fit had failed and there is no fallback.
        """
        check_is_fitted(self)
        rows = self._matrix(X, reset=False)
        if self.failed_ and math.isnan(self.intercept_):
            raise QueryFailedError(
                f"{self._name()} had failed, so there is nothing to predict with (`failed_` is True); what "
                "it cost is spent. Fit again with a larger epsilon or more rows, or pass fallback=... for a "
                "public number to predict then."
            )
        with np.errstate(all="ignore"):  # a warning would tell of a row
            return rows @ self.coef_ + self.intercept_

    def _fail(self, features: int, fallback: float | None) -> None:
        """Store that the fit failed, and what is predicted then."""
        self.failed_ = True
        self.coef_ = np.full(features, math.nan if fallback is None else 0.0)
        self.intercept_ = math.nan if fallback is None else float(fallback)

    def _supported_relation(self) -> Relation:
        relation = self._relation()
        if relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            raise InvalidParameterError(
                f"{type(self).__name__} is private for add-remove or replace-one neighbors, but relation="
                f"{relation.value!r} was given."
            )
        return relation

    def _rows(self, X: Any, y: Any) -> tuple[Floats, Floats]:
        """Return X and y as float64, with whatever is in them."""
        rows = self._matrix(X, reset=True)
        return rows, numbers_of(self._column(y, rows=len(rows)), what="y")

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


class OneFeatureRegressor(LinearRegressor):
    """A line: X is one feature, as a column or a plain list."""

    _FLAT = True

    def _check_features(self, features: int, names: tuple[str, ...] | None) -> None:
        if features != 1:
            raise InvalidParameterError(
                f"{type(self).__name__} fits a line over one feature, but X has {features} features. "
                "Use AdaSSP or TukeyEM for several."
            )

    def _matrix(self, X: Any, *, reset: bool) -> Floats:
        rows = super()._matrix(X, reset=reset)
        self._check_features(rows.shape[1], None)
        return rows

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, False  # as sklearn.isotonic says
        return tags


def finite_rows(*columns: Floats) -> npt.NDArray[np.bool_]:
    """Return which rows have no NaN and no infinity in any of the columns or matrices."""
    parts = [np.isfinite(column if column.ndim == 2 else column[:, None]).all(1) for column in columns]
    return np.logical_and.reduce(parts)
