# SPDX-License-Identifier: Apache-2.0
"""Pairs of distributions (P, Q) that are at least as easy to distinguish as the outputs on any two neighbors.

`pair.attained` is true if some data sets reach the pair, however often it is repeated. Then the pair also
gives a lower bound.

A composition needs only how P and Q spread over the privacy loss log P/Q. `masses(edges)` returns both masses
of the cells (-inf, e0], (e0, e1], ..., (e_last, inf), exact up to rounding.

Guarantee  For all neighbors D, D' and all x >= 0: sup_S P[M(D) in S] - x P[M(D') in S] is at most the same
           for (P, Q). Pairs of single events compose by products (Zhu, Dong, Wang 2022, Theorem 10).
Neighbors  `dominating` says which pairs stand for which event under which relation.
Source     Gaussian: Balle and Wang 2018. Poisson sampling: Zhu et al. 2022, Theorem 11. Fixed size without
           replacement: Balle, Barthe, Gaboardi 2018, Theorem 9, both branches of the profile joined. Bounded
           range: see `BoundedRange`.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

__all__ = [
    "Atoms",
    "BoundedRange",
    "FixedSize",
    "Floats",
    "Gaussian",
    "Laplace",
    "Pair",
    "PoissonAdd",
    "PoissonRemove",
    "PoissonReplace",
]

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
        low, length = _cells(edges, self.epsilon)
        p = 0.5 * np.exp((low + length - self.epsilon) / 2) * -np.expm1(-length / 2)  # never 0 * inf
        q = 0.5 * np.exp(-(low + self.epsilon) / 2) * -np.expm1(-length / 2)
        # Values beyond the two centers all have the same loss: an atom at each end.
        for loss, p_atom, q_atom in (
            (-self.epsilon, 0.5 * math.exp(-self.epsilon), 0.5),
            (self.epsilon, 0.5, 0.5 * math.exp(-self.epsilon)),
        ):
            cell = int(np.searchsorted(edges, loss, side="left"))
            p[cell] += p_atom
            q[cell] += q_atom
        return p, q

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
        low, length = _cells(edges, self.epsilon)
        whole = -math.expm1(-self.epsilon)
        p = np.exp((low + length - self.epsilon) / 2) * -np.expm1(-length / 2) / whole
        q = np.exp(-(low + self.epsilon) / 2) * -np.expm1(-length / 2) / whole
        return p, q

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


def _cells(edges: Floats, reach: float) -> tuple[Floats, Floats]:
    """Return lower end and length of the cells, cut to [-reach, reach].

    Masses are computed from these directly. As differences of rounded distribution functions the Q-mass of
    high losses, about e^-epsilon, would drown.
    """
    ends = np.clip(np.concatenate([[-np.inf], edges, [np.inf]]), -reach, reach)
    return ends[:-1], np.diff(ends)


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
