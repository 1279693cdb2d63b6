# SPDX-License-Identifier: Apache-2.0
"""A distribution over coded tables that fits noisy marginals: estimation, marginals and sampled rows.

Among all distributions, the one is sought whose marginals are nearest to the measured ones, in squares
weighted by the variances of the noise. The distribution is an exponential family with one log-potential for
each measured marginal, and mirror descent moves the log-potentials against the gradient of the squares. A
step is accepted if it brings at least half of what the gradient promised; else it is halved. Further steps
start from the mixture of the last points whose squares would be least if marginals were linear in the
log-potentials (Anderson mixing); one that does not lower the squares is replaced by a plain step.

Guarantee  Nothing private is used: only noisy counts, public sizes and a seed. All of it is post-processing.
Edge cases Noisy counts may be negative. A total below 1 counts as 1, and one above 2^36 as 2^36.
Source     McKenna, Sheldon, Miklau 2019, arXiv:1901.09136 (Private-PGM), Algorithm 1, with a line search;
           Walker and Ni 2011 (Anderson mixing);
           sampling with few roundings as in its synthetic data, here by systematic sampling (Madow 1949).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sfumato.generative.tables.model.belief_propagation import Beliefs, Floats, Propagation, summed_to
from sfumato.generative.tables.model.clique_marginals import MarginalQueries
from sfumato.generative.tables.model.junction_tree import Clique, JunctionTree, junction_tree

__all__ = ["GraphicalModel", "Measurement", "estimate", "estimated_total"]

Codes = npt.NDArray[np.int64]

_ENOUGH = 1e-5  # relative decrease of the loss in one step below which descent stops
_TRIES = 25  # halvings of a step
_MOST_ROWS = 2.0**36  # of a model: its counts in steps of 1/256, added up, still fit 64 bits
_MEMORY = 8  # points that are mixed
_FASTER = 1.2  # times: the first step length that is tried after an accepted one


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Measurement:
    """A noisy marginal.

    Args:
        columns: The numbers of its columns, rising.
        values: The noisy counts, one axis for each column.
        stddev: The standard deviation of the noise on each count.
    """

    columns: Clique
    values: Floats
    stddev: float


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphicalModel:
    """A distribution given by log-potentials.

    Args:
        sizes: The number of values of each column.
        total: The number of rows that the model stands for.
        potentials: Log-potentials by their columns.
        stride: The length of the last step of the descent that made the model, for the next descent.
    """

    sizes: tuple[int, ...]
    total: float
    potentials: Mapping[Clique, Floats] = field(repr=False)
    stride: float = field(default=1.0, repr=False)

    @cached_property
    def tree(self) -> JunctionTree:
        """The junction tree of the potentials."""
        return junction_tree(self.sizes, self.potentials)

    @cached_property
    def beliefs(self) -> Beliefs:
        """The marginals of the tree's cliques."""
        return Propagation(self.tree, self.sizes, tuple(self.potentials)).run(self.potentials)

    @cached_property
    def _queries(self) -> MarginalQueries:
        return MarginalQueries(self.beliefs, self.sizes)

    def marginal(self, columns: Clique) -> Floats:
        """Return the probabilities of the values of some columns together.

        Args:
            columns: The numbers of the columns, in the order of the result's axes.

        Returns:
            The probabilities.

        >>> model = GraphicalModel(sizes=(2, 2), total=10.0, potentials={(0,): np.log([1.0, 3.0])})
        >>> model.marginal((1, 0))
        array([[0.125, 0.375],
               [0.125, 0.375]])
        """
        return self._queries.marginal(columns)

    def given(self, codes: Mapping[int, int]) -> "GraphicalModel":
        """Return the model under the condition that columns have these codes.

        Args:
            codes: The code of each column that is fixed.

        Returns:
            The conditional model.

        Raises:
            ImpossibleError: If the condition has probability zero in the model.
        """
        fixed = {(column,): _only(self.sizes[column], code) for column, code in codes.items()}
        both = {each: self.potentials.get(each, 0.0) + added for each, added in fixed.items()}
        found = GraphicalModel(sizes=self.sizes, total=self.total, potentials={**self.potentials, **both})
        _ = found.beliefs  # raises if nothing is left
        return found

    def sample(self, rows: int, randomness: np.random.Generator) -> Codes:
        """Return rows of codes.

        In every clique and for every value of the separator, the numbers of rows are the expected ones,
        rounded up or down. So small samples vary less than independent rows would.

        Args:
            rows: How many rows.
            randomness: The source of randomness. Nothing private depends on it.

        Returns:
            The codes, [rows, columns], in random order.
        """
        codes = np.zeros((rows, len(self.sizes)), dtype=np.int64)
        tree, beliefs = self.tree, self.beliefs
        for place, axes in enumerate(beliefs.axes):
            separator = tree.separators[place]
            free = tuple(column for column in axes if column not in separator)
            rest = [self.sizes[column] for column in free]
            groups = _group(codes, separator, self.sizes)
            table = summed_to(beliefs.tables[place], axes, separator + free)
            cells = table.reshape(math.prod(self.sizes[c] for c in separator), -1)
            drawn = _systematic(cells, groups, randomness)
            for column, values in zip(free, np.unravel_index(drawn, rest) if rest else (), strict=True):
                codes[:, column] = values
        return randomness.permutation(codes)


def _only(size: int, code: int) -> Floats:
    allowed = np.full(size, -np.inf)
    allowed[code] = 0.0
    return allowed


def _group(codes: Codes, separator: Clique, sizes: Sequence[int]) -> Codes:
    if not separator:
        return np.zeros(len(codes), dtype=np.int64)
    return np.ravel_multi_index(
        tuple(codes[:, column] for column in separator), [sizes[column] for column in separator]
    )


def _systematic(table: Floats, groups: Codes, randomness: np.random.Generator) -> Codes:
    """Return a cell for each row: [groups, cells] probabilities, and the group of each row.

    The rows of a group, in random order, take evenly spaced points with one random start.
    """
    order = np.lexsort((randomness.random(len(groups)), groups))
    sizes = np.bincount(groups, minlength=len(table))
    first = np.cumsum(sizes) - sizes
    used = np.flatnonzero(sizes)
    sorted_groups = groups[order]
    rank = np.arange(len(groups)) - first[sorted_groups]
    start = randomness.random(len(table))
    points = (rank + start[sorted_groups]) / np.maximum(sizes[sorted_groups], 1)
    kept = table[used]
    kept = np.where(kept.sum(axis=1, keepdims=True) > 0, kept, 1.0)
    reach = np.cumsum(kept, axis=1)
    reach /= reach[:, -1:]
    # One sorted list for all groups: group i lies between i and i + 1. The last cell of a group ends at it.
    bounds = (reach + np.arange(len(used))[:, None]).ravel()
    place = np.searchsorted(used, sorted_groups)
    found = np.searchsorted(bounds, place + points, side="right") - place * table.shape[1]
    last = table.shape[1] - 1 - np.argmax(kept[:, ::-1] > 0, axis=1)  # rounding must not reach an empty cell
    cells = np.empty(len(groups), dtype=np.int64)
    cells[order] = np.clip(found, 0, last[place])
    return cells


# --- estimation ------------------------------------------------------------------------------------------


def estimated_total(measurements: Sequence[Measurement]) -> float:
    """Return the number of rows that noisy marginals tell: their sums, weighted by their variances.

    Args:
        measurements: The noisy marginals.

    Returns:
        The number, at least 1 and at most 2^36.

    >>> one = Measurement(columns=(0,), values=np.array([4.0, 8.0]), stddev=1.0)
    >>> estimated_total([one])
    12.0
    """
    weights = [1 / (each.values.size * each.stddev**2) for each in measurements]
    sums = [weight * float(each.values.sum()) for weight, each in zip(weights, measurements, strict=True)]
    return min(max(1.0, math.fsum(sums) / math.fsum(weights)), _MOST_ROWS)


def estimate(
    sizes: Sequence[int],
    measurements: Sequence[Measurement],
    *,
    start: GraphicalModel | None = None,
    iterations: int = 1000,
) -> GraphicalModel:
    """Return the model that fits noisy marginals.

    Args:
        sizes: The number of values of each column.
        measurements: The noisy marginals.
        start: A model to start from, such as the one of fewer measurements.
        iterations: The most steps of mirror descent.

    Returns:
        The model.

    >>> one = Measurement(columns=(0,), values=np.array([10.0, 30.0]), stddev=1.0)
    >>> estimate([2], [one]).marginal((0,)).round(3)
    array([0.25, 0.75])
    """
    total = estimated_total(measurements)
    targets = _together(measurements)
    known: Mapping[Clique, Floats] = {} if start is None else start.potentials
    potentials = {
        each: known[each] if each in known else np.zeros(t.values.shape) for each, t in targets.items()
    }
    descent = _Descent(tuple(sizes), total, targets)
    stride = 1.0 if start is None else start.stride
    found, stride = descent.run(potentials, stride=stride, iterations=iterations)
    return GraphicalModel(sizes=tuple(sizes), total=total, potentials=found, stride=stride)


def _together(measurements: Sequence[Measurement]) -> dict[Clique, Measurement]:
    """Return one measurement for each set of columns: repeated ones are weighted by their variances."""
    found: dict[Clique, Measurement] = {}
    for each in measurements:
        before = found.get(each.columns)
        found[each.columns] = each if before is None else _average(before, each)
    return found


def _average(one: Measurement, two: Measurement) -> Measurement:
    first, second = one.stddev**-2, two.stddev**-2
    values = (first * one.values + second * two.values) / (first + second)
    return Measurement(columns=one.columns, values=values, stddev=(first + second) ** -0.5)


@dataclass(frozen=True, eq=False, slots=True)
class _Point:
    """Log-potentials, how far their marginals are from the measured ones, and the weighted squares."""

    potentials: Floats
    apart: Floats
    loss: float


@dataclass(frozen=True)
class _Descent:
    """Mirror descent on the weighted squares of a model's marginals minus the measured ones."""

    sizes: tuple[int, ...]
    total: float
    targets: Mapping[Clique, Measurement]

    @cached_property
    def tree(self) -> JunctionTree:
        return junction_tree(self.sizes, self.targets)

    @cached_property
    def sources(self) -> list[tuple[Clique, Clique | int]]:
        """Measured marginals, large ones first, and what each is summed from: a larger one, or a clique."""
        found: list[tuple[Clique, Clique | int]] = []
        for columns in sorted(self.targets, key=len, reverse=True):
            larger = [each for each, _ in found if set(columns) < set(each)]
            host = self.tree.host(columns)
            assert host is not None  # the tree was made for these columns
            found.append(
                (columns, min(larger, key=lambda each: self.targets[each].values.size, default=host))
            )
        return found

    def run(
        self, potentials: Mapping[Clique, Floats], *, stride: float, iterations: int
    ) -> tuple[dict[Clique, Floats], float]:
        """Return the potentials after so many steps, and the length of the last step."""
        # The squares are smooth relative to entropy with this constant; far longer steps mostly succeed.
        shortest = 1 / (self.total * math.fsum(each.stddev**-2 for each in self.targets.values()))
        step = stride * shortest
        at = self._point(np.concatenate([potentials[each].ravel() for each in self.targets]))
        seen: list[_Point] = []
        for _ in range(iterations):
            after = self._point(self._extrapolated(at, seen, step)) if seen else None
            if after is None or not after.loss < at.loss:
                found = self._stepped(at, step)
                if found is None:
                    break
                tried, (after, step) = step, found
                step *= _FASTER if step == tried else 1.0
                seen = []
            seen = [*seen[1 - _MEMORY :], at]
            before, at = at, after
            if before.loss - at.loss <= _ENOUGH * before.loss:
                break
        return self._split(at.potentials), step / shortest

    def _extrapolated(self, at: "_Point", seen: "Sequence[_Point]", step: float) -> Floats:
        """Return a step from the mixture of past points whose squares would be least if all were linear."""
        moved = np.stack([at.apart - each.apart for each in seen])
        weighted = moved * self._weights
        shares = np.linalg.lstsq(weighted @ moved.T, weighted @ at.apart, rcond=1e-12)[0]
        turned = np.stack([at.potentials - each.potentials for each in seen])
        return at.potentials - shares @ turned - step * self._weights * (at.apart - shares @ moved)

    def _stepped(self, at: "_Point", step: float) -> "tuple[_Point, float] | None":
        """Return the first plain step that brings half of what its gradient promised, or None."""
        slopes = self._weights * at.apart
        for _ in range(_TRIES):
            found = self._point(at.potentials - step * slopes)
            promised = float(np.vdot(slopes, at.apart - found.apart))
            if at.loss - found.loss >= 0.5 * promised > 0:
                return found, step
            step /= 2
        return None

    def _point(self, potentials: Floats) -> "_Point":
        marginals = self._marginals(self._split(potentials))
        apart = np.concatenate([marginals[each].ravel() for each in self.targets]) - self._measured
        return _Point(potentials, apart, float(np.vdot(apart, self._weights * apart)) / 2)

    def _split(self, flat: Floats) -> dict[Clique, Floats]:
        """Return the part of each measurement, in its shape."""
        shapes = {each: target.values.shape for each, target in self.targets.items()}
        ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
        parts = np.split(flat, ends[:-1])
        return {each: part.reshape(shapes[each]) for each, part in zip(shapes, parts, strict=True)}

    @cached_property
    def _measured(self) -> Floats:
        return np.concatenate([each.values.ravel() for each in self.targets.values()])

    @cached_property
    def _weights(self) -> Floats:
        return np.concatenate([np.full(t.values.size, t.stddev**-2) for t in self.targets.values()])

    def _marginals(self, potentials: Mapping[Clique, Floats]) -> dict[Clique, Floats]:
        """Return the model's counts of the measured marginals."""
        beliefs = self.propagation.run(potentials)
        found: dict[Clique, Floats] = {}
        for columns, source in self.sources:
            if isinstance(source, int):
                table, axes = beliefs.tables[source], beliefs.axes[source]
                found[columns] = self.total * summed_to(table, axes, columns)
            else:
                found[columns] = summed_to(found[source], source, columns)
        return found

    @cached_property
    def propagation(self) -> Propagation:
        return Propagation(self.tree, self.sizes, tuple(self.targets))
