# SPDX-License-Identifier: Apache-2.0
"""Pipeline steps that cost nothing: each row is computed from itself alone, by a public rule.

`fit_transform`, which `Pipeline.fit` calls, reads nothing either: its result is computed when a private step
needs its rows, which is after that step was charged. So nothing that depends on the data can happen before
the first charge, and a failure happens within a step that was charged.

Guarantee  `fit` reads no row: of an array or a frame it takes the number and the names of the features, and
           refuses a type that is no number. A row becomes one row, whatever the others are, so neighbors stay
           neighbors.
Edge cases Empty data, NaN and infinities are treated like any other rows: nothing is raised and there is no
           warning. A row that is not finite stays so, and the next private step leaves it out. The steps of
           scikit-learn with these names raise there, before anything was charged: they are refused
           (`pricing`).
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.estimators.public_facts import PublicFacts, ReadLater
from sfumato.estimators.reading import Floats, matrix_of, require_matrix, same_features

__all__ = ["Binarizer", "Normalizer", "RowStep"]

_NORMS = {"l1": 1, "l2": 2, "max": np.inf}


class _FitUnread:
    """`fit_transform` outside of scikit-learn's classes, where `set_output` would read what it returns."""

    def fit(self, X: Any, y: Any = None) -> Self:
        raise NotImplementedError

    def fit_transform(self, X: Any, y: Any = None) -> "Unread":
        """Check the parameters, and return rows that are computed when a private step needs them.

        Args:
            X: The rows, [rows, features].
            y: Not used.

        Returns:
            The rows, which nothing has read yet.
        """
        return Unread(self.fit(X), X)


class RowStep(_FitUnread, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # the first one's fit_transform is meant
    """The base class of steps that compute each row from itself."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the parameters, and note the features of X. No row is read.

        Args:
            X: The rows, [rows, features].
            y: Not used.

        Returns:
            The step itself.

        Raises:
            InvalidParameterError: If a parameter is out of range, or X has a wrong shape or type.
        """
        self._check_parameters()
        require_matrix(X)
        for name in ("n_features_in_", "feature_names_in_"):  # of an earlier fit
            vars(self).pop(name, None)
        if hasattr(X, "shape"):  # rows that were not read have none
            same_features(self, X, X, reset=True)
        return self

    def transform(self, X: Any) -> Floats:
        """Apply the rule to each row.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The new rows.
        """
        self._check_parameters()
        rows = matrix_of(X)
        if hasattr(self, "n_features_in_"):
            same_features(self, X, rows, reset=False)
        with np.errstate(all="ignore"):
            return self._rule(rows)

    def _check_parameters(self) -> None:
        raise NotImplementedError

    def _rule(self, rows: Floats) -> Floats:
        raise NotImplementedError

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        """Return the tags for scikit-learn: there is nothing to fit, and rows need not be finite."""
        tags: Any = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.allow_nan = True
        return tags


class Unread(ReadLater):
    """The rows of a step that were not read yet."""

    def __init__(self, step: Any, given: Any) -> None:
        self._step, self._given = step, given
        self.n_features = PublicFacts.of(given, None).features

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._step.transform(self._given), dtype=dtype)


class Normalizer(RowStep):
    """Scale each row to norm 1; a row of zeros stays as it is.

    Args:
        norm: "l2", "l1" or "max".

    >>> Normalizer().transform([[3.0, 4.0], [0.0, 0.0]]).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """

    def __init__(self, norm: str = "l2") -> None:
        self.norm = norm

    def _check_parameters(self) -> None:
        if self.norm not in _NORMS:
            raise InvalidParameterError(
                f"norm must be one of {', '.join(_NORMS)}, but {self.norm!r} was given."
            )

    def _rule(self, rows: Floats) -> Floats:
        largest = np.abs(rows).max(axis=1, keepdims=True)  # scaled first: squares may overflow
        unit = rows / np.where(largest > 0, largest, 1.0)
        norms = np.linalg.norm(unit, ord=_NORMS[self.norm], axis=1, keepdims=True)
        return unit / np.where(norms > 0, norms, 1.0)


class Binarizer(RowStep):
    """Replace each entry by 1.0 if it is above a public threshold, else by 0.0; NaN stays NaN.

    Args:
        threshold: The threshold, public.

    >>> Binarizer(threshold=2.0).transform([[1.0, 3.0]]).tolist()
    [[0.0, 1.0]]
    """

    def __init__(self, *, threshold: float = 0.0) -> None:
        self.threshold = threshold

    def _check_parameters(self) -> None:
        _check.finite(threshold=self.threshold)

    def _rule(self, rows: Floats) -> Floats:
        return np.where(np.isnan(rows), np.nan, (rows > self.threshold).astype(np.float64))
