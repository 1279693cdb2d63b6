# SPDX-License-Identifier: Apache-2.0
"""Steps of a pipeline that cost nothing: each row is computed from itself alone, by a public rule.

Guarantee  `fit` reads no row: of an array or a frame it takes the number and the names of the features, and
           refuses a type that is no number. A row becomes one row, whatever the others are, so neighbors stay
           neighbors.
Unread     `fit_transform`, which `Pipeline.fit` calls, reads nothing either: what it returns is computed when
           a private step asks for its rows, which is after that step has paid. So nothing that depends on
           the data can happen before the first charge, and what fails then fails within a step that paid.
Always     No rows, NaN and infinities are rows like any others: nothing is raised, nothing is warned of. A
           row that is not finite stays so, and the next private step leaves it out. scikit-learn's own steps
           of these names raise there, before anybody has paid: they are refused (`pricing`).
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.estimators.reading import Floats, matrix_of, require_matrix, same_features

__all__ = ["Binarizer", "Normalizer", "RowStep"]

_NORMS = {"l1": 1, "l2": 2, "max": np.inf}


class _FitUnread:
    """`fit_transform` outside of scikit-learn's classes, where `set_output` would read what it returns."""

    def fit(self, X: Any, y: Any = None) -> Self:
        raise NotImplementedError

    def fit_transform(self, X: Any, y: Any = None) -> "Unread":
        """Return what `transform` would, but computed when it is asked for, with `numpy.asarray`."""
        return Unread(self.fit(X), X)


class RowStep(_FitUnread, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # the first one's fit_transform is meant
    """What these steps share."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the parameters, and note the features of X; no row is read."""
        self._check_parameters()
        require_matrix(X)
        for name in ("n_features_in_", "feature_names_in_"):  # of an earlier fit
            vars(self).pop(name, None)
        if hasattr(X, "shape"):  # rows that nobody has read have none
            same_features(self, X, X, reset=True)
        return self

    def transform(self, X: Any) -> Floats:
        """Return each row by the rule."""
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
        """Say what scikit-learn may expect: there is nothing to fit, and rows need not be finite."""
        tags: Any = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.allow_nan = True
        return tags


class Unread:
    """Rows of a step that nobody has read."""

    def __init__(self, step: Any, given: Any) -> None:
        self._step, self._given = step, given

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._step.transform(self._given), dtype=dtype)


class Normalizer(RowStep):
    """Scale each row to norm 1; a row of zeros stays as it is.

    norm  "l2", "l1" or "max"

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
    """Say of each entry whether it is above a public threshold: 1.0 or 0.0; NaN stays NaN.

    >>> Binarizer(threshold=2.0).transform([[1.0, 3.0]]).tolist()
    [[0.0, 1.0]]
    """

    def __init__(self, *, threshold: float = 0.0) -> None:
        self.threshold = threshold

    def _check_parameters(self) -> None:
        _check.finite(threshold=self.threshold)

    def _rule(self, rows: Floats) -> Floats:
        return np.where(np.isnan(rows), np.nan, (rows > self.threshold).astype(np.float64))
