# SPDX-License-Identifier: Apache-2.0
"""The whole evaluation of synthetic data in one call.

Guarantee  `evaluate` reads synthetic rows and public rows. It reads no private row and charges nothing. The
           result of a charged test (`memorization.near_copies`) can be added to it.
Edge cases Synthetic rows that are not finite are a sign of collapse: they are counted, reported and left out
           of the other measures. If no row is finite, the other measures are empty. Classes that are missing
           are reported (`train_on_synthetic`, `collapse`). A table without a target has no scores and no
           fidelity. Without a holdout only signs of collapse, samples and shares of values are left.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato import _check, _files, _json
from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.classifier_scores import (
    ClassifierScore,
    train_on_synthetic,
    with_real_rows,
)
from sfumato.generative.evaluation.classifiers import Classifiers
from sfumato.generative.evaluation.collapse import CollapseFindings, find_collapse
from sfumato.generative.evaluation.distances import HoldoutDistances, holdout_distances
from sfumato.generative.evaluation.fidelity import ClassFidelity, class_fidelity
from sfumato.generative.evaluation.frechet import Features, FrechetDistance, frechet_distance
from sfumato.generative.evaluation.maps import RowMap, pca_map, t_sne_map
from sfumato.generative.evaluation.marginals import (
    ColumnShares,
    MarginalErrors,
    column_shares,
    cut_off,
    marginal_errors,
)
from sfumato.generative.evaluation.memorization import NearCopies
from sfumato.generative.evaluation.rows import Floats, LabeledRows, labeled_rows
from sfumato.generative.evaluation.table_columns import Columns, features_of, labeled_table

__all__ = ["NO_HOLDOUT", "Evaluation", "EvaluationSettings", "evaluate"]

NO_HOLDOUT = (
    "No public rows were given. A holdout of them would add the scores of classifiers that learned from "
    "synthetic rows, errors of marginals, fidelity, distances and maps."
)
_DISTANCE_ROWS = 2000  # of each kind, whose distances are taken


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSettings:
    """How to evaluate. Nothing here changes a privacy claim.

    Args:
        classifiers: The settings of each classifier, by name. None means four that fit the kind of rows.
        device: The device of the default network for images, such as "cuda". None means the CPU.
        features: The features of fidelity and of the Frechet distance, fixed without private data. None means
            oriented gradients for images, and the numbers themselves for other rows.
        neighbors: Which neighbor's distance is the size of a neighborhood.
        map_rows: The most rows of each kind in a map. 0 means no map.
        t_sne: Whether to make a t-SNE map, which takes longest. None means for images only.
        samples: The number of images of each class that are kept to be shown.
        seed: The seed of splits and samples.

    Raises:
        InvalidParameterError: If a number is out of range.
    """

    classifiers: Classifiers | None = None
    device: str | None = None
    features: Features | None = None
    neighbors: int = 5
    map_rows: int = 500
    t_sne: bool | None = None
    samples: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        _check.count(neighbors=self.neighbors)
        _check.non_negative(map_rows=self.map_rows, samples=self.samples, seed=self.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What was measured about synthetic data.

    Attributes:
        rows: The number of synthetic rows.
        rows_left_out: The number of synthetic rows that are not finite, which only `collapse` judges.
        holdout_rows: The number of public rows; 0 without a holdout.
        collapse: Signs of collapse.
        scores: The scores of classifiers that learned from synthetic rows.
        fidelity: The fidelity and diversity of each class.
        frechet: The Frechet distance; None if no row is finite.
        distances: The distances to public rows; None if no row is finite or there is one public row.
        marginals: The errors of marginals of a table; None for images, or without a holdout.
        shares: How often each value of each column of a table occurs; empty for images.
        maps: Maps of both kinds of rows.
        samples: Some images of each class, by its number; empty for tables.
        memorization: The result of the charged test of copies; None if it was not made.
    """

    rows: int
    rows_left_out: int
    holdout_rows: int
    collapse: CollapseFindings
    scores: tuple[ClassifierScore, ...] = ()
    fidelity: tuple[ClassFidelity, ...] = ()
    frechet: FrechetDistance | None = None
    distances: HoldoutDistances | None = None
    marginals: MarginalErrors | None = None
    shares: Mapping[str, ColumnShares] = field(default_factory=dict[str, ColumnShares], repr=False)
    maps: tuple[RowMap, ...] = ()
    samples: Mapping[int, Floats] = field(default_factory=dict[int, Floats], repr=False)
    memorization: NearCopies | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the samples as plain values.

        Returns:
            Names and values, as JSON knows them.
        """
        return {
            "rows": self.rows,
            "rows_left_out": self.rows_left_out,
            "holdout_rows": self.holdout_rows,
            "collapse": [_fields(each) for each in self.collapse.findings],
            "scores": [_fields(each) for each in self.scores],
            "fidelity": [_fields(each) for each in self.fidelity],
            "frechet": None if self.frechet is None else _fields(self.frechet),
            "distances": None if self.distances is None else _fields(self.distances),
            "marginals": None if self.marginals is None else _marginals(self.marginals),
            "shares": {name: _fields(each) for name, each in self.shares.items()},
            "maps": [_fields(each) for each in self.maps],
            "memorization": None if self.memorization is None else _memorization(self.memorization),
        }

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return everything but the samples as JSON, and write it to a file if a path is given.

        Args:
            path: The file to write. None writes no file.

        Returns:
            The JSON text.
        """
        text = _json.dumps(self.to_dict())
        if path is not None:
            _files.write_whole(Path(path), text.encode())
        return text

    def table(self) -> str:
        """Return the scores and the figures of classes as text, in columns.

        Returns:
            The lines.
        """
        real = any(score.real_accuracy is not None for score in self.scores)
        heads = f"{'classifier':<22}{'accuracy':>10}{'AUROC':>8}" + f"{'(real rows':>12}{'AUROC)':>8}" * real
        lines = [heads] if self.scores else []
        lines += [
            f"{s.classifier:<22}{s.accuracy:>10.1%}{_short(s.auroc):>8}"
            + (f"{_percent(s.real_accuracy):>12}{_short(s.real_auroc):>8}" if real else "")
            for s in self.scores
        ]
        if self.fidelity:
            heads = ("rows", "fidelity", "(real)", "coverage", "recall", "spread")
            lines += ["", f"{'class':<8}" + "".join(f"{head:>10}" for head in heads)]
        for each in self.fidelity:
            figures = (each.fidelity, each.holdout_fidelity, each.coverage, each.recall, each.spread_ratio)
            shown = "".join(f"{_short(figure):>10}" for figure in figures)
            lines.append(f"{each.number:<8}{each.synthetic_rows:>10,}{shown}")
        return "\n".join(lines)

    def __str__(self) -> str:
        notes = dict.fromkeys(note for each in self.scores for note in each.notes)
        against = f" against {self.holdout_rows:,} public rows" if self.holdout_rows else ""
        parts = [
            f"{self.rows:,} synthetic rows{against}.",
            str(self.collapse),
            self.table(),
            *(f"Note: {note}." for note in notes),
            *(self.frechet, self.marginals, self.distances, self.memorization),
            None if self.holdout_rows else NO_HOLDOUT,
        ]
        return "\n".join(str(part) for part in parts if part)


def evaluate(
    synthetic: Any,
    holdout: Any = None,
    *,
    classes: int | None = None,
    columns: Columns | None = None,
    target: str | None = None,
    settings: EvaluationSettings | None = None,
    memorization: NearCopies | None = None,
) -> Evaluation:
    """Evaluate synthetic images or a synthetic table against public rows. No private row is read.

    Args:
        synthetic: The synthetic data: a pair of images [rows, channels, height, width] from 0 to 1 and class
            numbers; or a table, if `columns` are given.
        holdout: Real data that is public, in the same form. None means that only signs of collapse and shares
            of values are reported, which need no real row.
        classes: The number of classes of images.
        columns: The declared columns of a table, by name: `Number` or `Category`; or `generator.domain`.
        target: The column of a table that classifiers predict, a `Category`. None means no scores.
        settings: How to evaluate. None means the defaults.
        memorization: The result of `near_copies`, which was charged before; or None.

    Returns:
        The evaluation.

    Raises:
        InvalidParameterError: If shapes, labels or columns are wrong, or the holdout is not finite.
        MissingDependencyError: If images are evaluated by default features or classifiers without torch.
    """
    chosen = settings or EvaluationSettings()
    if columns is not None:
        found = _evaluated(
            _table_rows(synthetic, columns, target),
            None if holdout is None else _table_rows(holdout, columns, target),
            chosen,
        )
        errors = None if holdout is None else marginal_errors(synthetic, holdout, columns, seed=chosen.seed)
        shares = column_shares(synthetic, columns, holdout=holdout)
        signs = found.collapse.with_cut_off({} if holdout is None else cut_off(holdout, columns))
        return replace(found, collapse=signs, marginals=errors, shares=shares, memorization=memorization)
    if classes is None or target is not None:
        raise InvalidParameterError("pass classes=... for images, or columns=... for tables.")
    public = None if holdout is None else _image_rows(holdout, classes)
    return replace(_evaluated(_image_rows(synthetic, classes), public, chosen), memorization=memorization)


def _image_rows(pair: Any, classes: int) -> LabeledRows:
    if not isinstance(pair, tuple | list) or len(pair) != 2:  # pyright: ignore[reportUnknownArgumentType] - of any kind
        raise InvalidParameterError("give images and their class numbers as a pair: (images, labels).")
    return labeled_rows(pair[0], pair[1], classes=classes)


def _table_rows(table: Any, columns: Columns, target: str | None) -> LabeledRows:
    if target is not None:
        return labeled_table(table, columns, target=target)
    features = features_of(table, columns)
    return LabeledRows(features=features, labels=np.zeros(len(features), dtype=np.int64), classes=1)


def _evaluated(
    synthetic: LabeledRows, holdout: LabeledRows | None, settings: EvaluationSettings
) -> Evaluation:
    finite = synthetic.finite
    found = None
    if holdout is not None and finite.any():
        found = _Measures(synthetic.take(finite), holdout, settings)
    return Evaluation(
        rows=len(synthetic),
        rows_left_out=int((~finite).sum()),
        holdout_rows=0 if holdout is None else len(holdout),
        collapse=find_collapse(synthetic, holdout=holdout, seed=settings.seed),
        scores=found.scores() if found else (),
        fidelity=found.fidelity() if found else (),
        frechet=found.frechet() if found else None,
        distances=found.distances() if found else None,
        maps=found.maps() if found else (),
        samples=_samples(synthetic, settings.samples) if synthetic.is_images else {},
    )


@dataclass(frozen=True, slots=True)
class _Measures:
    """The measures of finite rows."""

    synthetic: LabeledRows
    holdout: LabeledRows
    settings: EvaluationSettings

    def scores(self) -> tuple[ClassifierScore, ...]:
        if self.holdout.classes == 1:
            return ()
        how = self.settings
        found = train_on_synthetic(
            self.synthetic, self.holdout, classifiers=how.classifiers, device=how.device, seed=how.seed
        )
        if self.holdout.is_images:  # whose networks take long
            return found
        return with_real_rows(found, self.holdout, classifiers=how.classifiers, seed=how.seed)

    def fidelity(self) -> tuple[ClassFidelity, ...]:
        how = self.settings
        return class_fidelity(
            self.synthetic, self.holdout, features=how.features, neighbors=how.neighbors, seed=how.seed
        )

    def frechet(self) -> FrechetDistance:
        how = self.settings
        return frechet_distance(self.synthetic, self.holdout, features=how.features, seed=how.seed)

    def distances(self) -> HoldoutDistances | None:
        if len(self.holdout) < 2:
            return None
        ours, theirs = (rows.flat[:_DISTANCE_ROWS] for rows in (self.synthetic, self.holdout))
        return holdout_distances(ours, theirs)

    def maps(self) -> tuple[RowMap, ...]:
        how = self.settings
        if how.map_rows == 0:
            return ()
        first = pca_map(self.synthetic, self.holdout, rows=how.map_rows, seed=how.seed)
        if not (self.holdout.is_images if how.t_sne is None else how.t_sne):
            return (first,)
        second = t_sne_map(self.synthetic, self.holdout, rows=how.map_rows, seed=how.seed)
        return (first,) if second is None else (first, second)


def _samples(rows: LabeledRows, most: int) -> dict[int, Floats]:
    return {k: rows.features[rows.labels == k][:most] for k in rows.present} if most else {}


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a result; an enum by its value."""
    names = value.__dataclass_fields__
    found = {name: getattr(value, name) for name in names}
    return {name: getattr(each, "value", each) for name, each in found.items()}


def _marginals(errors: MarginalErrors) -> dict[str, Any]:
    pairs = [{"columns": pair, "error": error} for pair, error in errors.two_way.items()]
    means = {name: getattr(errors, name) for name in ("mean_one_way", "worst_one_way", "mean_two_way")}
    return {**_fields(errors), "two_way": pairs, **means, "worst_two_way": errors.worst_two_way}


def _memorization(found: NearCopies) -> dict[str, Any]:
    promised = found.release.guarantee
    return {
        **{name: value for name, value in _fields(found).items() if name != "release"},
        "memorized": found.memorized,
        "near_and_far": found.release.value,
        "epsilon": promised.epsilon,
        "delta": promised.delta,
        "relation": promised.relation.value,
        "privacy_unit": promised.privacy_unit,
        "notes": found.release.notes,
    }


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
