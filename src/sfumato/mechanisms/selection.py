# SPDX-License-Identifier: Apache-2.0
"""Private selection: exponential mechanism, report-noisy-max and permute-and-flip.

Each chooses one of several candidates by a private score.

The exponential mechanism has an epsilon-bounded range, which composes better than pure DP (Durfee and Rogers
2019). Noisy max and permute-and-flip cost pure epsilon.

Guarantee  Each mechanism is epsilon-DP when one privacy unit moves every score by at most `sensitivity`. The
           laws are sampled exactly (`mechanisms.exact`): no floating-point noise, no ties made by rounding.
Neighbors  As `relation` states. `monotonic=True` says that one unit moves all scores in one direction (as
           counts do); it halves the noise, and only add-or-remove and zero-out neighbors can have it: a
           replaced unit moves some scores up and others down.
Edge cases An empty list of candidates and NaN or infinite scores are refused without being shown. Equal
           scores are equally likely for the exponential mechanism and permute-and-flip.
Source     McSherry and Talwar 2007; Dwork and Roth 2014, Claim 3.9 and Section 3.4; McKenna and Sheldon 2020,
           arXiv:2010.12603, Algorithm 1. The median by intervals: Smith 2011, Algorithm 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import frexp, ldexp

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import ExponentialDpEvent, PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import DpEvent
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import exact, inputs
from sfumato.mechanisms.grid import Grid
from sfumato.mechanisms.random import Generator, uniform_below, words

__all__ = ["Exponential", "IntervalExponential", "NoisyMax", "PermuteAndFlip"]

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

_FLOAT_RATES = (1e-200, 1e200)  # of scores: beyond, a float64 rate could lose digits
_OUTPUT_BITS = 40  # a point is rounded to the power of two at or below 2^-40 of the width of the bounds


@dataclass(frozen=True, kw_only=True, slots=True)
class _Selection:
    """The parameters that every selection has."""

    epsilon: float
    sensitivity: float
    relation: Relation
    monotonic: bool = False

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon, sensitivity=self.sensitivity)
        inputs.settle(self, "epsilon", "sensitivity")
        inputs.check_relation(self.relation)
        if self.monotonic and self.relation.replaces:
            raise InvalidParameterError(
                f"monotonic=True cannot hold under {self.relation.value} neighbors: a replaced unit moves "
                "some scores up and others down. Leave it out."
            )

    def _rate(self) -> Fraction:
        """Return epsilon / (2 sensitivity), or epsilon / sensitivity for monotonic scores, exactly."""
        return Fraction(self.epsilon) / (Fraction(self.sensitivity) * (1 if self.monotonic else 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class Exponential(_Selection):
    """Choose i with probability proportional to exp(epsilon score_i / (2 sensitivity)).

    Args:
        epsilon: The privacy budget of one release.
        sensitivity: The most that one privacy unit can move any score under `relation`.
        relation: Which data sets are neighbors.
        monotonic: Whether one unit moves all scores in the same direction, as with counts. It halves the
            noise.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `monotonic` cannot hold under the relation.

    >>> mechanism = Exponential(epsilon=1.0, sensitivity=1.0, relation=Relation.REPLACE_ONE)
    >>> mechanism.release([0.0, 1000.0]), mechanism.event()
    (1, ExponentialDpEvent(epsilon=1.0))
    """

    def release(self, scores: Sequence[float], *, generator: Generator | None = None) -> int:
        """Choose a candidate.

        Args:
            scores: The private scores, one for each candidate.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The index of the chosen candidate.

        Raises:
            InvalidParameterError: If there is no candidate or a score is not finite. The message shows no
                score.
        """
        rate = self._rate()
        logs = [rate * score for score in _fractions(scores)]
        return exact.categorical(logs, [Fraction(1)] * len(logs), generator)

    def event(self) -> DpEvent:
        """Return the event of one release, which accountants price.

        Returns:
            The event.
        """
        return ExponentialDpEvent(self.epsilon)


@dataclass(frozen=True, kw_only=True, slots=True)
class IntervalExponential(_Selection):
    """The exponential mechanism on a line: choose a point whose score is constant on intervals.

    The density at a point is proportional to exp(epsilon score / (2 sensitivity)). The point is drawn exactly
    and rounded to a public grid of 2^-40 of the bounds, which is post-processing: the last digits do not
    reveal the private ends of the interval.

    Args:
        epsilon: The privacy budget of one release.
        sensitivity: The most that one privacy unit can move any score under `relation`.
        relation: Which data sets are neighbors.
        monotonic: Whether one unit moves all scores in the same direction, as with counts. It halves the
            noise.
        bounds: The lower and upper end of the line, public.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `monotonic` cannot hold under the relation.

    >>> mechanism = IntervalExponential(epsilon=1.0, sensitivity=1.0, relation=Relation.REPLACE_ONE,
    ...                                 bounds=(0.0, 10.0))
    >>> 4.0 <= mechanism.release([0.0, 4.0, 5.0, 10.0], [-500.0, 0.0, -500.0]) <= 5.0
    True
    """

    bounds: tuple[float, float]

    def __post_init__(self) -> None:
        _Selection.__post_init__(self)
        inputs.settle_bounds(self, self.bounds)

    def release(
        self,
        edges: Sequence[float] | Floats,
        scores: Sequence[float] | Floats,
        *,
        generator: Generator | None = None,
    ) -> float:
        """Choose a point.

        Args:
            edges: The ends of the intervals, in order: interval i lies between edges i and i + 1. Empty ones
                are skipped.
            scores: The private scores, one for each interval.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The point.

        Raises:
            InvalidParameterError: If there is no interval or a score is not finite. The message shows no
                score.
        """
        ends, known = self._ends(edges, len(scores)), _nonempty(scores)
        lengths = np.diff(ends)  # a difference of two floats is rounded once, and zero only if they are equal
        live = np.flatnonzero(lengths > 0)
        chosen = int(live[self._choice(ends, known, lengths, live, generator)])
        start, end = Fraction(float(ends[chosen])), Fraction(float(ends[chosen + 1]))
        return self._point(start, end - start, generator)

    def _choice(
        self, ends: Floats, scores: Floats, lengths: Floats, live: Indices, generator: Generator | None
    ) -> int:
        """Return which of the `live` intervals; by floats where they settle it, else by exact fractions."""
        rate, top, widest = self._rate(), scores[live].max(), lengths[live].max()

        def exactly() -> tuple[list[Fraction], list[Fraction]]:
            best, kept = Fraction(float(top)), scores[live].tolist()
            low, high = ends[live].tolist(), ends[live + 1].tolist()
            sizes = [Fraction(b) - Fraction(a) for a, b in zip(low, high, strict=True)]
            return [rate * (best - Fraction(score)) for score in kept], [s / max(sizes) for s in sizes]

        if not _FLOAT_RATES[0] <= rate <= _FLOAT_RATES[1]:
            rates, parts = exactly()
            return exact.categorical([-r for r in rates], parts, generator)
        with np.errstate(over="ignore"):  # a rate of infinity is a weight of zero
            rates = (top - scores[live]) * float(rate)  # rounded three times
        return exact.categorical_floats(rates, lengths[live] / widest, exactly, generator)

    def event(self) -> DpEvent:
        """Return the event of one release, which accountants price.

        Returns:
            The event.
        """
        return ExponentialDpEvent(self.epsilon)

    def _ends(self, edges: Sequence[float] | Floats, intervals: int) -> Floats:
        ends = _nonempty(edges)
        wrong = ends.size != intervals + 1 or bool((ends[1:] < ends[:-1]).any())
        if wrong or (ends[0], ends[-1]) != self.bounds:
            raise InvalidParameterError(
                f"edges must rise from {self.bounds[0]!r} to {self.bounds[1]!r}, one more than scores."
            )
        return ends

    def _point(self, start: Fraction, length: Fraction, generator: Generator | None) -> float:
        width = self.bounds[1] - self.bounds[0]
        step = Fraction(ldexp(1.0, frexp(width)[1] - 1 - _OUTPUT_BITS))
        number, bits = 0, 0
        while True:  # until all reals that begin with these bits round to one point
            number, bits = (number << 64) | int(words(1, generator)[0]), bits + 64
            low = round((start + length * number / 2**bits) / step)
            high = round((start + length * (number + 1) / 2**bits) / step)
            if low == high:
                return min(max(float(low * step), self.bounds[0]), self.bounds[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisyMax(_Selection):
    """Report noisy max: add Laplace noise to every score and report which is largest, not how large.

    The noise has scale 2 sensitivity / epsilon, and sensitivity / epsilon for monotonic scores: given the
    other noises, i wins when its own passes a bar, and a neighbor moves that bar by 2 sensitivity, or by
    sensitivity if all scores move in one direction. Noise is drawn in whole steps of a public grid. Of equal
    noisy scores the first wins, which keeps the argument, as 'passes' may mean 'reaches'.

    Args:
        epsilon: The privacy budget of one release.
        sensitivity: The most that one privacy unit can move any score under `relation`.
        relation: Which data sets are neighbors.
        monotonic: Whether one unit moves all scores in the same direction, as with counts. It halves the
            noise.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `monotonic` cannot hold under the relation.

    >>> NoisyMax(epsilon=1.0, sensitivity=1.0, relation=Relation.ADD_REMOVE, monotonic=True).release([0, 900])
    1
    """

    def release(self, scores: Sequence[float], *, generator: Generator | None = None) -> int:
        """Choose a candidate.

        Args:
            scores: The private scores, one for each candidate.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The index of the largest noisy score.

        Raises:
            InvalidParameterError: If there is no candidate or a score is not finite. The message shows no
                score.
        """
        grid = Grid(self.sensitivity)
        steps = grid.place(_nonempty(scores))
        multiple = 1 if self.monotonic else 2
        noise = grid.laplace(steps.size, multiple=multiple, epsilon=self.epsilon, generator=generator)
        return int(np.argmax(steps + noise))

    def event(self) -> DpEvent:
        """Return the event of one release, which accountants price.

        Returns:
            The event.
        """
        return PureDpEvent(self.epsilon)


@dataclass(frozen=True, kw_only=True, slots=True)
class PermuteAndFlip(_Selection):
    """Visit candidates in random order, and take each with a chance that depends on its score.

    The chance is exp(epsilon (score - best) / (2 sensitivity)), so that of the best one is 1. The expected
    error is never above that of the exponential mechanism, and the law is that of noisy max with exponential
    noise (Ding et al. 2021, arXiv:2105.07260). Flipping all coins first and choosing uniformly among the
    heads is the same law: the first head of a random order is any head with equal chance.

    Args:
        epsilon: The privacy budget of one release.
        sensitivity: The most that one privacy unit can move any score under `relation`.
        relation: Which data sets are neighbors.
        monotonic: Whether one unit moves all scores in the same direction, as with counts. It halves the
            noise.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `monotonic` cannot hold under the relation.

    >>> PermuteAndFlip(epsilon=1.0, sensitivity=1.0, relation=Relation.REPLACE_ONE).release([0.0, 1000.0])
    1
    """

    def release(self, scores: Sequence[float], *, generator: Generator | None = None) -> int:
        """Choose a candidate.

        Args:
            scores: The private scores, one for each candidate.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The index of the chosen candidate.

        Raises:
            InvalidParameterError: If there is no candidate or a score is not finite. The message shows no
                score.
        """
        rate = self._rate()
        known = _fractions(scores)
        best = max(known)
        rates = [rate * (best - score) for score in known]
        floats = np.array([float(min(r, 10_000)) for r in rates])
        heads = np.flatnonzero(exact.bernoulli_exp(floats, rates.__getitem__, generator))
        return int(heads[uniform_below(heads.size, 1, generator)[0]])

    def event(self) -> DpEvent:
        """Return the event of one release, which accountants price.

        Returns:
            The event.
        """
        return PureDpEvent(self.epsilon)


def _nonempty(scores: Sequence[float] | Floats) -> Floats:
    known = inputs.numbers(scores, what="scores and edges")
    if known.ndim != 1 or known.size == 0:
        raise InvalidParameterError("scores must be a non-empty list of numbers, one for each candidate.")
    if not np.isfinite(known).all():
        raise InvalidParameterError(
            "a score or edge is not a finite number, so it cannot have the stated sensitivity. "
            "Clamp to public bounds first; nothing was released."
        )
    return known


def _fractions(scores: Sequence[float]) -> list[Fraction]:
    return [Fraction(score) for score in _nonempty(scores).tolist()]
