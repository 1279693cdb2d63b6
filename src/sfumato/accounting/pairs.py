# SPDX-License-Identifier: Apache-2.0
"""Dominating pairs: for each event, two distributions (P, Q) that are at least as easy to tell apart as any
two neighbors' outputs.

Guarantee  For all neighbors D, D' and all x >= 0: sup_S P[M(D) in S] - x P[M(D') in S] is at most the same
           for (P, Q). Pairs of single events compose by products (Zhu, Dong, Wang 2022, Theorem 10).
Neighbors  `dominating(event, relation)` gives one pair for each direction: (M(D), M(D')) and (M(D'), M(D)),
           D being the data set with the unit in it. Both are the same object where the pair is symmetric.
Attained   `pair.attained` says that some data sets really reach the pair, however often it is repeated, so
           that it also yields a lower bound.
Losses     All a composition needs of a pair is how P and Q spread over the privacy loss log P/Q.
           `masses(edges)` returns both masses of the cells (-inf, e0], (e0, e1], ..., (e_last, inf), exact up
           to rounding.
Sources    Gaussian: Balle and Wang 2018. Poisson sampling: Zhu et al. 2022, Theorem 11. Fixed size without
           replacement: Balle, Barthe, Gaboardi 2018, Theorem 9, both branches of the profile joined.
           Bounded range: see `BoundedRange`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Protocol

import numpy as np
from dp_accounting import dp_event as dp
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import UnsupportedEventError

__all__ = ["Pair", "dominating"]

Floats = NDArray[np.float64]


class Pair(Protocol):
    """Two distributions, seen through the privacy loss between them."""

    @property
    def attained(self) -> bool:
        """Whether some data sets reach this pair exactly."""
        ...

    @property
    def lattice(self) -> float | None:
        """The spacing of which every finite loss is a whole multiple, if there is one."""
        ...

    @property
    def largest(self) -> float:
        """The largest loss, infinity included: what the event costs with delta 0."""
        ...

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return P- and Q-mass of the `len(edges) + 1` cells that increasing `edges` cut the losses into."""
        ...

    def edges(self, count: int, probability: float) -> Floats:
        """Return increasing losses, dense where mass is, that miss at most `probability` of P at each end.

        Outcomes that only one of P and Q has, sampled or not, are not counted.
        """
        ...


def _normal_masses(z: Floats) -> Floats:
    """Return the standard normal mass of the cells between increasing `z`, accurate in both tails."""
    below, above = ndtr(z), ndtr(-z)
    inner = np.where(z[1:] <= 0, np.diff(below), -np.diff(above))
    crossing = (z[:-1] < 0) & (z[1:] > 0)
    inner[crossing] = 1.0 - below[:-1][crossing] - above[1:][crossing]
    return np.concatenate([below[:1], inner, above[-1:]])


@dataclass(frozen=True, slots=True)
class Gaussian:
    """N(mu, 1) against N(0, 1): the loss is N(mu^2/2, mu^2) under P and N(-mu^2/2, mu^2) under Q."""

    mu: float
    attained: bool = True
    lattice: float | None = None

    @property
    def largest(self) -> float:
        """The largest loss (see `Pair`)."""
        return math.inf

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the masses of the cells between `edges` (see `Pair`)."""
        z = edges / self.mu
        return _normal_masses(z - self.mu / 2), _normal_masses(z + self.mu / 2)

    def edges(self, count: int, probability: float) -> Floats:
        """Return losses that cover P and Q (see `Pair`)."""
        reach = self.mu / 2 - float(ndtri(probability))
        return self.mu * np.linspace(-reach, reach, count)


@dataclass(frozen=True, slots=True)
class Laplace:
    """Laplace noise of scale 1/`epsilon` on values one apart; losses are clipped to [-epsilon, epsilon]."""

    epsilon: float
    attained: bool = True
    lattice: float | None = None

    @property
    def largest(self) -> float:
        """The largest loss (see `Pair`)."""
        return self.epsilon

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the masses of the cells between `edges` (see `Pair`)."""
        inside = np.clip(edges, -self.epsilon, self.epsilon)
        p = np.where(edges >= self.epsilon, 1.0, 0.5 * np.exp((inside - self.epsilon) / 2))
        q = np.where(edges >= self.epsilon, 1.0, 1 - 0.5 * np.exp(-(inside + self.epsilon) / 2))
        outside = edges < -self.epsilon
        return _differences(np.where(outside, 0.0, p)), _differences(np.where(outside, 0.0, q))

    def edges(self, count: int, probability: float) -> Floats:
        """Return losses over the whole support (see `Pair`)."""
        return np.linspace(-self.epsilon, self.epsilon, count)


@dataclass(frozen=True, slots=True)
class BoundedRange:
    """The worst pair of all mechanisms whose losses span an interval of length `epsilon`.

    Such a mechanism is dominated, for some t in [0, epsilon], by the two-point loss {t, t - epsilon}; its
    divergence at x is (E - y)(1 - x/y)/(E - 1) with E = e^epsilon, y = e^t, largest at y = sqrt(E x). So the
    profile is (sqrt(E) - sqrt(x))^2 / (E - 1) for 1/E <= x <= E, minus its slope is the Q-mass above log x,
    and the P-mass above is (E - sqrt(E x))/(E - 1). Convex in x, hence the profile of a pair. (Durfee and
    Rogers 2019 define bounded range; Dong, Durfee, Rogers 2020 give the two-point losses.) No single
    mechanism attains it at all x.
    """

    epsilon: float
    attained: bool = False
    lattice: float | None = None

    @property
    def largest(self) -> float:
        """The largest loss (see `Pair`)."""
        return self.epsilon

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the masses of the cells between `edges` (see `Pair`)."""
        inside = np.clip(edges, -self.epsilon, self.epsilon)
        whole = -math.expm1(-self.epsilon)
        p_above = -np.expm1((inside - self.epsilon) / 2) / whole
        q_above = np.exp(-(inside + self.epsilon) / 2) * p_above
        return _differences(1 - p_above), _differences(1 - q_above)

    def edges(self, count: int, probability: float) -> Floats:
        """Return losses over the whole support (see `Pair`)."""
        return np.linspace(-self.epsilon, self.epsilon, count)


@dataclass(frozen=True, slots=True, eq=False)
class Atoms:
    """Finitely many outcomes with P-masses `p` and Q-masses `q`; `q` may be 0 (loss inf), or `p` (-inf)."""

    p: Floats
    q: Floats
    lattice: float | None = None
    attained: bool = True

    @property
    def losses(self) -> Floats:
        """The privacy loss of each outcome."""
        with np.errstate(divide="ignore"):
            return np.log(self.p) - np.log(self.q)

    @property
    def largest(self) -> float:
        """The largest loss (see `Pair`)."""
        return float(self.losses.max())

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the masses of the cells between `edges` (see `Pair`)."""
        cell = np.searchsorted(edges, self.losses, side="left")
        # A sampled pair asks with edges of -inf for losses that nothing has, not even an outcome of p = 0.
        cell = np.where(self.p > 0, cell, np.searchsorted(edges, -np.inf, side="right"))
        size = len(edges) + 1
        p, q = np.bincount(cell, self.p, size), np.bincount(cell, self.q, size)
        return p.astype(np.float64), q.astype(np.float64)

    def edges(self, count: int, probability: float) -> Floats:
        """Return losses from the least to the largest finite one (see `Pair`)."""
        finite = self.losses[np.isfinite(self.losses)]
        if len(finite) == 0:
            return np.zeros(1)  # P and Q share no outcome that a float64 can weigh
        low, high = finite.min(), finite.max()
        if low == high:
            return np.array([low - abs(low) - 1e-9, high])
        # A cell is open below: start under the least loss, so that no atom falls off the low end.
        return np.linspace(low - 1e-9 * (high - low), high, count)


def _differences(below: Floats) -> Floats:
    return np.diff(below, prepend=0.0, append=1.0)


def _mixture_loss(loss: Floats, rate: float) -> Floats:
    """Return log(1 - rate + rate e^loss): the loss of a mixture with weight `rate` on P against Q."""
    return np.logaddexp(math.log1p(-rate), math.log(rate) + loss)


def _inner_loss(loss: Floats, rate: float) -> Floats:
    """Invert `_mixture_loss`; -inf below its infimum log(1 - rate)."""
    room = np.maximum(-np.expm1(math.log1p(-rate) - loss), 0.0)
    with np.errstate(divide="ignore"):
        return np.where(room > 0, loss + np.log(room) - math.log(rate), -np.inf)


@dataclass(frozen=True, slots=True)
class PoissonRemove:
    """((1-rate) Q + rate P, Q): the unit is in the first data set, and in the sample with chance `rate`."""

    inner: Pair
    rate: float
    lattice: float | None = None

    @property
    def attained(self) -> bool:
        """As the inner pair."""
        return self.inner.attained

    @property
    def largest(self) -> float:
        """The largest loss (see `Pair`)."""
        return float(_mixture_loss(np.array(self.inner.largest), self.rate))

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the masses of the cells between `edges` (see `Pair`)."""
        p, q = self.inner.masses(_inner_loss(edges, self.rate))
        return (1 - self.rate) * q + self.rate * p, q

    def edges(self, count: int, probability: float) -> Floats:
        """Return the inner pair's losses as the mixture sees them (see `Pair`)."""
        return _strictly(_mixture_loss(self.inner.edges(count, probability), self.rate))


@dataclass(frozen=True, slots=True)
class PoissonAdd:
    """(P, (1-rate) P + rate Q): the unit is in the second data set."""

    inner: Pair
    rate: float
    lattice: float | None = None

    @property
    def attained(self) -> bool:
        """As the inner pair."""
        return self.inner.attained

    @property
    def largest(self) -> float:
        """The largest loss (see `Pair`)."""
        return -float(_mixture_loss(np.array(-self.inner.largest), self.rate))

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the masses of the cells between `edges` (see `Pair`)."""
        p, q = self.inner.masses(-_inner_loss(-edges, self.rate))
        return p, (1 - self.rate) * p + self.rate * q

    def edges(self, count: int, probability: float) -> Floats:
        """Return the inner pair's losses as the mixture sees them (see `Pair`)."""
        return _strictly(-_mixture_loss(-self.inner.edges(count, probability), self.rate))


@dataclass(frozen=True, slots=True)
class PoissonReplace:
    """(1-rate) N(0,1) + rate N(mu,1) against (1-rate) N(0,1) + rate N(-mu,1).

    A Poisson sample that contains the unit, or its replacement, with the same coin: the sum moves by opposite
    vectors of full norm. Symmetric under x -> -x. The loss equation is quadratic in u = e^{mu x}, with
    log u = loss/2 + asinh((1-rate) sinh(loss/2) / (rate e^{-mu^2/2})).
    """

    mu: float
    rate: float
    attained: bool = True
    lattice: float | None = None

    def _point(self, loss: Floats) -> Floats:
        """Return the output x at which the loss is `loss`."""
        half = np.abs(loss) / 2
        with np.errstate(divide="ignore"):
            # log sinh(half) without overflow
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        log_ratio = math.log1p(-self.rate) + log_sinh - math.log(self.rate) + self.mu**2 / 2
        arsinh = np.where(
            log_ratio > 20, math.log(2) + log_ratio, np.arcsinh(np.exp(np.minimum(log_ratio, 20)))
        )
        return np.sign(loss) * (half + arsinh) / self.mu

    def _loss(self, x: Floats) -> Floats:
        shift = self.mu**2 / 2
        return _mixture_loss(self.mu * x - shift, self.rate) - _mixture_loss(-self.mu * x - shift, self.rate)

    @property
    def largest(self) -> float:
        """The largest loss (see `Pair`)."""
        return math.inf

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the masses of the cells between `edges` (see `Pair`)."""
        x = self._point(edges)
        centre = (1 - self.rate) * _normal_masses(x)
        return (
            centre + self.rate * _normal_masses(x - self.mu),
            centre + self.rate * _normal_masses(x + self.mu),
        )

    def edges(self, count: int, probability: float) -> Floats:
        """Return losses that cover P and Q (see `Pair`)."""
        reach = self.mu - float(ndtri(probability))
        return _strictly(self._loss(np.linspace(-reach, reach, count)))


@dataclass(frozen=True, slots=True)
class FixedSize:
    """Sampling a fixed number without replacement, at `rate`, under replacement neighbors.

    `inner` is the symmetric pair of the mechanism on the sample. The profile is that of `PoissonRemove` for
    x >= 1 and that of `PoissonAdd` for x < 1 (Balle, Barthe, Gaboardi 2018, Theorem 9; Zhu et al. 2022). They
    meet at x = 1 with a kink: an atom of loss 0. A bound for every mechanism, not attained by each.
    """

    inner: Pair
    rate: float
    attained: bool = False
    lattice: float | None = None

    @property
    def largest(self) -> float:
        """The largest loss (see `Pair`)."""
        return float(_mixture_loss(np.array(self.inner.largest), self.rate))

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the masses of the cells between `edges` (see `Pair`)."""
        below = np.append(edges[edges < 0], 0.0)
        above = np.insert(edges[edges > 0], 0, 0.0)
        p_low, q_low = (m[:-1] for m in PoissonAdd(self.inner, self.rate).masses(below))
        p_high, q_high = (m[1:] for m in PoissonRemove(self.inner, self.rate).masses(above))
        kink = max(0.0, 1.0 - p_low.sum() - p_high.sum())
        p_low[-1] += kink
        q_low[-1] += kink
        if 0.0 in edges:
            return np.concatenate([p_low, p_high]), np.concatenate([q_low, q_high])
        return _join(p_low, p_high), _join(q_low, q_high)

    def edges(self, count: int, probability: float) -> Floats:
        """Return losses that cover both branches (see `Pair`)."""
        high = PoissonRemove(self.inner, self.rate).edges(count, probability)
        high = high[high > 0]
        return np.concatenate([-high[::-1], high])


def _join(low: Floats, high: Floats) -> Floats:
    """Concatenate two runs of cells, the last of `low` and the first of `high` being one cell."""
    return np.concatenate([low[:-1], [low[-1] + high[0]], high[1:]])


def _strictly(edges: Floats) -> Floats:
    """Drop repeats that rounding made of different losses."""
    return np.unique(edges)


# --- from events to pairs --------------------------------------------------------------------------------


def dominating(event: DpEvent, relation: Relation) -> tuple[Pair, Pair]:
    """Return the dominating pairs of one leaf event, for removing and for adding a unit.

    >>> dominating(dp.GaussianDpEvent(2.0), Relation.REPLACE_ONE)[0]
    Gaussian(mu=1.0, attained=True, lattice=None)
    """
    return _dominating(event, relation)


def _unsupported(event: DpEvent, relation: Relation, fix: str = "") -> UnsupportedEventError:
    return UnsupportedEventError(
        f"the PLD accountant has no dominating pair for {type(event).__name__} "
        f"under {relation.value} neighbors. "
        + (fix or "Use the RDP accountant, or leave the choice of accountant to `price`.")
    )


@singledispatch
def _dominating(event: DpEvent, relation: Relation) -> tuple[Pair, Pair]:
    raise _unsupported(event, relation)


@_dominating.register
def _(event: dp.GaussianDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = Gaussian(relation.diameter / event.noise_multiplier)
    return pair, pair


@_dominating.register
def _(event: dp.LaplaceDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = Laplace(relation.diameter / event.noise_multiplier)
    return pair, pair


@_dominating.register
def _(event: dp.DiscreteLaplaceDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    shift = relation.diameter * int(event.sensitivity)
    a = event.noise_parameter
    if shift > 1_000_000:
        raise _unsupported(event, relation, "Its sensitivity is above 1e6: use a coarser grid.")
    # Outcomes x <= 0 all have the largest loss, x >= shift the least; between them one atom each.
    x = np.arange(1, shift)
    unit = math.tanh(a / 2)
    tail = 1 / (1 + math.exp(-a))  # P[noise <= 0]
    p = np.concatenate([[tail], unit * np.exp(-a * x), [tail * math.exp(-a * shift)]])
    pair = Atoms(p, p[::-1].copy(), lattice=a if shift % 2 else 2 * a)
    return pair, pair


@_dominating.register
def _(event: dp.RandomizedResponseDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    if not relation.replaces:
        raise _unsupported(event, relation, "A unit that is absent sends no report: use replace-one.")
    other = event.noise_parameter / event.num_buckets
    kept = 1 - event.noise_parameter + other
    rest = (event.num_buckets - 2) * other
    atoms = [kept, other] + ([rest] if event.num_buckets > 2 else [])
    p = np.array(atoms)
    q = np.array([other, kept, *atoms[2:]])
    pair = Atoms(p, q, lattice=math.log(kept / other) if kept > other else None)
    return pair, pair


def _two_points(epsilon: float, delta: float = 0.0) -> Pair:
    """Return the pair that dominates every (epsilon, delta)-DP mechanism (Kairouz, Oh, Viswanath 2015)."""
    high = (1 - delta) / (1 + math.exp(-epsilon))
    low = (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))
    if delta == 0:
        return Atoms(np.array([high, low]), np.array([low, high]), lattice=epsilon or None)
    return Atoms(
        np.array([delta, high, low, 0.0]), np.array([0.0, low, high, delta]), lattice=epsilon or None
    )


@_dominating.register(events.PureDpEvent)
@_dominating.register(events.SparseVectorDpEvent)
def _(event: Any, relation: Relation) -> tuple[Pair, Pair]:
    pair = _two_points(event.epsilon)
    return pair, pair


@_dominating.register
def _(event: events.ApproximateDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = _two_points(event.epsilon, event.delta)
    return pair, pair


@_dominating.register
def _(event: events.ExponentialDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = BoundedRange(event.epsilon)
    return pair, pair


MOST_STDDEV = 20_000.0  # grid units: 1.6 million atoms to 40 stddev; the RDP of a wider one is as good


@_dominating.register
def _(event: events.DiscreteGaussianDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    shift = relation.diameter * event.sensitivity
    if event.dimension != 1 or shift != int(shift):
        raise _unsupported(event, relation, "Vectors of discrete Gaussians are priced by RDP, exactly.")
    if event.stddev > MOST_STDDEV:
        raise _unsupported(
            event, relation, f"A stddev above {MOST_STDDEV:g} grid units is priced by RDP, exactly."
        )
    # Beyond 39 stddev a mass is below the smallest float64, so the atoms are all there is.
    reach = math.ceil(39 * event.stddev) + int(shift)
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    p = np.exp(-0.5 * (x / event.stddev) ** 2)
    q = np.exp(-0.5 * ((x - shift) / event.stddev) ** 2)
    # A subnormal mass has lost its digits, and its loss would be noise: as 0 it makes the loss infinite.
    p, q = (np.where(m < np.finfo(np.float64).tiny, 0.0, m) for m in (p / p.sum(), q / p.sum()))
    seen = (p > 0) | (q > 0)
    pair = Atoms(p[seen], q[seen])
    return pair, pair


@_dominating.register
def _(event: dp.PoissonSampledDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    rate = event.sampling_probability
    if rate == 1:
        return _dominating(_inner(event.event), relation)
    if not relation.replaces:
        remove, add = _dominating(_inner(event.event), relation)
        return PoissonRemove(remove, rate), PoissonAdd(add, rate)
    scale = events.gaussian_scale(event.event)
    if scale is None:
        raise _unsupported(event, relation, "Only Gaussian noise is known there; use add-remove neighbors.")
    pair = PoissonReplace(1 / scale, rate)
    return pair, pair


@_dominating.register
def _(event: dp.SampledWithoutReplacementDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    if not relation.replaces:
        raise _unsupported(
            event, relation, "A sample of fixed size makes the number of units public: use replace-one."
        )
    inner, _same = _dominating(_inner(event.event), relation)
    if event.sample_size == event.source_dataset_size:
        return inner, inner
    if relation is Relation.REPLACE_LABEL and not isinstance(_inner(event.event), _SUMS):
        # The theorem also compares samples that hold different units in the unit's place; a promise about
        # labels does not cover that, except for noise on a sum, whose norm bound covers any two units.
        raise _unsupported(event, relation, "Account it as replace-one, or without the sampling.")
    pair = FixedSize(inner, event.sample_size / event.source_dataset_size)
    return pair, pair


_SUMS = (dp.GaussianDpEvent, dp.LaplaceDpEvent, dp.DiscreteLaplaceDpEvent, events.DiscreteGaussianDpEvent)


def _inner(event: DpEvent) -> DpEvent:
    """Return the event inside a sampling event as one leaf; a composition of Gaussians is one Gaussian."""
    scale = events.gaussian_scale(event)
    if scale is not None:
        return dp.GaussianDpEvent(scale)
    counted = events.leaves(event)
    if len(counted) != 1 or next(iter(counted.values())) != 1:
        raise UnsupportedEventError(
            "the PLD accountant can sample one mechanism or a composition of Gaussians, not "
            f"a composition of {sorted({type(e).__name__ for e in counted})}. Sample each on its own."
        )
    return next(iter(counted))


def all_symmetric(pairs: Sequence[tuple[Pair, Pair]]) -> bool:
    """Whether both directions are the same for every pair, so that one composition serves both."""
    return all(remove is add for remove, add in pairs)
