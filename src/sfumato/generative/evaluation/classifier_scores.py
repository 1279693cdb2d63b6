# SPDX-License-Identifier: Apache-2.0
"""Train on synthetic rows, test on real ones: how useful synthetic data is for learning a classifier.

Every classifier is fitted and tuned on synthetic rows (`classifiers`), and then scored once on a public
holdout. All scores are returned, not the best: to publish only the best would choose by the holdout.

The AUROC is the mean over classes of the area under the curve "this class against the rest". For two classes
that is the usual AUROC. The curve is the mean of the curves of all classes at equal false-positive rates.

For tables the same classifiers also learn from real rows: from one half of the holdout, scored on the other,
and the other way round. The mean of both is what a score of synthetic rows is to be compared with. Public
rows are often fewer than private ones, so classifiers of the private rows may be better than this.

Guarantee  Private rows are not read. `holdout` must be public: a score on private rows is a release that
           nothing here charges for.
Edge cases A class without synthetic rows has probability 0 in every row: its AUROC is 0.5, as ties count
           half. With a single synthetic class every AUROC is 0.5. A class without rows in the holdout, or
           with all of them, has no AUROC and is left out of the mean; if none is left, the AUROC is None.
           Notes say so.
Source     Esteban, Hyland, Raetsch 2017 (arXiv:1706.02633); the protocol of DPImageBench (arXiv:2503.14681),
           which validates on synthetic images; Hand and Till 2001 (mean over classes).
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import rankdata

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.classifiers import (
    Classifiers,
    FittedClassifier,
    fit_classifier,
    image_classifiers,
    table_classifiers,
)
from sfumato.generative.evaluation.rows import Bools, Floats, LabeledRows, check_same_kind

__all__ = ["ClassifierScore", "auroc", "roc_points", "score", "train_on_synthetic", "with_real_rows"]

Points = tuple[tuple[float, float], ...]

_GRID = np.linspace(0, 1, 101)  # false-positive rates of a curve


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierScore:
    """How well one classifier, trained on synthetic rows, does on the holdout.

    Attributes:
        classifier: The name of the classifier.
        accuracy: The share of holdout rows that it predicts right.
        auroc: The mean AUROC of the classes, each against the rest; None if no class has one.
        class_aurocs: The AUROC of each class, or None.
        curve: Points (false-positive rate, true-positive rate) of the mean ROC curve; empty if there is none.
        validation_accuracy: The accuracy on held-out synthetic rows, by which the setting was chosen; None if
            there was nothing to choose.
        real_accuracy: The accuracy of the classifier if it learns from real public rows (`with_real_rows`);
            None if that was not measured.
        real_auroc: Its AUROC then; None if that was not measured.
        notes: Sentences about classes that are missing.
    """

    classifier: str
    accuracy: float
    auroc: float | None
    class_aurocs: tuple[float | None, ...]
    curve: Points
    validation_accuracy: float | None = None
    real_accuracy: float | None = None
    real_auroc: float | None = None
    notes: tuple[str, ...] = ()


def train_on_synthetic(
    synthetic: LabeledRows,
    holdout: LabeledRows,
    *,
    classifiers: Classifiers | None = None,
    device: str | None = None,
    seed: int = 0,
) -> tuple[ClassifierScore, ...]:
    """Fit every classifier to synthetic rows, and score it on public rows.

    Args:
        synthetic: The synthetic rows.
        holdout: Real rows that are public. They are not used to choose anything.
        classifiers: The settings of each classifier, by name. None means four that fit the kind of rows.
        device: The device of the default network for images. None means the CPU.
        seed: The seed of splits and of the default classifiers.

    Returns:
        One score for each classifier.

    Raises:
        InvalidParameterError: If the rows differ in shape or classes, or hold a value that is not finite.
        MissingDependencyError: If images are given without classifiers, and torch is not installed.

    >>> x, y = np.array([[0.0], [0.1], [0.9], [1.0]] * 5), np.array([0, 0, 1, 1] * 5)
    >>> rows = LabeledRows(features=x, labels=y, classes=2)
    >>> from sklearn.linear_model import LogisticRegression
    >>> [found] = train_on_synthetic(rows, rows, classifiers={"logistic": [LogisticRegression()]})
    >>> found.accuracy, found.auroc
    (1.0, 1.0)
    """
    check_same_kind(synthetic, holdout)
    holdout.require_finite("holdout")
    if classifiers is None:
        classifiers = _default(synthetic, device, seed)
    fitted = [fit_classifier(name, each, synthetic, seed=seed) for name, each in classifiers.items()]
    return tuple(score(each, holdout, notes=_notes(synthetic)) for each in fitted)


def with_real_rows(
    scores: tuple[ClassifierScore, ...],
    holdout: LabeledRows,
    *,
    classifiers: Classifiers | None = None,
    device: str | None = None,
    seed: int = 0,
) -> tuple[ClassifierScore, ...]:
    """Return scores with what each classifier reaches if it learns from half of the public rows.

    Args:
        scores: The scores of classifiers that learned from synthetic rows.
        holdout: Real rows that are public.
        classifiers: The settings of each classifier, by name. None means four that fit the kind of rows.
        device: The device of the default network for images. None means the CPU.
        seed: The seed of the halves and of the default classifiers.

    Returns:
        The scores. Nothing is added if a half has a single class.
    """
    order = np.random.default_rng(seed).permutation(len(holdout))
    halves = holdout.take(order[::2]), holdout.take(order[1::2])
    if min(len(half.present) for half in halves) < 2:
        return scores
    ways = (halves, halves[::-1])
    found = [
        {
            each.classifier: each
            for each in train_on_synthetic(one, other, classifiers=classifiers, device=device, seed=seed)
        }
        for one, other in ways
    ]
    return tuple(replace(each, **_means([way[each.classifier] for way in found])) for each in scores)


def _means(both: list[ClassifierScore]) -> dict[str, float | None]:
    areas = [each.auroc for each in both if each.auroc is not None]
    return {
        "real_accuracy": float(np.mean([each.accuracy for each in both])),
        "real_auroc": float(np.mean(areas)) if areas else None,
    }


def score(model: FittedClassifier, holdout: LabeledRows, *, notes: tuple[str, ...] = ()) -> ClassifierScore:
    """Score a fitted classifier on public rows.

    Args:
        model: The classifier.
        holdout: Real rows that are public.
        notes: Sentences about its training rows.

    Returns:
        The score.
    """
    probabilities = model.probabilities(holdout)
    truth = [holdout.labels == number for number in range(holdout.classes)]
    areas = [auroc(probabilities[:, k], truth[k]) for k in range(holdout.classes)]
    known = [area for area in areas if area is not None]
    absent = [k for k in range(holdout.classes) if areas[k] is None]
    told = (
        (f"no AUROC of classes {_listed(absent)}: the holdout has none or only such rows",) if absent else ()
    )
    curves = [_on_grid(probabilities[:, k], truth[k]) for k in range(holdout.classes) if areas[k] is not None]
    return ClassifierScore(
        classifier=model.name,
        accuracy=float((probabilities.argmax(axis=1) == holdout.labels).mean()),
        auroc=float(np.mean(known)) if known else None,
        class_aurocs=tuple(areas),
        curve=_mean_curve(curves) if curves else (),
        validation_accuracy=model.validation_accuracy,
        notes=(*notes, *told),
    )


def auroc(scores: Floats, positive: Bools) -> float | None:
    """Return the chance that a positive row has a higher score than a negative one; ties count half.

    Args:
        scores: The scores, [rows].
        positive: Which rows are positive, [rows].

    Returns:
        The area; None if one of the two kinds is absent.

    >>> auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    hits = int(positive.sum())
    misses = len(positive) - hits
    if hits == 0 or misses == 0:
        return None
    ranks = rankdata(scores)
    return float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * misses))


def roc_points(scores: Floats, positive: Bools) -> tuple[Floats, Floats]:
    """Return the ROC curve.

    Args:
        scores: The scores, [rows].
        positive: Which rows are positive, [rows].

    Returns:
        False- and true-positive rates, both rising from 0 to 1.

    Raises:
        InvalidParameterError: If one of the two kinds is absent.

    >>> false, true = roc_points(np.array([0.1, 0.9]), np.array([False, True]))
    >>> false.tolist(), true.tolist()
    ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    """
    if positive.all() or not positive.any():
        raise InvalidParameterError("a ROC curve needs rows of the class and rows of other classes.")
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # the last of equal scores
    rates = [np.cumsum(kind[order])[ends] / kind.sum() for kind in (~positive, positive)]
    return np.append(0.0, rates[0]), np.append(0.0, rates[1])


def _default(synthetic: LabeledRows, device: str | None, seed: int) -> Classifiers:
    if not synthetic.is_images:
        return table_classifiers(seed=seed)
    shape = synthetic.features.shape[1:]
    return image_classifiers(
        shape=shape, classes=synthetic.classes, rows=len(synthetic), device=device, seed=seed
    )


def _on_grid(scores: Floats, positive: Bools) -> Floats:
    false, true = roc_points(scores, positive)
    last = np.append(np.diff(false) > 0, True)  # of equal false-positive rates the highest point counts
    return np.interp(_GRID, false[last], true[last])


def _mean_curve(curves: list[Floats]) -> Points:
    mean = np.mean(curves, axis=0)
    points = zip(_GRID.tolist(), mean.tolist(), strict=True)
    return ((0.0, 0.0), *((x, y) for x, y in points))


def _notes(synthetic: LabeledRows) -> tuple[str, ...]:
    missing = [k for k in range(synthetic.classes) if k not in synthetic.present]
    if len(synthetic.present) == 1:
        return (f"all synthetic rows are of class {synthetic.present[0]}: nothing was learned",)
    return (f"no synthetic rows of classes {_listed(missing)}",) if missing else ()


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
