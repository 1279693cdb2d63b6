# SPDX-License-Identifier: Apache-2.0
"""The Frechet distance between synthetic rows and a public holdout, in a space of fixed public features.

It is |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)), for the means and covariances of both: 0 if they agree.
For images the features are oriented gradients (`labels.features`), for other rows the numbers themselves;
any function can take their place. THIS IS NOT THE INCEPTION FID of the literature, and its values cannot be
compared with values in papers: the features differ. Compare it with `floor`, the distance between two halves
of the holdout, and with other generators on the same holdout.

Guarantee  Private rows are not read. `holdout` must be public.
Edge cases Few rows or constant features make covariances singular. This is no problem: the trace is a sum of
           singular values of a product of two square roots, so it needs no inverse. A single row has
           covariance 0. Small samples raise the distance: compare samples of equal size.
Failure    Features that are not finite, or that change with the kind of rows, are refused.
Source     Dowson and Landau 1982 (the distance); Heusel et al. 2017, arXiv:1706.08500 (its use).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato._torch import require_torch
from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.rows import Floats, LabeledRows, array_of, check_same_kind

__all__ = ["Features", "FrechetDistance", "default_features", "frechet_between", "frechet_distance"]

Features = Callable[[Any], Any]  # rows as they were given -> [rows, features]

_FEWEST_PIXELS = 4  # a side of two of the smallest cells of oriented gradients
_LARGE = 16  # pixels a side from which cells of 4 pixels are used, and of 2 below


@dataclass(frozen=True, kw_only=True, slots=True)
class FrechetDistance:
    """The distance of synthetic rows from the holdout, and what to compare it with.

    Attributes:
        distance: The Frechet distance.
        floor: The distance between two halves of the holdout; None if it has a single row.
        features: The name of the features.
        columns: The number of features.
    """

    distance: float
    floor: float | None
    features: str
    columns: int

    def __str__(self) -> str:
        floor = "" if self.floor is None else f"; between halves of the holdout {self.floor:.4g}"
        return f"Frechet distance in {self.features} (not the Inception FID): {self.distance:.4g}{floor}."


def frechet_distance(
    synthetic: LabeledRows, holdout: LabeledRows, *, features: Features | None = None, seed: int = 0
) -> FrechetDistance:
    """Return the Frechet distance between synthetic rows and public rows.

    Args:
        synthetic: The synthetic rows.
        holdout: Real rows that are public.
        features: A function of rows, fixed without private data. None means oriented gradients for images,
            and the numbers themselves for other rows.
        seed: The seed of the halves of the holdout.

    Returns:
        The distance, with its floor.

    Raises:
        InvalidParameterError: If the rows differ in shape, or a value or feature is not finite.

    >>> rows = LabeledRows(features=np.eye(4), labels=np.zeros(4, dtype=int), classes=1)
    >>> round(frechet_distance(rows, rows).distance, 12)
    0.0
    """
    check_same_kind(synthetic, holdout)
    synthetic.require_finite("synthetic")
    holdout.require_finite("holdout")
    chosen, name = default_features(holdout) if features is None else (features, _name(features))
    ours, theirs = _mapped(chosen, synthetic), _mapped(chosen, holdout)
    order = np.random.default_rng(seed).permutation(len(theirs))
    halves = theirs[order[::2]], theirs[order[1::2]]
    return FrechetDistance(
        distance=frechet_between(ours, theirs),
        floor=frechet_between(*halves) if len(theirs) > 1 else None,
        features=name,
        columns=theirs.shape[1],
    )


def frechet_between(first: Any, second: Any) -> float:
    """Return the Frechet distance between two sets of feature vectors.

    Args:
        first: [rows, features].
        second: [rows, features].

    Returns:
        The distance, 0 or more.

    Raises:
        InvalidParameterError: If a value is not finite, or shapes differ.

    >>> frechet_between([[0.0], [2.0]], [[3.0], [5.0]])  # equal variances, means 3 apart
    9.0
    """
    rows = [array_of(each, name="features").astype(np.float64) for each in (first, second)]
    if any(each.ndim != 2 or 0 in each.shape for each in rows) or rows[0].shape[1] != rows[1].shape[1]:
        raise InvalidParameterError(
            "features must be [rows, features] of equal width, with at least one row."
        )
    if not all(np.isfinite(each).all() for each in rows):
        raise InvalidParameterError("a feature is not finite, so the Frechet distance is not defined.")
    means = [each.mean(axis=0) for each in rows]
    roots = [_root(each - mean) for each, mean in zip(rows, means, strict=True)]
    shared = np.linalg.svd(roots[0] @ roots[1].T, compute_uv=False).sum()
    spread = sum(float((root**2).sum()) for root in roots)  # the traces of both covariances
    return float(max(0.0, ((means[0] - means[1]) ** 2).sum() + spread - 2 * shared))


def default_features(rows: LabeledRows) -> tuple[Features, str]:
    """Return the features for a kind of rows, and their name.

    Args:
        rows: The rows.

    Returns:
        Oriented gradients for images of at least 4 pixels a side, else the numbers themselves.

    Raises:
        MissingDependencyError: If images are given, and torch is not installed.
    """
    if not rows.is_images or min(rows.features.shape[2:]) < _FEWEST_PIXELS:
        return _flat, "the values of a row"
    return _gradients, "oriented gradients"


def _gradients(images: Floats) -> Floats:
    require_torch()  # and imported here: tables are evaluated without it
    import torch

    from sfumato.labels.features import oriented_gradients

    cell = 4 if min(images.shape[2:]) >= _LARGE else 2
    return oriented_gradients(torch.from_numpy(np.ascontiguousarray(images)), cell=cell).numpy()


def _flat(rows: Floats) -> Floats:
    return rows.reshape(len(rows), -1)


def _name(features: Features) -> str:
    return getattr(features, "__name__", type(features).__name__)


def _mapped(features: Features, rows: LabeledRows) -> Floats:
    found = array_of(features(rows.features), name="features").astype(np.float64)
    if found.ndim != 2 or len(found) != len(rows):
        raise InvalidParameterError(
            f"features must return one vector for each of {len(rows)} rows, but the shape is "
            f"{list(found.shape)}."
        )
    return found


def _root(centered: Floats) -> Floats:
    """Return a matrix R with R'R the covariance, of no more rows than columns."""
    scaled = centered / np.sqrt(max(len(centered) - 1, 1))
    if len(scaled) <= scaled.shape[1]:
        return scaled
    return np.asarray(np.linalg.qr(scaled, mode="r"))
