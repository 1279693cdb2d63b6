# SPDX-License-Identifier: Apache-2.0
"""Bins of features, by public rules: declared bounds, and declared numbers of categories.

Guarantee  The bins of a row depend on that row alone, and every row has exactly one bin of each feature. No
           edge is taken from the data.
Edge cases A number outside its bounds, or infinite, is moved to the nearer end. A missing number, and a code
           that is no whole number or not below the declared number of categories, has a bin of its own, which
           is the last one of its feature.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.estimators.linear import public_bounds
from sfumato.estimators.reading import Floats

__all__ = ["MOST_BINS", "Bins", "Places", "check_domains", "pairs_of"]

Places = npt.NDArray[np.intp]

MOST_BINS = 1024  # of one feature


@dataclass(frozen=True, kw_only=True, slots=True)
class Bins:
    """The bins of every feature: `sizes` counts them, with that of missing values."""

    lower: Floats
    upper: Floats
    sizes: npt.NDArray[np.intp]
    categorical: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, estimator: Any, features: int, names: Sequence[str] | None = None) -> "Bins":
        """Return the bins for the parameters of an estimator, and so many features of these names."""
        pairs = pairs_of(estimator.bounds, features)
        sizes = np.full(features, estimator.max_bins + 1, dtype=np.intp)
        categorical = np.zeros(features, dtype=bool)
        for feature, count in (estimator.categories or {}).items():
            place = _place(feature, features, names)
            sizes[place], categorical[place] = count + 1, True
        lower, upper = np.array(pairs, dtype=np.float64).T
        return cls(lower=lower, upper=upper, sizes=sizes, categorical=categorical)

    def places(self, rows: Floats) -> Places:
        """Return the bin of each feature of each row: [rows, features].

        >>> one = {"sizes": np.array([5]), "categorical": np.array([False])}
        >>> bins = Bins(lower=np.zeros(1), upper=np.ones(1), **one)
        >>> bins.places(np.array([[0.3], [7.0], [np.nan]])).ravel().tolist()
        [1, 3, 4]
        """
        known = self.sizes - 1
        with np.errstate(all="ignore"):
            share = (np.clip(rows, self.lower, self.upper) - self.lower) / (self.upper - self.lower)
            at = np.where(self.categorical, rows, np.clip(np.floor(share * known), 0, known - 1))
            fits = (at >= 0) & (at < known) & (at == np.floor(at))
            return np.where(fits, at, known).astype(np.intp)


def check_domains(estimator: Any) -> None:
    """Require bounds, categories and a number of bins that make sense, whatever the number of features is."""
    _check.count(max_bins=estimator.max_bins)
    _check.in_range(2, MOST_BINS, max_bins=estimator.max_bins)
    pairs_of(estimator.bounds, None)
    categories = {} if estimator.categories is None else estimator.categories
    if not isinstance(categories, Mapping):
        raise InvalidParameterError(
            "categories must map features to how many categories they have, such as {1: 9}, but "
            f"{categories!r} was given."
        )
    for feature, count in cast(Mapping[Any, Any], categories).items():
        if not isinstance(feature, str):
            _check.in_range(0, 2**31, categories=feature)
        _check.count(categories=count)
        _check.in_range(1, MOST_BINS, categories=count)


def pairs_of(bounds: Any, features: int | None) -> list[tuple[float, float]]:
    """Return a pair for each feature, from one for all or from one for each."""
    given = list(bounds) if isinstance(bounds, list | tuple | np.ndarray) else bounds
    if not (isinstance(given, list) and given and isinstance(given[0], list | tuple | np.ndarray)):
        return [public_bounds("bounds", cast(Any, bounds))] * (features or 1)
    pairs = [public_bounds("bounds", cast(Any, tuple(cast(Any, pair)))) for pair in cast(list[object], given)]
    if features not in (None, len(pairs)):
        raise InvalidParameterError(f"bounds has {len(pairs)} pairs, but X has {features} features.")
    return pairs


def _place(feature: Any, features: int, names: Sequence[str] | None) -> int:
    """Return the place of a feature that is named, or given by its place."""
    listed = [] if names is None else list(names)
    if isinstance(feature, str) and not listed:
        raise InvalidParameterError(
            f"categories names the feature {feature!r}, but X has no names: give its place, from 0."
        )
    if isinstance(feature, str) and feature in listed:
        return listed.index(feature)
    if isinstance(feature, str) or not 0 <= int(feature) < features:
        raise InvalidParameterError(f"categories names a feature that X does not have: {feature!r}.")
    return int(feature)
