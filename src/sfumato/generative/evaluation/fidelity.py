# SPDX-License-Identifier: Apache-2.0
"""Fidelity and diversity of each class.

- fidelity: the share of synthetic rows of a class that a classifier, fitted to one half of the holdout,
  assigns to that class. `holdout_fidelity` is the same share of the other half: what real rows reach.
- coverage: the share of holdout rows with a synthetic row nearer than their k-th neighbor in the holdout.
- recall: the share of holdout rows that are nearer to a synthetic row than that row's k-th synthetic
  neighbor.
- spread ratio: the mean distance of synthetic rows from their mean, as a multiple of that of the holdout.

A generator that repeats a few good rows has high fidelity, low coverage and a spread ratio below 1. Noise
has low fidelity and a high spread ratio. Distances are taken between the same public features as those of
`frechet`, among rows of one class, with equally many rows of both kinds.

Guarantee  Private rows are not read. `holdout` must be public.
Edge cases A class without rows on one side has fidelity, coverage and the others None, as far as they are
           not defined. With fewer than k + 1 rows, all other rows are the neighbors. If all holdout rows of
           a class are equal, its spread ratio is None.
Source     Naeem et al. 2020, arXiv:2002.09797 (coverage); Kynkaanniemi et al. 2019, arXiv:1904.06991
           (recall).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sfumato import _check
from sfumato.generative.evaluation.classifiers import Classifier, fit_classifier
from sfumato.generative.evaluation.distances import nearest
from sfumato.generative.evaluation.frechet import Features, default_features
from sfumato.generative.evaluation.rows import (
    Floats,
    LabeledRows,
    array_of,
    check_same_kind,
    sample,
)

__all__ = ["ClassFidelity", "class_fidelity"]

_ROUNDING = 1e-12  # relative, of an expanded square
_ROWS = 1000  # of a class: distances between more change the shares little


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassFidelity:
    """How true and how varied the synthetic rows of one class are.

    Attributes:
        number: The class.
        synthetic_rows: The number of its synthetic rows.
        holdout_rows: The number of its rows in the holdout.
        fidelity: The share of synthetic rows that are recognized as of this class.
        holdout_fidelity: The share of holdout rows, not seen by the classifier, that are recognized.
        coverage: The share of holdout rows with a synthetic row in their neighborhood.
        recall: The share of holdout rows in the neighborhood of a synthetic row.
        spread_ratio: The spread of synthetic rows as a multiple of that of the holdout.
    """

    number: int
    synthetic_rows: int
    holdout_rows: int
    fidelity: float | None
    holdout_fidelity: float | None
    coverage: float | None
    recall: float | None
    spread_ratio: float | None


def class_fidelity(
    synthetic: LabeledRows,
    holdout: LabeledRows,
    *,
    features: Features | None = None,
    judge: Classifier | None = None,
    neighbors: int = 5,
    seed: int = 0,
) -> tuple[ClassFidelity, ...]:
    """Return the fidelity and the diversity of each class.

    Args:
        synthetic: The synthetic rows.
        holdout: Real rows that are public.
        features: A function of rows, fixed without private data. None means oriented gradients for images,
            and the numbers themselves for other rows.
        judge: The classifier that recognizes classes, fitted to half of the holdout. It gets the features.
            None means logistic regression.
        neighbors: Which neighbor's distance is the size of a neighborhood.
        seed: The seed of the halves and of the rows that are compared.

    Returns:
        One for each class.

    Raises:
        InvalidParameterError: If the rows differ in shape, or a value or feature is not finite.
    """
    check_same_kind(synthetic, holdout)
    synthetic.require_finite("synthetic")
    holdout.require_finite("holdout")
    _check.count(neighbors=neighbors)
    chosen = default_features(holdout)[0] if features is None else features
    ours, theirs = _in_features(synthetic, chosen), _in_features(holdout, chosen)
    ours.require_finite("features of synthetic")
    theirs.require_finite("features of holdout")
    judged, reference = _judged(ours, theirs, judge, seed)
    return tuple(
        _one_class(k, ours.of_class(k), theirs.of_class(k), (judged[k], reference[k]), neighbors, seed)
        for k in range(holdout.classes)
    )


def _in_features(rows: LabeledRows, features: Features) -> LabeledRows:
    found = array_of(features(rows.features), name="features").astype(np.float64)
    return LabeledRows(features=found, labels=rows.labels, classes=rows.classes)


Shares = list[float | None]


def _judged(
    synthetic: LabeledRows, holdout: LabeledRows, judge: Classifier | None, seed: int
) -> tuple[Shares, Shares]:
    """Return the recognized share of each class: of synthetic rows, and of the other half of the holdout."""
    order = np.random.default_rng(seed).permutation(len(holdout))
    seen, unseen = order[: -(-len(order) // 2)], order[-(-len(order) // 2) :]
    setting: Any = _default_judge() if judge is None else clone(judge)
    model = fit_classifier("judge", [setting], holdout.take(seen), seed=seed)
    recognized = model.probabilities(synthetic).argmax(axis=1)
    if len(unseen) == 0:
        return _shares(recognized == synthetic.labels, synthetic), [None] * holdout.classes
    others = holdout.take(unseen)
    right = model.probabilities(others).argmax(axis=1) == others.labels
    return _shares(recognized == synthetic.labels, synthetic), _shares(right, others)


def _default_judge() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=200))


def _shares(right: Any, rows: LabeledRows) -> Shares:
    counts = rows.counts
    hits = np.bincount(rows.labels, weights=right, minlength=rows.classes)
    return [float(hits[k] / counts[k]) if counts[k] else None for k in range(rows.classes)]


def _one_class(
    number: int,
    synthetic: Floats,
    holdout: Floats,
    shares: tuple[float | None, float | None],
    neighbors: int,
    seed: int,
) -> ClassFidelity:
    most = min(len(synthetic), len(holdout), _ROWS)
    ours, theirs = (rows[sample(len(rows), most, seed=seed)] for rows in (synthetic, holdout))
    coverage = recall = None
    if most > 1:
        coverage = float((nearest(theirs, ours)[0][:, 0] <= _radii(theirs, neighbors)).mean())
        recall = float((_squares(theirs, ours) <= _radii(ours, neighbors) ** 2).any(axis=1).mean())
    return ClassFidelity(
        number=number,
        synthetic_rows=len(synthetic),
        holdout_rows=len(holdout),
        fidelity=shares[0],
        holdout_fidelity=shares[1],
        coverage=coverage,
        recall=recall,
        spread_ratio=_ratio(_spread(synthetic), _spread(holdout)),
    )


def _squares(rows: Floats, others: Floats) -> Floats:
    """Return squared distances [rows, others], less what rounding may add to the distance of equal rows."""
    middle = others.mean(axis=0)
    here, there = rows - middle, others - middle
    squares = (here**2).sum(axis=1)[:, None] + (there**2).sum(axis=1)
    return squares - 2 * here @ there.T - _ROUNDING * squares


def _radii(rows: Floats, neighbors: int) -> Floats:
    return nearest(rows, rows, neighbors=min(neighbors, len(rows) - 1), same=True)[0][:, -1]


def _spread(rows: Floats) -> float | None:
    if len(rows) < 2:
        return None
    return float(np.linalg.norm(rows - rows.mean(axis=0), axis=1).mean())


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else ours / theirs
