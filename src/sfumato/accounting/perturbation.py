# SPDX-License-Identifier: Apache-2.0
"""The cost of objective perturbation: the exact minimum of a convex objective with a random linear term.

w minimizes F(w) = sum_i f_i(w . x_i) + r |w|^2 / 2 + b . w, with b ~ N(0, s^2 I), |x| <= X, f_i convex with
slopes in [-1, 0] and curvatures in [0, c]. Logistic losses are so, with c = 1/4. m = X / s is 1 /
noise_multiplier; curvature = c X^2 / r.

The minimum must be exact. The error that a solver leaves is covered by additional noise, which is composed
with this cost (Iyengar et al. 2019, "approximate minima").

Guarantee  Each w belongs to one b, the negative gradient of the rest, so its density is that of b times the
           determinant of the Hessian. Between neighbors the privacy loss at w has two parts.
           Hessians differ by one row's rank-one terms, and those without the row are at least r: the ratio
           of determinants is at most 1 + curvature, under replacement as well (the Hessian with the other
           row is at least the one without any). So this part is at most k = log(1 + curvature).
           Linear terms differ by the row's gradient -p x, with a slope p in [0, 1] that may depend on all of
           b. The loss of that, p m u + p^2 m^2 / 2 with u standard normal, is convex in p, hence at most what
           it is at p = 0 or p = 1: the larger of 0 and the loss of the Gaussian mechanism at distance m. A
           replaced row has two slopes: at most the largest of the four corners, Gaussian losses at distances
           0, m, m and at most 2 m.
           All this holds at every w, so the whole loss is at most k + max(0, G_1, ..., G_j), whose chance of
           exceeding k + t is at most the sum of the chances that G_i exceeds t.
Source     Redberg, Koskela and Wang 2023, arXiv:2401.00583, Theorem 3.1, has twice this delta for add-remove
           neighbors, since slopes there may change their sign. Kifer, Smith and Thakurta 2012 is looser.
"""

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from sfumato.accounting.guarantee import Relation
from sfumato.accounting.kinds import ObjectivePerturbationDpEvent
from sfumato.accounting.pairs import Floats, Gaussian, Pair
from sfumato.accounting.roots import root_between

__all__ = ["LargestOfGaussians", "pair", "renyi"]

_ROUNDING = 1e-12  # relative, added where a sum is rounded
Distances = tuple[tuple[int, float], ...]  # (how many, how far): the corners that are not 0


def _distances(event: ObjectivePerturbationDpEvent, relation: Relation) -> Distances:
    m = 1 / event.noise_multiplier
    return ((2, m), (1, 2 * m)) if relation.replaces else ((1, m),)


def renyi(event: ObjectivePerturbationDpEvent, relation: Relation, orders: Floats) -> Floats:
    """Return a bound on the Rényi divergence at each order.

    k + log E[e^{(a - 1) max(0, G)}] / (a - 1), where for one corner the moment is
    Phi(-m / 2) + e^{a (a - 1) m^2 / 2} Phi((a - 1/2) m), and for several the sum of theirs, and 1.

    >>> event = ObjectivePerturbationDpEvent(4.0, 0.1)
    >>> renyi(event, Relation.ADD_REMOVE, np.array([2.0])).round(4).tolist()
    [0.2247]
    """
    corners = _distances(event, relation)
    logs = [math.log(n) + orders * (orders - 1) * m * m / 2 for n, m in corners]
    if len(corners) == 1:
        m = corners[0][1]
        logs = [logs[0] + np.log(ndtr((orders - 0.5) * m)), np.full_like(orders, math.log(ndtr(-m / 2)))]
    else:
        logs.append(np.zeros_like(orders))
    moment = cast(Floats, logsumexp(np.stack(logs), axis=0))
    return (math.log1p(event.curvature) + moment / (orders - 1)) * (1 + _ROUNDING)


def pair(event: ObjectivePerturbationDpEvent, relation: Relation) -> Pair:
    """Return a pair that dominates both directions."""
    return LargestOfGaussians(math.log1p(event.curvature) * (1 + _ROUNDING), _distances(event, relation))


@dataclass(frozen=True, slots=True)
class LargestOfGaussians:
    """A loss of `shift` + max(0, G_1, ...) under P, with the chances of the G_i added up.

    Each G_i is the loss of a Gaussian mechanism, as often as `distances` counts it. Above the point where the
    sum of chances is 1 both masses are sums of those of the Gaussians; where it never is, the rest lies at
    `shift`. Q gets e^-loss of what P has; what it lacks lies where P has nothing.
    """

    shift: float
    distances: Distances
    attained: bool = False
    lattice: float | None = None

    @property
    def largest(self) -> float:
        """The largest loss (see `Pair`)."""
        return math.inf

    def _start(self) -> float:
        """Return where the chances add up to 1, at 0 or above: what is below has no mass."""

        def excess(loss: float) -> float:
            return sum(n * float(ndtr(m / 2 - loss / m)) for n, m in self.distances) - 1

        if excess(0.0) <= 0:
            return 0.0
        farthest = max(m for _, m in self.distances)
        return root_between(excess, 0.0, 40 * farthest + 40 * farthest**2)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the masses of the cells between `edges` (see `Pair`)."""
        start = self._start()
        first = int(np.searchsorted(edges, self.shift + start, side="right"))
        above = np.concatenate([[start], edges[first:] - self.shift])
        p, q = np.zeros(len(edges) + 1), np.zeros(len(edges) + 1)
        for count, mu in self.distances:
            part_p, part_q = Gaussian(mu).masses(above)
            p[first:] += count * part_p[1:]
            q[first:] += count * part_q[1:] * math.exp(-self.shift)
        at = int(np.searchsorted(edges, self.shift + start, side="left"))
        rest = max(0.0, 1.0 - float(p.sum()))
        p[at] += rest
        q[at] += rest * math.exp(-self.shift - start)
        q[np.searchsorted(edges, -np.inf, side="right")] += max(0.0, 1.0 - float(q.sum()))
        return p, q

    def edges(self, count: int, probability: float) -> Floats:
        """Return losses from the least on (see `Pair`)."""
        start, ways = self._start(), sum(n for n, _ in self.distances)
        last = max(m * (m / 2 - float(ndtri(probability / ways))) for _, m in self.distances)
        low, high = self.shift + start, self.shift + max(last, start + 1e-9)
        # A cell is open below: start under the least loss, so that what lies there does not fall off.
        return np.linspace(low - 1e-9 * (high - low) - 1e-15, high, count)
