# SPDX-License-Identifier: Apache-2.0
"""Rounds of AIM: choose the marginal that the model has most wrong, measure it with noise, and fit again.

The score of a candidate is its weight times (the L1 distance of its counts from the model's, minus what the
noise of a measurement would add). The model's counts are first rounded to 1/256, so the score is computed in
whole numbers: one row moves the distance by at most 1, and no rounding adds to it.

Guarantee  Private counts are used twice: in the score of an exponential mechanism and under `CountNoise`.
           Everything else is computed from noisy results and public sizes: the model, which candidates fit
           in memory, whether the chosen one does, how much noise comes next, when to stop. A unit of k rows
           moves each L1 distance by at most k, so each score by at most k times the largest weight; it moves
           a marginal by at most k in Euclidean norm. There are at most `rounds` choices, of
           `selection_epsilon` each, and the noise is within its budget.
           So is the last step: if the noisy counts of the values that are missing or not listed, of all
           measurements of a column together, are below `_SEEN` standard deviations of their noise, the model
           gives such values probability 0. Otherwise noise alone would put blanks into complete columns.
Neighbors  Add-or-remove. The model that scores are compared with is the same for both neighbors; the number
           of rows, which is private, is estimated from noisy counts.
Source     McKenna, Mullins, Sheldon, Miklau 2022, arXiv:2201.12677, Algorithms 2 and 3 and Section 4.3, with
           a fixed epsilon for each choice instead of one that grows with the noise budget of a round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sfumato.accounting.guarantee import Relation
from sfumato.generative.tables.count_noise import CountNoise, NoiseBudget
from sfumato.generative.tables.model.graphical_model import GraphicalModel, Measurement, estimate
from sfumato.generative.tables.model.junction_tree import Clique
from sfumato.generative.tables.model.tree_growth import TreeGrowth
from sfumato.mechanisms.random import Generator
from sfumato.mechanisms.selection import Exponential

__all__ = ["AdaptiveRounds", "TableCounts", "score", "without_missing"]

Codes = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]

GRID = 256  # steps of a count in which scores are computed
_MORE = 2.0  # times the noise budget of a round, once a measurement shows little that is new (AIM: 4)
_LARGEST_SCORE = 2**53  # a float holds it; a bound on a score does not raise its sensitivity
_MOST_KEPT = 2**24  # cells of private counts that are kept for the next round
_SEEN = 2.0  # standard deviations: a complete column gets blanks with a chance of 2%
_LAST = 2.0  # if less than this many rounds' budget is left, the next round takes all of it


class TableCounts:
    """The private counts of a table of codes, which leave this class only through a mechanism.

    Args:
        codes: The private codes, [rows, columns].
        sizes: The number of codes of each column.
        rows_per_unit: The most rows of one unit.
    """

    def __init__(self, codes: Codes, sizes: Sequence[int], *, rows_per_unit: int) -> None:
        self._codes, self._sizes, self._bound = codes, tuple(sizes), rows_per_unit
        self._known: dict[Clique, Counts] = {}
        self._kept = 0

    def noisy(self, columns: Clique, noise: CountNoise, generator: Generator | None) -> Measurement:
        """Return a marginal with noise.

        Args:
            columns: Its columns.
            noise: The noise, which its budget has paid for.
            generator: Source of randomness.

        Returns:
            The measurement.
        """
        values = noise.add(self._counts(columns), generator=generator)
        return Measurement(columns=columns, values=values, stddev=noise.stddev)

    def worst(
        self,
        weights: Mapping[Clique, int],
        model: GraphicalModel,
        *,
        stddev: float,
        epsilon: float,
        generator: Generator | None,
    ) -> Clique:
        """Choose a marginal that the model has wrong, by the exponential mechanism.

        Args:
            weights: The weight of each candidate.
            model: The model, which was fitted to noisy marginals.
            stddev: The noise of the measurement that follows.
            epsilon: The cost of the choice.
            generator: Source of randomness.

        Returns:
            The columns of the chosen marginal.
        """
        known = list(weights)
        scores = [
            float(score(self._counts(each), model.total * model.marginal(each), weights[each], stddev=stddev))
            for each in known
        ]
        mechanism = Exponential(
            epsilon=epsilon,
            sensitivity=float(GRID * self._bound * max(weights.values())),
            relation=Relation.ADD_REMOVE,
        )
        return known[mechanism.release(scores, generator=generator)]

    def _counts(self, columns: Clique) -> Counts:
        if columns in self._known:
            return self._known[columns]
        shape = [self._sizes[column] for column in columns]
        cells = np.ravel_multi_index(tuple(self._codes[:, column] for column in columns), shape)
        counted = np.bincount(cells, minlength=math.prod(shape)).astype(np.int64).reshape(shape)
        if self._kept + counted.size <= _MOST_KEPT:
            self._known[columns] = counted
            self._kept += counted.size
        return counted


def score(counts: Counts, expected: npt.NDArray[np.float64], weight: int, *, stddev: float) -> int:
    """Return how wrong a model is about a marginal, in steps of 1/256; one row moves it by `weight` * 256.

    Args:
        counts: The private counts.
        expected: The model's counts.
        weight: The weight of the marginal.
        stddev: The noise of a measurement.

    Returns:
        The score.

    >>> score(np.array([3, 1]), np.array([2.0, 2.5]), 2, stddev=0.1) / 256
    4.6796875
    """
    apart = int(np.abs(counts * GRID - np.rint(expected * GRID).astype(np.int64)).sum())
    penalty = round(math.sqrt(2 / math.pi) * stddev * counts.size * GRID)
    return min(max(weight * (apart - penalty), -_LARGEST_SCORE), _LARGEST_SCORE)


@dataclass(frozen=True, kw_only=True)
class AdaptiveRounds:
    """The plan of a fit, without data.

    Args:
        sizes: The number of codes of each column.
        weights: The weight of each candidate.
        rounds: The most choices.
        selection_epsilon: The epsilon of each choice.
        first_share: The share of the noise budget for all single columns, which are measured first.
        most_cells: The most cells of the junction tree.
        iterations: The most steps of mirror descent in a round.
        with_missing: The columns whose last code is that of missing and unlisted values.
    """

    sizes: tuple[int, ...]
    weights: Mapping[Clique, int]
    rounds: int
    selection_epsilon: float
    first_share: float
    most_cells: int
    iterations: int
    with_missing: tuple[int, ...] = ()

    def run(
        self,
        table: TableCounts,
        budget: NoiseBudget,
        *,
        generator: Generator | None,
        advance: Callable[[], None] = lambda: None,
    ) -> GraphicalModel:
        """Measure and fit until the noise budget or the choices are used up.

        Args:
            table: The private counts.
            budget: The noise budget.
            generator: Source of randomness.
            advance: Called after each round, for a progress bar.

        Returns:
            The model.
        """
        columns = len(self.sizes)
        found = [
            table.noisy((column,), budget.noise(self.first_share / columns), generator)
            for column in range(columns)
        ]
        model = estimate(self.sizes, found, iterations=self.iterations)
        share, growth = budget.left / self.rounds, TreeGrowth(self.sizes)
        for number in range(self.rounds):
            share = self._next_share(share, budget.left, self.rounds - number)
            allowed = (budget.used + share) * self.most_cells  # more is allowed later on
            chosen = table.worst(
                {each: self.weights[each] for each in growth.fitting(self.weights, most_cells=allowed)},
                model,
                stddev=budget.stddev(share),
                epsilon=self.selection_epsilon,
                generator=generator,
            )
            if not growth.admits(chosen, most_cells=allowed):
                advance()
                continue
            growth.add(chosen)
            noise = budget.noise(share)
            found.append(table.noisy(chosen, noise, generator))
            before, model = model, estimate(self.sizes, found, start=model, iterations=self.iterations)
            advance()
            if budget.left <= 1e-6 * share:
                break
            share = share * _MORE if _little_new(before, model, chosen, noise.stddev) else share
        # Not until nothing changes: that fits the noise, and was worse on real tables.
        model = estimate(self.sizes, found, start=model, iterations=self.iterations)
        return without_missing(model, [each for each in self.with_missing if not _has_missing(each, found)])

    def _next_share(self, share: float, left: float, rounds: int) -> float:
        """Return the share of the next round: all that is left if it is little, or if this is the last."""
        share = max(share, left / rounds)
        return left * (1 - 1e-12) if left < _LAST * share else share


def without_missing(model: GraphicalModel, columns: Sequence[int]) -> GraphicalModel:
    """Return a model that gives the last code of some columns probability 0.

    Args:
        model: The model.
        columns: The numbers of the columns. One with a single code is left as it is.

    Returns:
        The model.

    >>> model = GraphicalModel(sizes=(3,), total=10.0, potentials={(0,): np.zeros(3)})
    >>> without_missing(model, [0]).marginal((0,))
    array([0.5, 0.5, 0. ])
    """
    potentials = dict(model.potentials)
    for column in columns:
        size = model.sizes[column]
        if size > 1:
            closed = np.array(potentials.get((column,), np.zeros(size)))
            closed[-1] = -np.inf
            potentials[(column,)] = closed
    return replace(model, potentials=potentials)


def _has_missing(column: int, found: Sequence[Measurement]) -> bool:
    """Return whether noisy counts of the last code of a column are above what their noise makes."""
    count = precision = 0.0
    for each in found:
        if column in each.columns:
            last = each.values.take(-1, axis=each.columns.index(column))
            weight = 1 / (each.stddev**2 * last.size)  # the noise of a sum of so many counts
            count += weight * float(last.sum())
            precision += weight
    return count > _SEEN * math.sqrt(precision)


def _little_new(before: GraphicalModel, after: GraphicalModel, chosen: Clique, stddev: float) -> bool:
    """Return whether a measurement moved the model by no more than its noise would."""
    one, two = before.total * before.marginal(chosen), after.total * after.marginal(chosen)
    return bool(np.abs(one - two).sum() <= math.sqrt(2 / math.pi) * stddev * one.size)
