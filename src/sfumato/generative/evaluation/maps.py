# SPDX-License-Identifier: Apache-2.0
"""Maps of public and synthetic rows in the plane: principal components and t-SNE.

The axes of the principal components are those of the holdout; synthetic rows are placed on them. t-SNE
places both kinds together, so that they share one map; its distances between groups mean little. Each map
shows at most a given number of rows of each kind, drawn with a fixed seed.

Guarantee  Private rows are not read. `holdout` must be public.
Edge cases Rows with a single value each get 0 as second coordinate. Equal rows have equal places. t-SNE of
           fewer than 4 rows is refused by its method, and None is returned.
Source     van der Maaten and Hinton 2008 (t-SNE). Report R4 shows both (Figures 6.4 and 6.5).
"""

from dataclasses import dataclass

import numpy as np
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from sfumato import _check
from sfumato.generative.evaluation.rows import Floats, Integers, LabeledRows, check_same_kind, sample

__all__ = ["RowMap", "pca_map", "t_sne_map"]

_FEWEST = 4  # rows that t-SNE can place
_PERPLEXITY = 30.0
_FIRST_COMPONENTS = 50  # that t-SNE starts from, as its authors do


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RowMap:
    """Places of public and synthetic rows in the plane.

    Attributes:
        method: The name of the map.
        holdout: The places of holdout rows, [rows, 2].
        synthetic: The places of synthetic rows, [rows, 2].
        holdout_labels: The class of each holdout row.
        synthetic_labels: The class of each synthetic row.
        explained: The share of the holdout's variance along each axis; None for t-SNE.
    """

    method: str
    holdout: Floats
    synthetic: Floats
    holdout_labels: Integers
    synthetic_labels: Integers
    explained: tuple[float, float] | None = None


def pca_map(synthetic: LabeledRows, holdout: LabeledRows, *, rows: int = 500, seed: int = 0) -> RowMap:
    """Return the places of rows on the first two principal components of the holdout.

    Args:
        synthetic: The synthetic rows.
        holdout: Real rows that are public. All of them determine the components.
        rows: The most rows of each kind that are placed.
        seed: The seed of the rows that are placed.

    Returns:
        The map.

    Raises:
        InvalidParameterError: If the rows differ in shape, or a value is not finite.
    """
    ours, theirs = _drawn(synthetic, holdout, rows, seed)
    size = min(2, *holdout.flat.shape)
    axes = PCA(size, svd_solver="full" if min(holdout.flat.shape) < 500 else "randomized", random_state=seed)
    with np.errstate(invalid="ignore", divide="ignore"):  # without variance there is no share of it
        axes.fit(holdout.flat.astype(np.float64))
    shares = np.append(np.nan_to_num(axes.explained_variance_ratio_), [0.0])
    return RowMap(
        method="principal components",
        holdout=_two(axes.transform(theirs.flat.astype(np.float64))),
        synthetic=_two(axes.transform(ours.flat.astype(np.float64))),
        holdout_labels=theirs.labels,
        synthetic_labels=ours.labels,
        explained=(float(shares[0]), float(shares[1])),
    )


def t_sne_map(
    synthetic: LabeledRows, holdout: LabeledRows, *, rows: int = 500, seed: int = 0
) -> RowMap | None:
    """Return the places of rows in one t-SNE map of both kinds.

    Args:
        synthetic: The synthetic rows.
        holdout: Real rows that are public.
        rows: The most rows of each kind that are placed.
        seed: The seed of the rows that are placed.

    Returns:
        The map; None with fewer than 4 rows.

    Raises:
        InvalidParameterError: If the rows differ in shape, or a value is not finite.
    """
    ours, theirs = _drawn(synthetic, holdout, rows, seed)
    both = np.concatenate([theirs.flat, ours.flat]).astype(np.float64)
    if len(both) < _FEWEST:
        return None
    if min(both.shape) > _FIRST_COMPONENTS:
        both = PCA(_FIRST_COMPONENTS, random_state=seed).fit_transform(both)
    # A random start: components of equal rows would be no start at all.
    method = TSNE(perplexity=min(_PERPLEXITY, (len(both) - 1) / 3), init="random", random_state=seed)
    places = np.asarray(method.fit_transform(both), dtype=np.float64)
    return RowMap(
        method="t-SNE",
        holdout=places[: len(theirs)],
        synthetic=places[len(theirs) :],
        holdout_labels=theirs.labels,
        synthetic_labels=ours.labels,
    )


def _drawn(
    synthetic: LabeledRows, holdout: LabeledRows, rows: int, seed: int
) -> tuple[LabeledRows, LabeledRows]:
    _check.count(rows=rows)
    check_same_kind(synthetic, holdout)
    synthetic.require_finite("synthetic")
    holdout.require_finite("holdout")
    return (
        synthetic.take(sample(len(synthetic), rows, seed=seed)),
        holdout.take(sample(len(holdout), rows, seed=seed)),
    )


def _two(places: Floats) -> Floats:
    return places if places.shape[1] == 2 else np.column_stack([places[:, 0], np.zeros(len(places))])
