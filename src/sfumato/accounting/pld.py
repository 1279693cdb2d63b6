# SPDX-License-Identifier: Apache-2.0
"""The privacy loss accountant: the tightest epsilon of a fixed plan, with a certified interval.

The bounds are computed in three steps.

1. Each leaf's dominating pair (`pairs`) is put on a grid of losses by connecting the dots of its
   profile: within a cell both masses move to the two ends so that P and Q are kept. The result
   dominates the pair (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022).
2. Before the Fourier transform the losses are tilted by e^{theta loss}, theta chosen where the
   answer lies (a saddle point). So the tail that decides delta is computed with relative, not
   absolute, accuracy, and the window need only cover the neighborhood of the answer.
3. Merging each cell to one outcome, instead, is post-processing: a pair that is dominated. The
   split pair is the merged one plus one independent error per step, of range h, with
   E[e^-error] = 1. By Hoeffding their sum exceeds T h^2/8 + h sqrt(T/2 log(1/eta)) with chance at
   most eta, which turns the upper curve into a lower bound.

The step h comes from the composition: by (3) it shrinks as 1/sqrt(T) for a given gap. Windows are at most
`MOST_CELLS` long in all; beyond that the grid is coarser and the gap wider.

Guarantee  `interval(event, delta, relation)` returns (lower, upper). The plan is (upper, delta)-DP. Where all
           pairs are attained, it is not (lower', delta)-DP for any lower' < lower. Both hold up to
           floating-point rounding, for which a margin is added (`grid`).
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.dominating import all_symmetric, dominating
from sfumato.accounting.events import DpEvent
from sfumato.accounting.extremes import in_floats
from sfumato.accounting.grid import Curve, Discrete, discretize
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.saddle import (
    ETA,
    ROUNDING,
    SMALL,
    Cumulants,
    Part,
    Saddle,
    choose_step,
    find_saddle,
    window_at,
)
from sfumato.accounting.upstream import dp_event as dp

__all__ = ["interval", "is_tight", "upper_epsilon"]

CHEAP = 2**18  # cells of a second look
FAR = 3.0  # log of the factor by which tails weigh more at the answer than at the saddle


@in_floats
def interval(event: DpEvent, *, delta: float, relation: Relation) -> tuple[float, float]:
    """Return certified (lower, upper) bounds on the epsilon of `event` at `delta`.

    >>> lower, upper = interval(events.PureDpEvent(1.0), delta=1e-6, relation=Relation.ADD_REMOVE)
    >>> round(lower, 4), round(upper, 4)
    (1.0, 1.0)
    """
    return _worst_direction(event, delta, relation, certify=True)


def is_tight(event: DpEvent, relation: Relation) -> bool:
    """Whether every pair is attained; if not, another accountant may know more of the mechanism."""
    counted = events.leaves(event)
    private = [e for e in counted if not isinstance(e, dp.NonPrivateDpEvent)]
    return all(pair.attained for e in private for pair in dominating(e, relation))


@in_floats
def upper_epsilon(event: DpEvent, *, delta: float, relation: Relation) -> float:
    """Return the upper bound alone, on a coarser grid: what a search for parameters needs."""
    return _worst_direction(event, delta, relation, certify=False)[1]


def _worst_direction(
    event: DpEvent, delta: float, relation: Relation, *, certify: bool
) -> tuple[float, float]:
    _check.probability(delta=delta)
    with np.errstate(
        over="ignore", under="ignore", invalid="ignore"
    ):  # infinite losses are expected, and handled
        return _bounds(event, delta, relation, certify=certify)


def _bounds(event: DpEvent, delta: float, relation: Relation, *, certify: bool) -> tuple[float, float]:
    counted = _merge_gaussians(events.leaves(event))
    if any(isinstance(e, dp.NonPrivateDpEvent) for e in counted):
        return math.inf, math.inf
    if not counted:
        return 0.0, 0.0
    both = [(dominating(e, relation), n) for e, n in counted.items()]
    directions = (0,) if all_symmetric([pair for pair, _ in both]) else (0, 1)
    found = [_Direction([Part(pair[d], n) for pair, n in both], delta) for d in directions]
    rough = _rough(found)
    if not certify or _is_dear(counted):
        return 0.0, max(rough)
    return _certified(found, rough)


def _is_dear(counted: dict[DpEvent, int]) -> bool:
    """Whether a fine grid costs seconds and could not give a lower bound anyway."""
    return any(
        isinstance(e, events.JohnsonLindenstraussDpEvent) for leaf in counted for e in events.walk(leaf)
    )


class _Direction:
    """The parts of one direction of the neighbors, and where its answer for `delta` lies, searched once."""

    def __init__(self, parts: Sequence[Part], delta: float) -> None:
        self.parts, self.delta = parts, delta

    @property
    def most(self) -> float:
        """The largest loss of all parts together."""
        return math.fsum(part.count * part.pair.largest for part in self.parts)

    @cached_property
    def negligible(self) -> bool:
        """Whether `delta` covers everything."""
        return _total_variation(self.parts) <= self.delta

    @cached_property
    def cumulants(self) -> Cumulants:
        count = sum(part.count for part in self.parts)
        return Cumulants(self.parts, max(SMALL * self.delta / count, 1e-300))

    @cached_property
    def saddle(self) -> Saddle:
        return find_saddle(self.cumulants, self.delta)

    def bounds(self, *, certify: bool) -> tuple[float, float]:
        """Return (lower, upper)."""
        if self.negligible:
            return 0.0, 0.0
        if self.cumulants.hopeless:
            return 0.0, math.inf
        delta = self.delta
        lower, upper = _look(self.parts, self.cumulants, self.saddle, delta, certify=certify)
        nearer = _nearer(self.cumulants, self.saddle, upper, delta)
        if (
            nearer is not None
            and _grid(self.parts, self.cumulants, nearer, delta, certify=certify)[2] <= CHEAP
        ):
            low, high = _look(self.parts, self.cumulants, nearer, delta, certify=certify)
            lower, upper = max(lower, low), min(upper, high)
        return min(lower, upper), upper


def _rough(directions: Sequence[_Direction]) -> list[float]:
    """Return an upper bound for each direction; a direction that cannot be the worse one is not computed."""
    bounds: list[float] = []
    for direction in directions:
        most = direction.most
        settled = bool(bounds) and most <= max(bounds)
        bounds.append(most if settled else min(most, direction.bounds(certify=False)[1]))
    return bounds


def _certified(directions: Sequence[_Direction], rough: Sequence[float]) -> tuple[float, float]:
    """Refine the worse direction; the other one only if its rough upper bound is not below the result."""
    worse = max(range(len(rough)), key=rough.__getitem__)
    lower, upper = directions[worse].bounds(certify=True)
    for other, bound in enumerate(rough):
        if other != worse and bound > upper:
            low, high = directions[other].bounds(certify=True)
            lower, upper = max(lower, low), max(upper, high)
    upper = min(upper, max(rough))  # both grids give upper bounds
    return min(lower, upper), upper


def _merge_gaussians(counted: dict[DpEvent, int]) -> dict[DpEvent, int]:
    """Replace all plain Gaussians by the one Gaussian they amount to; exact, and one leaf instead of many."""
    plain = {e: n for e, n in counted.items() if isinstance(e, dp.GaussianDpEvent)}
    if sum(plain.values()) < 2:
        return counted
    rest = {e: n for e, n in counted.items() if e not in plain}
    precision = math.fsum(n / e.noise_multiplier**2 for e, n in plain.items())
    return {dp.GaussianDpEvent(1 / math.sqrt(precision)): 1} | rest


def _nearer(cumulants: Cumulants, saddle: Saddle, found: float, delta: float) -> Saddle | None:
    """Return a gentler tilt if the answer lies far left of the saddle, as atoms and rare losses make it."""
    miss = saddle.mean - found
    if not (found > 0 and saddle.tilt * miss > FAR):
        return None
    return window_at(cumulants, 1 / miss, math.log(delta))


def _grid(
    parts: Sequence[Part], cumulants: Cumulants, saddle: Saddle, delta: float, *, certify: bool
) -> tuple[list[tuple[float, float]], float, int]:
    """Return the ranges of the parts, the grid step and the number of cells."""
    ranges = [
        (low, high) for low, (_, high) in zip(cumulants.lowest(saddle.tilt), cumulants.reach, strict=True)
    ]
    widest = max(high - low for low, high in ranges)
    return ranges, *choose_step(parts, saddle, widest, delta, certify=certify)


def _look(
    parts: Sequence[Part], cumulants: Cumulants, saddle: Saddle, delta: float, *, certify: bool
) -> tuple[float, float]:
    """Return (lower, upper) as seen from one saddle."""
    ranges, step, size = _grid(parts, cumulants, saddle, delta, certify=certify)
    leaves = [(discretize(p.pair, step, *r), p.count) for p, r in zip(parts, ranges, strict=True)]
    curve = Curve(leaves, step, size, saddle)
    upper = curve.upper(delta * (1 - 1e-15) - _some_infinite(leaves))  # less what the subtraction may round
    if not certify or not all(part.pair.attained for part in parts):
        return 0.0, upper
    shift, eta = _split_error(parts, step, delta)
    lower = curve.lower(delta + eta) - shift
    return min(max(0.0, lower), upper), upper


def _some_infinite(leaves: Sequence[tuple[Discrete, int]]) -> float:
    """Return the chance that at least one of the losses is infinite."""
    if any(leaf.infinite >= 1 for leaf, _ in leaves):
        return 1.0
    return -math.expm1(math.fsum(n * math.log1p(-leaf.infinite) for leaf, n in leaves))


def _total_variation(parts: Sequence[Part]) -> float:
    """Bound delta at epsilon 0: the total variation of a product is at most the sum of its parts'."""
    total = 0.0
    for part in parts:
        (_, p), (_, q) = part.pair.masses(np.zeros(1))
        difference = float(p - q)
        if math.isnan(difference):  # a loss that is not finite: nothing is known
            return math.inf
        total += part.count * (max(0.0, difference) + 4e-16)  # p - q is rounded at the scale of 1
    return total


def _split_error(parts: Sequence[Part], step: float, delta: float) -> tuple[float, float]:
    """Return how far splitting cells may have raised the sum of losses, and the chance that it was more."""
    rounding = ROUNDING * sum(p.count for p in parts)
    off_grid = sum(p.count for p in parts if p.pair.lattice is None or not _divides(step, p.pair.lattice))
    if off_grid == 0:
        return rounding, 0.0
    eta = ETA * delta
    hoeffding = off_grid * step**2 / 8 + step * math.sqrt(off_grid / 2 * -math.log(eta))
    return min(hoeffding, off_grid * step) + rounding, eta


def _divides(step: float, spacing: float) -> bool:
    return abs(spacing / step - round(spacing / step)) < 1e-9
