# SPDX-License-Identifier: Apache-2.0
"""Signs of a collapsed generator, found in synthetic rows and reported in plain words.

A generator that failed still returns rows. The checks ask whether values are finite, whether rows differ at
all, whether pixels vary, whether many rows are nearly the same, whether the rows of a class are, whether a
class is missing, and whether two classes are the same. Without a holdout only images are judged by
distances, against limits that real images keep well away from; rows of a table may repeat for good reasons.
With a holdout its own figures are the measure, for images and tables.

Guarantee  Private rows are not read. Synthetic rows are as private as their release; `holdout` must be
           public.
Edge cases Checks that compare rows use those that are finite, at most 2000 of them, drawn with a fixed seed.
           With fewer than 20 finite rows that is the finding, and nothing is said about distances.
Failure    No value of a synthetic row raises an error: NaN and infinity are findings.
Not here   Low quality that is no collapse (`fidelity`, `train_on_synthetic`). Two classes that are hard to
           tell apart by nearest neighbors, such as photos of cats and dogs, need a holdout to be judged
           fairly.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from sfumato.generative.evaluation.distances import nearest
from sfumato.generative.evaluation.frechet import default_features
from sfumato.generative.evaluation.rows import Floats, LabeledRows, check_same_kind, sample

__all__ = ["CollapseFindings", "CollapseSign", "Finding", "find_collapse"]

_ROWS = 2000  # that are compared with one another
_FEWEST = 20  # rows of which distances say something
_VOTERS = 5  # nearest rows that vote on the class of a row; odd
_CLASS_ROWS = 200  # of a class, compared with those of another
_PAIRS = 20_000  # drawn for a median distance
_PAIRS_NAMED = 5  # pairs of classes that a sentence names

# Limits, each with the extreme figure of real images: 300 to 2000 of digits, MNIST, Fashion-MNIST or CIFAR.
_LEAST_SPREAD = 0.02  # mean standard deviation of pixels (0.19)
_NEAR = 0.2  # of the median distance: a near-duplicate
_MOST_NEAR = 0.3  # share of near-duplicates (0.05)
_MOST_CONSTANT = 0.9  # share of pixels (0.29)
_LEAST_CLASS_SPREAD = 0.35  # median distance within a class, as a share of that of all rows (0.54)
_SAME_CLASSES = 0.4  # rows that are outvoted by the other class; 0.5 if both are the same (0.30)
_TOLD_APART = 0.1  # the same for the median pair of classes, where this can be judged (0.02)
# With a holdout, as a multiple of its figure or beyond it.
_SHARE_OF_SPREAD = 0.4
_NEAR_BESIDE = 0.5  # of the median distance of the nearest rows
_NEAR_BEYOND = 0.1
_CONSTANT_BEYOND = 0.5
_SAME_BEYOND = 0.15
_MOST_CUT_OFF = 0.01  # of the public values of a column


class CollapseSign(enum.Enum):
    """What a finding is about."""

    NOT_FINITE = "not finite"
    TOO_FEW = "too few rows"
    NO_SPREAD = "no spread"
    CONSTANT = "constant values"
    NEAR_DUPLICATES = "near-duplicates"
    CLASS_COLLAPSED = "class without variety"
    CLASS_MISSING = "class missing"
    SAME_CLASSES = "classes alike"
    CUT_OFF = "column cut off"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One sign of collapse.

    Attributes:
        sign: What it is about.
        message: The finding in a sentence.
        value: The figure that was measured.
        limit: The figure beyond which it is reported.
        classes: The classes that it is about; empty if it is about all.
    """

    sign: CollapseSign
    message: str
    value: float
    limit: float
    classes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, kw_only=True, slots=True)
class CollapseFindings:
    """All signs of collapse of a generator.

    Attributes:
        findings: The findings, possibly none.
        rows: The number of synthetic rows.
        with_holdout: Whether a holdout was the measure.
    """

    findings: tuple[Finding, ...]
    rows: int
    with_holdout: bool

    @property
    def collapsed(self) -> bool:
        """Whether there is a finding."""
        return bool(self.findings)

    def with_cut_off(self, shares: Mapping[str, float]) -> "CollapseFindings":
        """Return the findings, and one for each column of which too many public numbers are out of reach.

        Args:
            shares: The share of public numbers beyond the bounds of each column, by its name.

        Returns:
            The findings.
        """
        more = tuple(
            Finding(
                sign=CollapseSign.CUT_OFF,
                message=f"Column {name!r} is cut off: {share:.1%} of its public values lie beyond its "
                "bounds, where no synthetic value is.",
                value=share,
                limit=_MOST_CUT_OFF,
            )
            for name, share in shares.items()
            if share > _MOST_CUT_OFF
        )
        return replace(self, findings=self.findings + more)

    def __str__(self) -> str:
        if self.findings:
            return "\n".join(f"COLLAPSE: {finding}" for finding in self.findings)
        return f"No sign of collapse in {self.rows:,} synthetic rows."


def find_collapse(
    synthetic: LabeledRows, *, holdout: LabeledRows | None = None, seed: int = 0
) -> CollapseFindings:
    """Look for signs of collapse in synthetic rows.

    Args:
        synthetic: The synthetic rows, with any values.
        holdout: Real rows that are public, as a measure; or None.
        seed: The seed of the rows that are compared.

    Returns:
        The findings.

    Raises:
        InvalidParameterError: If the holdout differs in shape or classes, or is not finite.

    >>> same = LabeledRows(features=np.full((30, 1, 8, 8), 0.5), labels=np.arange(30) % 2, classes=2)
    >>> print(find_collapse(same))
    COLLAPSE: All synthetic rows are equal or nearly so: pixels have a mean standard deviation of 0.
    """
    if holdout is not None:
        check_same_kind(synthetic, holdout)
        holdout.require_finite("holdout")
    found = tuple(_findings(synthetic, holdout, seed))
    return CollapseFindings(findings=found, rows=len(synthetic), with_holdout=holdout is not None)


def _findings(synthetic: LabeledRows, holdout: LabeledRows | None, seed: int) -> Iterator[Finding]:
    finite = synthetic.finite
    yield from _not_finite(int((~finite).sum()), len(synthetic))
    yield from _missing_classes(synthetic, holdout)
    if finite.sum() < min(_FEWEST, len(holdout) if holdout is not None else _FEWEST):
        yield _finding(CollapseSign.TOO_FEW, "Fewer than 20 finite rows", int(finite.sum()), _FEWEST)
        return
    ours = synthetic.take(finite)
    ours = ours.take(sample(len(ours), _ROWS, seed=seed))
    theirs = None if holdout is None else holdout.take(sample(len(holdout), _ROWS, seed=seed))
    flat = list(_no_spread(ours, theirs))
    yield from flat
    if not flat:  # all else follows from it
        yield from _constant(ours, theirs)
        yield from _near_duplicates(ours, theirs, seed)
        yield from _collapsed_classes(ours, theirs, seed)
        yield from _same_classes(ours, theirs)


def _finding(
    sign: CollapseSign, message: str, value: float, limit: float, classes: tuple[int, ...] = ()
) -> Finding:
    return Finding(sign=sign, message=f"{message}.", value=float(value), limit=limit, classes=classes)


def _not_finite(broken: int, rows: int) -> Iterator[Finding]:
    if broken:
        told = f"{broken:,} of {rows:,} synthetic rows hold NaN or infinity"
        yield _finding(CollapseSign.NOT_FINITE, told, broken / rows, 0.0)


def _missing_classes(synthetic: LabeledRows, holdout: LabeledRows | None) -> Iterator[Finding]:
    wanted = range(synthetic.classes) if holdout is None else holdout.present
    missing = tuple(k for k in wanted if k not in synthetic.present)
    if missing:
        told = f"There are no synthetic rows of {_named(missing)}"
        yield _finding(CollapseSign.CLASS_MISSING, told, len(missing), 0.0, missing)


def _no_spread(ours: LabeledRows, theirs: LabeledRows | None) -> Iterator[Finding]:
    spread = float(ours.flat.std(axis=0, dtype=np.float64).mean())
    limit = _LEAST_SPREAD if ours.is_images else 0.0
    if theirs is not None:
        limit = min(
            limit or np.inf, _LEAST_SPREAD * float(theirs.flat.std(axis=0, dtype=np.float64).mean()) * 5
        )
    if spread <= limit:
        kind = "pixels" if ours.is_images else "columns"
        told = f"{kind} have a mean standard deviation of {spread:.2g}"
        yield _finding(
            CollapseSign.NO_SPREAD, f"All synthetic rows are equal or nearly so: {told}", spread, limit
        )


def _constant(ours: LabeledRows, theirs: LabeledRows | None) -> Iterator[Finding]:
    kind = "pixels" if ours.is_images else "columns"
    still = np.ptp(ours.flat, axis=0) == 0
    if theirs is not None:
        moving = np.ptp(theirs.flat, axis=0) > 0
        share = float(still[moving].mean()) if moving.any() else 0.0
        if share > _CONSTANT_BEYOND:
            told = f"{share:.0%} of the {kind} that vary in the holdout are constant in synthetic rows"
            yield _finding(CollapseSign.CONSTANT, told, share, _CONSTANT_BEYOND)
    elif ours.is_images and still.mean() > _MOST_CONSTANT:
        told = f"{still.mean():.0%} of the pixels are the same in all synthetic rows"
        yield _finding(CollapseSign.CONSTANT, told, float(still.mean()), _MOST_CONSTANT)


def _near_duplicates(ours: LabeledRows, theirs: LabeledRows | None, seed: int) -> Iterator[Finding]:
    if theirs is not None and len(theirs) >= _FEWEST:
        most = min(len(ours), len(theirs))  # nearest rows are nearer among more rows
        ours, theirs = (rows.take(sample(len(rows), most, seed=seed)) for rows in (ours, theirs))
        apart = float(np.median(nearest(theirs.flat, theirs.flat, same=True)[0]))
        distance = min(_NEAR * _median_distance(theirs.flat, seed), _NEAR_BESIDE * apart)
        limit = _near_share(theirs.flat, distance) + _NEAR_BEYOND
    elif ours.is_images:
        distance, limit = _NEAR * _median_distance(ours.flat, seed), _MOST_NEAR
    else:
        return
    share = _near_share(ours.flat, distance)
    if share > limit:
        told = f"{share:.0%} of the synthetic rows are near-duplicates of another one (limit {limit:.0%})"
        yield _finding(CollapseSign.NEAR_DUPLICATES, told, share, limit)


def _near_share(rows: Floats, distance: float) -> float:
    return float((nearest(rows, rows, same=True)[0][:, 0] <= distance).mean())


def _median_distance(rows: Floats, seed: int) -> float:
    pairs = np.random.default_rng(seed).integers(0, len(rows), (2, _PAIRS))
    first, second = pairs[:, pairs[0] != pairs[1]]
    return float(np.median(np.linalg.norm(rows[first] - rows[second], axis=1)))


def _collapsed_classes(ours: LabeledRows, theirs: LabeledRows | None, seed: int) -> Iterator[Finding]:
    if theirs is None and not ours.is_images:
        return
    overall = _median_distance(ours.flat, seed)
    worst: dict[int, tuple[float, float]] = {}
    for k in ours.present:
        rows = ours.of_class(k)
        real = None if theirs is None else theirs.of_class(k)
        if len(rows) < _FEWEST or (real is not None and len(real) < _FEWEST):
            continue
        limit = (
            _LEAST_CLASS_SPREAD * overall if real is None else _SHARE_OF_SPREAD * _median_distance(real, seed)
        )
        spread = _median_distance(rows, seed)
        if spread < limit:
            worst[k] = spread, limit
    if worst:
        named = tuple(worst)
        told = f"The synthetic rows of {_named(named)} are nearly all the same"
        value, limit = min(worst.values())
        yield _finding(CollapseSign.CLASS_COLLAPSED, told, value, limit, named)


def _same_classes(ours: LabeledRows, theirs: LabeledRows | None) -> Iterator[Finding]:
    if theirs is None and not ours.is_images:
        return
    features = default_features(ours)[0]
    mapped = [None if rows is None else np.asarray(features(rows.features)) for rows in (ours, theirs)]
    pairs = list(combinations(range(ours.classes), 2))
    mixed = {pair: share for pair in pairs if (share := _mixed(mapped[0], ours, *pair)) is not None}
    if not mixed or (theirs is None and not _judged_alone(list(mixed.values()))):
        return
    real = {} if theirs is None else {pair: _mixed(mapped[1], theirs, *pair) or 0.0 for pair in mixed}
    limits = {pair: max(_SAME_CLASSES, real.get(pair, 0.0) + _SAME_BEYOND) for pair in mixed}
    alike = [pair for pair in mixed if mixed[pair] > limits[pair]]
    if alike:
        worst = max(alike, key=lambda pair: mixed[pair])
        named = tuple(sorted({k for pair in alike for k in pair}))
        yield _finding(CollapseSign.SAME_CLASSES, _pairs_in_words(alike), mixed[worst], limits[worst], named)


def _judged_alone(mixed: list[float]) -> bool:
    """Whether nearest rows can tell most classes apart, or none: in between, the classes may be hard."""
    middle = float(np.median(mixed))
    return middle <= _TOLD_APART or middle > _SAME_CLASSES


def _pairs_in_words(pairs: list[tuple[int, int]]) -> str:
    shown = "; ".join(f"{first} and {second}" for first, second in pairs[:_PAIRS_NAMED])
    more = f"; and {len(pairs) - _PAIRS_NAMED} more pairs" if len(pairs) > _PAIRS_NAMED else ""
    return f"Synthetic rows of these classes cannot be told apart: {shown}{more}"


def _mixed(features: Any, rows: LabeledRows, first: int, second: int) -> float | None:
    """Return the share of rows of two classes that their nearest rows outvote; None if they are few."""
    groups = [features[rows.labels == k] for k in (first, second)]
    size = min(_CLASS_ROWS, *map(len, groups))
    if size < _FEWEST:
        return None
    both = np.concatenate([group[:size] for group in groups]).astype(np.float64)
    labels = np.arange(2 * size) >= size
    votes = labels[nearest(both, both, neighbors=_VOTERS, same=True)[1]].mean(axis=1)
    return float(((votes > 0.5) != labels).mean())


def _named(classes: tuple[int, ...]) -> str:
    listed = ", ".join(map(str, classes))
    return f"class {listed}" if len(classes) == 1 else f"classes {listed}"
