# SPDX-License-Identifier: Apache-2.0
"""Searches for events that separate two data sets: scores of outputs, learned from some of them.

A search learns, from outputs on two neighboring data sets, scores that are high for outputs of the first one
and low for those of the second. `best_event` then tries thresholds, on other outputs, and keeps the event
"score above the threshold", or "not above" for the other direction, that promises the largest epsilon. The
promise is not a bound: the bound is computed on outputs that neither step used
(`audit.mechanisms.mechanism_attack`).

- `Outcomes`: every output by itself, with its share in both. It is exhaustive if a mechanism has few
  outcomes.
- `Tails`: each feature of the numbers as it is: the ends, where Gaussian losses grow.
- `Histogram`: bins of each feature, sorted by how much likelier they are on the first data set.
- `Classifier`: a logistic regression and a small tree on all numbers, for what no single feature shows.
- `LowBits`: the last digit that is not zero. It finds noise that was added in floating point, where sums of
  different numbers end in different places (Mironov 2012). It refutes noise that is `for study only`, and is
  not among the default searches.

An event takes all outputs of equal score or none. DP-Sniper needs a coin for some of them to reach a power
fixed beforehand; here the threshold is free, and (p + t p') / (q + t q') is largest at an end of 0 <= t <=
1.

Source     Bichsel, Steffen, Bogunovic, Vechev 2021, "DP-Sniper: black-box discovery of differential privacy
           violations using classifiers"; Neyman and Pearson 1933 (the best events are those of the largest
           likelihood ratio).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from sfumato import _check
from sfumato.audit.mechanisms.outputs import Outputs, commonest_kind

__all__ = [
    "EVENTS",
    "Classifier",
    "Event",
    "EventSearch",
    "Histogram",
    "LowBits",
    "Outcomes",
    "Score",
    "Tails",
    "best_event",
]

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Score = Callable[[Outputs], Floats]  # [outputs], higher: more likely of the first data set
Feature = Callable[[Floats], Floats]  # [outputs, numbers] to [outputs]

_MOST_COLUMNS = 8  # that become features of their own: those which differ most
_THRESHOLDS = 30  # tried from each end of the scores
_UNLIKELY = 1e-3  # what an event promises must not be luck, of which there is much among many events
_FAR = 1e150  # what an infinity counts as where one computes with it


class EventSearch(Protocol):
    """A search for events: yields named scores of outputs."""

    def scores(self, first: Outputs, second: Outputs) -> Iterator[tuple[str, Score]]:
        """Learn from outputs on the first and on the second data set."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """Outputs whose score is above a threshold, likelier on the first data set; or those that are not.

    With `reverse` the event is that the score is not above, likelier on the second data set.

    Attributes:
        name: The name of the event.
        score: The score of outputs.
        threshold: The threshold of the score.
        reverse: Whether the event is that the score is not above the threshold.
        promise: The epsilon that the event seemed to show when it was chosen. It is not a bound.
    """

    name: str
    score: Score
    threshold: float
    reverse: bool
    promise: float

    def holds(self, outputs: Outputs) -> Flags:
        """Return for which outputs the event happened."""
        above = self.score(outputs) > self.threshold
        return ~above if self.reverse else above


# --- from scores to events --------------------------------------------------------------------------------


def best_event(
    scores: Sequence[tuple[str, Score]], first: Outputs, second: Outputs, *, delta: float
) -> Event:
    """Return the event that promises the largest epsilon on these outputs, in either direction."""
    found = (_best_threshold(name, score, first, second, delta) for name, score in scores)
    return max(found, key=lambda event: event.promise)


def _best_threshold(name: str, score: Score, first: Outputs, second: Outputs, delta: float) -> Event:
    one, two = np.sort(score(first)), np.sort(score(second))
    cuts = _cuts(np.concatenate([one, two]))
    above = [len(known) - np.searchsorted(known, cuts, side="right") for known in (one, two)]
    forward = _promises(above[0], len(one), above[1], len(two), delta)
    backward = _promises(len(two) - above[1], len(two), len(one) - above[0], len(one), delta)
    reverse = bool(backward.max() > forward.max())
    promised = backward if reverse else forward
    at = int(promised.argmax())
    return Event(name, score, float(cuts[at]), reverse, float(promised[at]))


def _cuts(scores: Floats) -> Floats:
    """Return thresholds: some scores, close to one another at both ends."""
    ordered = np.sort(scores)
    ranks = np.unique(np.geomspace(1, len(ordered), _THRESHOLDS).astype(np.int64)) - 1
    return np.unique(np.concatenate([ordered[ranks], ordered[len(ordered) - 1 - ranks]]))


def _promises(
    hits: npt.NDArray[np.integer], runs: int, others: npt.NDArray[np.integer], other_runs: int, delta: float
) -> Floats:
    """Return log((p - delta) / q) with p and q at pessimistic values, -inf for none."""
    likely = np.where(hits > 0, beta.ppf(_UNLIKELY, np.maximum(hits, 1), runs - hits + 1), 0.0)
    unlikely = np.where(
        others < other_runs, beta.ppf(1 - _UNLIKELY, others + 1, np.maximum(other_runs - others, 1)), 1.0
    )
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(likely - delta, 0.0) / unlikely)


# --- searches ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Every output, and every kind of output, by itself."""

    def scores(self, first: Outputs, second: Outputs) -> Iterator[tuple[str, Score]]:
        """Yield the share of each outcome, and of each kind."""
        yield "outcomes", _likelier(_keys, first, second)
        if len({*first.kinds, *second.kinds}) > 1:
            yield "kinds of outcomes", _likelier(_kinds, first, second)


@dataclass(frozen=True, slots=True)
class Tails:
    """Outputs whose numbers are large, or small."""

    def scores(self, first: Outputs, second: Outputs) -> Iterator[tuple[str, Score]]:
        """Yield each feature, upwards and downwards."""
        kind = commonest_kind(first, second)
        for name, feature in _features(kind, first, second):
            yield f"large {name}", _of_feature(kind, feature, 1.0)
            yield f"small {name}", _of_feature(kind, feature, -1.0)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Bins with equally many outputs, for each feature of their numbers.

    Args:
        bins: The numbers of bins to try.
    """

    bins: tuple[int, ...] = (8, 32, 128)

    def __post_init__(self) -> None:
        for count in self.bins:
            _check.count(bins=count)

    def scores(self, first: Outputs, second: Outputs) -> Iterator[tuple[str, Score]]:
        """Yield for each feature and number of bins how much likelier each bin is."""
        kind = commonest_kind(first, second)
        for name, feature in _features(kind, first, second):
            values = np.concatenate([feature(outputs.of_kind(kind)[1]) for outputs in (first, second)])
            for count in self.bins:
                edges = np.unique(np.quantile(values, np.arange(1, count) / count, method="lower"))
                cells = _binned(kind, feature, edges)
                yield f"{count} bins of {name}", _likelier(cells, first, second)


@dataclass(frozen=True, slots=True)
class LowBits:
    """The place of the last binary digit of a number that is not zero."""

    def scores(self, first: Outputs, second: Outputs) -> Iterator[tuple[str, Score]]:
        """Yield for each number how much likelier each place is.

        Args:
            first: Outputs on one data set.
            second: Outputs on its neighbor.

        Yields:
            Names and scores.
        """
        kind = commonest_kind(first, second)
        for column in range(min(_MOST_COLUMNS, first.of_kind(kind)[1].shape[1])):
            cells = _cells(kind, lambda rows, column=column: _lowest_bit(rows[:, column]))
            yield f"last digit of number {column + 1}", _likelier(cells, first, second)


@dataclass(frozen=True, slots=True)
class Classifier:
    """A logistic regression and a decision tree, on all numbers of the most frequent kind of output.

    Args:
        depth: The depth of the tree.
    """

    depth: int = 5

    def __post_init__(self) -> None:
        _check.count(depth=self.depth)

    def scores(self, first: Outputs, second: Outputs) -> Iterator[tuple[str, Score]]:
        """Yield what each of the two learned."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.tree import DecisionTreeClassifier

        kind = commonest_kind(first, second)
        one, two = (outputs.of_kind(kind)[1] for outputs in (first, second))
        if not (len(one) and len(two) and one.shape[1]):
            return
        table = _table(np.concatenate([one, two]))
        labels = np.repeat([1, 0], [len(one), len(two)])
        leaf = max(10, len(labels) // 100)
        tree = DecisionTreeClassifier(max_depth=self.depth, min_samples_leaf=leaf, random_state=0)
        for name, model in (("logistic regression", LogisticRegression(max_iter=500)), ("tree", tree)):
            model.fit(table(np.concatenate([one, two])), labels)
            yield name, _of_feature(kind, _by_model(model, table), 1.0)


EVENTS: tuple[EventSearch, ...] = (Outcomes(), Tails(), Histogram(), Classifier())


# --- likelihood ratios of cells ---------------------------------------------------------------------------

Cells = Callable[[Outputs], Sequence[Hashable]]


def _keys(outputs: Outputs) -> Sequence[Hashable]:
    return outputs.keys()


def _kinds(outputs: Outputs) -> Sequence[Hashable]:
    return outputs.kinds


def _likelier(cells: Cells, first: Outputs, second: Outputs) -> Score:
    """Return the score that is the log of the ratio of both shares of a cell; 0 for one never seen."""
    one, two = Counter(cells(first)), Counter(cells(second))
    known = {*one, *two}
    # Half a hit is added to each: a cell that was seen only once is weak evidence.
    ratios = {
        cell: np.log((one[cell] + 0.5) / (two[cell] + 0.5) * len(second) / len(first)) for cell in known
    }
    return lambda outputs: np.array([ratios.get(cell, 0.0) for cell in cells(outputs)], dtype=np.float64)


def _cells(kind: Hashable, number_of: Callable[[Floats], npt.NDArray[np.int64]]) -> Cells:
    """Return the cells of outputs of a kind by their numbers, and of all others by their kind."""

    def cells(outputs: Outputs) -> Sequence[Hashable]:
        found: list[Hashable] = list(outputs.kinds)
        mask, rows = outputs.of_kind(kind)
        if len(rows):
            for place, number in zip(np.flatnonzero(mask), number_of(rows).tolist(), strict=True):
                found[place] = (kind, number)
        return found

    return cells


def _binned(kind: Hashable, feature: Feature, edges: Floats) -> Cells:
    return _cells(kind, lambda rows: np.searchsorted(edges, feature(rows), side="left"))


def _lowest_bit(values: Floats) -> npt.NDArray[np.int64]:
    """Return the exponent of the lowest bit of each value that is set."""
    mantissas, exponents = np.frexp(np.where(np.isfinite(values), values, 0.0))
    whole = np.abs(np.ldexp(mantissas, 53)).astype(np.int64)
    zeros = np.log2(np.maximum(whole & -whole, 1)).astype(np.int64)  # a power of two: exact
    return np.where(whole > 0, exponents.astype(np.int64) - 53 + zeros, -2000)


# --- features of numbers ----------------------------------------------------------------------------------


def _features(kind: Hashable, first: Outputs, second: Outputs) -> Iterator[tuple[str, Feature]]:
    """Yield features of the numbers of an output: the numbers that differ most, and all together."""
    one, two = (outputs.of_kind(kind)[1] for outputs in (first, second))
    width = max(one.shape[1], two.shape[1])
    if not width:
        return
    if not (len(one) and len(two)):  # only one of them has this kind, which separates them by itself
        return
    apart = _apart(one, two)
    for column in np.argsort(-np.abs(apart), kind="stable")[:_MOST_COLUMNS].tolist():
        yield f"number {column + 1}", lambda rows, column=column: rows[:, column]
    if width == 1:
        yield "size", lambda rows: np.abs(rows[:, 0])
        return
    yield "direction", lambda rows: _near(rows) @ apart
    yield "length", lambda rows: np.linalg.norm(_near(rows), axis=1)
    yield "sum", lambda rows: _near(rows).sum(axis=1)
    yield "largest", lambda rows: rows.max(axis=1)
    yield "smallest", lambda rows: rows.min(axis=1)


def _apart(one: Floats, two: Floats) -> Floats:
    """Return by how many spreads each number differs between the data sets, in the middle."""
    both = _near(np.concatenate([one, two]))
    spread = np.subtract(*np.quantile(both, [0.9, 0.1], axis=0))
    gap = np.clip(_near(one), *_ends(both)).mean(axis=0) - np.clip(_near(two), *_ends(both)).mean(axis=0)
    return np.where(spread > 0, gap / np.where(spread > 0, spread, 1.0), gap)


def _ends(rows: Floats) -> Any:
    return np.quantile(rows, [0.02, 0.98], axis=0)


def _near(rows: Floats) -> Floats:
    return np.clip(rows, -_FAR, _FAR)


def _of_feature(kind: Hashable, feature: Feature, sign: float) -> Score:
    """Return a score from a feature of one kind of output; all other kinds are below every threshold."""

    def score(outputs: Outputs) -> Floats:
        mask, rows = outputs.of_kind(kind)
        scores = np.full(len(outputs), -np.inf)
        if len(rows):
            scores[mask] = sign * feature(rows)
        return scores

    return score


def _table(rows: Floats) -> Feature:
    """Return what makes columns for a classifier: each number in spreads from its middle, and its size."""
    rows = _near(rows)
    middle = np.median(rows, axis=0)
    spread = np.subtract(*np.quantile(rows, [0.75, 0.25], axis=0))
    spread = np.where(spread > 0, spread, np.maximum(np.abs(rows - middle).max(axis=0), 1e-300))

    def columns(given: Floats) -> Floats:
        near = np.clip((_near(given) - middle) / spread, -20.0, 20.0)
        return np.concatenate([near, np.abs(near)], axis=1)

    return columns


def _by_model(model: Any, table: Feature) -> Feature:
    return lambda rows: np.asarray(model.predict_proba(table(rows))[:, 1], dtype=np.float64)
