# SPDX-License-Identifier: Apache-2.0
"""Mixtures of pairs: a step whose sensitivity is random, with a distribution that is public.

Truncated sampling is Poisson sampling cut at `batch_size`. The public fact (see Guarantee) is whether the
OTHER units alone fill the batch, of at most public_size - 1 units. If not, the unit is present or absent as
in Poisson sampling. If so, the batch has `batch_size` units, and a unit that is kept takes the place of
another one, chosen uniformly: the sum moves by up to 2 contributions, from a batch that is the same on both
neighbors. That happens at most at the sampling rate. Both the chance of the fact and its pair are taken at
their worst over all smaller data sets, so that the price is monotone in public_size. (The bound of
arXiv:2508.15089, which dp_accounting uses, is tighter if most batches are cut.)

Projected clipping is clipping by an estimated norm (DP-SGD-JL). The public fact is the projection vectors.
Given them, the contribution of a unit is fixed, of norm at most s = sqrt(r / chi2(r)) bounds; whatever its
gradient, s has this distribution. If two units differ (replace-one, replace-label), how their two s depend on
each other is not known. Both are below the larger one, which exceeds any x with at most twice the chance that
one does. Bu et al. 2021, arXiv:2102.03013, argue with trade-off functions for a unit that is present or
absent. Here the vectors count as published, since one set of them serves the whole batch; replaced units are
covered too; and everything is rounded towards a larger epsilon.

The distribution of s is moved to finitely many points. The divergence of Gaussians at distance d has the
derivative phi(x/d - d/2) in d at loss x, which is exp(-d^2/8) times a function that grows with d. So as a
function of t = Phi(d/2) it is convex: moving the mass between two knots to both so that the mean of t stays,
or grows, gives an upper bound at every loss. The same holds for Poisson-sampled Gaussians: of one unit,
because their divergence is one of these at another loss, times a constant; of two, because exp(d^2/8) times
the derivative has a logarithm whose own derivative is (a^2 - a b + b^2) / m >= 0: m is d/2, a the output of
loss x, b = m tanh(m a - x/2).

An s above the last knot, of probability below 1e-20 for each step, counts as no privacy at all.

Guarantee  If a mechanism, given some fact that has the same distribution on both neighbors, is dominated by
           one of several pairs, then with the fact published beside its output it is dominated by their
           mixture, and without it no less (hockey-stick divergences are jointly convex).
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from sfumato.accounting import events
from sfumato.accounting.events import DpEvent, JohnsonLindenstraussDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.pairs import Floats, Pair
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import UnsupportedEventError

__all__ = ["Knots", "Mixture", "projected_shifts", "projection_knots", "truncation_chance"]

TAIL = 1e-20  # chance of a step whose projections are not looked at any closer
LOW, BULK, RARE = -5.0, -3.0, 5.5  # normal scores of s: knots from LOW on, close between BULK and RARE
DEAR = 1e4  # times the probability that may be missed: so much is given for a shorter range of losses
LOST = 1e-290  # differences of t below have lost their digits: such mass is moved to the upper knot
FINER = 32  # points between two knots at which the distribution of s is seen


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Pair i with chance `weights[i]`, and with chance `disjoint` outcomes that P and Q do not share.

    Which of these it was is seen. The pairs come in order: a later one reaches further.
    """

    pairs: tuple[Pair, ...]
    weights: tuple[float, ...]
    disjoint: float = 0.0
    attained: bool = False
    lattice: float | None = None

    @property
    def largest(self) -> float:
        """The largest loss (see `Pair`)."""
        return math.inf if self.disjoint > 0 else max(pair.largest for pair in self.pairs)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the masses of the cells between `edges` (see `Pair`)."""
        p, q = np.zeros(len(edges) + 1), np.zeros(len(edges) + 1)
        for pair, weight in zip(self.pairs, self.weights, strict=True):
            part_p, part_q = pair.masses(edges)
            p += weight * part_p
            q += weight * part_q
        # Losses of infinity and minus infinity; a sampled pair asks with infinite edges for what nothing has.
        p[np.searchsorted(edges, np.inf, side="left")] += self.disjoint
        q[np.searchsorted(edges, -np.inf, side="right")] += self.disjoint
        return p, q

    def edges(self, count: int, probability: float) -> Floats:
        """Return losses that cover all pairs, but for last ones that are improbable (see `Pair`)."""
        rest = np.append(np.cumsum(self.weights[::-1])[::-1], 0.0)
        kept = max(1, int(np.argmax(rest <= DEAR * probability)))
        each = max(16, count // kept)
        spread = probability / (2 * kept)
        parts = [
            pair.edges(each, min(0.25, spread / weight))
            for pair, weight in zip(self.pairs[:kept], self.weights[:kept], strict=True)
            if weight > 0
        ]
        return np.unique(np.concatenate(parts))


@dataclass(frozen=True, slots=True)
class Knots:
    """Values with their chances; with the chance `tail` the value is larger than all of them."""

    values: tuple[float, ...]
    weights: tuple[float, ...]
    tail: float


def projected_shifts(event: DpEvent, relation: Relation) -> Knots:
    """Return how many standard deviations one contribution may move a projected sum.

    Gaussians beside it, of the same sample, are coordinates of the same output.
    """
    counted = events.leaves(event)
    projected = [part for part in counted if isinstance(part, JohnsonLindenstraussDpEvent)]
    beside = [dp.SelfComposedDpEvent(part, n) for part, n in counted.items() if part not in projected]
    scale = events.gaussian_scale(events.compose(*beside)) if beside else math.inf
    if len(projected) != 1 or counted[projected[0]] != 1 or scale is None:
        raise UnsupportedEventError(
            "beside a JohnsonLindenstraussDpEvent of one sample there may be Gaussian events only, not "
            f"{sorted(type(e).__name__ for e in counted)}. Give each sum a sample of its own."
        )
    once, other, wide = 1 / projected[0].noise_multiplier, 1 / scale, relation.diameter
    knots = projection_knots(projected[0].projections, wide * once, wide * other, units=wide)
    return replace(knots, values=tuple(math.hypot(factor * once, other) for factor in knots.values))


def truncation_chance(sampling_rate: float, batch_size: int, public_size: int) -> float:
    """Bound the chance that the units other than one fill a batch; 0 only if they cannot.

    >>> truncation_chance(0.5, batch_size=2, public_size=3)  # both of two
    0.25000000025
    """
    if public_size - 1 < batch_size:
        return 0.0
    from scipy.stats import binom  # half a second to import: only where a batch is cut

    chance = float(binom.sf(batch_size - 1, public_size - 1, sampling_rate))
    return min(1.0, max(chance * (1 + 1e-9), 1e-300))


@lru_cache(maxsize=256)
def projection_knots(projections: int, distance: float, other: float = 0.0, *, units: int = 1) -> Knots:
    """Return the distribution of the factor s = sqrt(r / chi2(r)) on knots, such that it is dominated.

    A factor of s makes the distance of the two Gaussians hypot(s `distance`, `other`), in standard
    deviations. `units` is how many contributions differ between neighbors: each has an s of its own.

    >>> knots = projection_knots(100, 1.0)
    >>> round(sum(f * w for f, w in zip(knots.values, knots.weights)), 3)
    1.008
    """
    from scipy.stats import chi2, norm  # half a second to import: only where norms are estimated

    scores = _scores(float(norm.isf(TAIL / units)))
    index = np.arange((len(scores) - 1) * FINER + 1) / FINER
    fine = np.interp(index, np.arange(len(scores)), scores)
    # s is above x with the chance that chi2(r) is below r / x^2.
    low_tail = ndtr(-fine)
    s = np.sqrt(projections / chi2.ppf(low_tail, projections))
    above = np.minimum(1.0, units * low_tail)
    masses = -np.diff(above)
    miss = ndtr(-np.hypot(s * distance, other) / 2)  # 1 - t, which keeps its digits
    weights = _split(miss[::FINER], masses, miss[1:])
    weights[0] += 1.0 - above[0]  # what lies below the first knot is raised to it
    return Knots(tuple(s[::FINER].tolist()), tuple(weights.tolist()), tail=float(above[-1]))


def _scores(last: float) -> Floats:
    steps = ((LOW, BULK, 4), (BULK, RARE, 44), (RARE, last, 12))
    parts = [np.linspace(begin, end, count, endpoint=False) for begin, end, count in steps]
    return np.append(np.concatenate(parts), last)


def _split(miss: Floats, masses: Floats, fine_miss: Floats) -> Floats:
    """Move the mass of each cell to its two knots so that t = 1 - miss has at least the mean it had."""
    masses, fine_miss = masses.reshape(-1, FINER), fine_miss.reshape(-1, FINER)
    cell, width = masses.sum(axis=1), (miss[:-1] - miss[1:])[:, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        way = (miss[:-1, None] * (1 + 1e-15) - fine_miss) / width  # from the lower knot; rounded up
        way = np.where(width > LOST, np.clip(way, 0.0, 1.0), 1.0)
        share = np.where(cell > 0, (masses * way).sum(axis=1) / cell * (1 + 1e-12), 1.0)
    share = np.minimum(share, 1.0)
    weights = np.zeros(len(miss))
    weights[:-1] += cell * (1 - share)
    weights[1:] += cell * share
    return weights
