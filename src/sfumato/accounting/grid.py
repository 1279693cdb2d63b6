# SPDX-License-Identifier: Apache-2.0
"""Losses on a grid: one leaf put there, many composed, the composition read as a privacy curve.

Guarantee  `discretize` dominates its pair: within a cell both masses move to the two ends so that P and Q are
           kept; what lies below is raised, what lies above becomes infinite. `Curve.upper` and `Curve.lower`
           count all mass that may be missing or misplaced (tails outside the window, by Chernoff; rounding)
           against the claim.
Source     Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, "Connect the dots".
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from scipy import fft

from sfumato.accounting.pairs import Floats, Pair
from sfumato.accounting.saddle import MARGIN, ROUNDING, Saddle

__all__ = ["Curve", "Discrete", "discretize"]

LARGE = 600.0  # e^600 is still a float64
SILENT = -60.0  # log of a Fourier coefficient that is left out
POWER_ROUNDING = 1.2e-16  # relative error of one factor e^-h
LONG = 1 << 18  # cells: a sum over more is worth the half second that scipy.signal takes to import


@dataclass(frozen=True, slots=True)
class Discrete:
    """P-masses on the losses (first + i) * step, the mass moved to infinity, the mass raised from below."""

    first: int
    masses: Floats
    infinite: float
    raised: float


def discretize(pair: Pair, step: float, low: float, high: float) -> Discrete:
    """Connect the dots of the pair's profile at whole multiples of `step`, from about `low` to `high`."""
    first = math.floor(low / step) - 1  # an atom at `low` is not below the grid
    last = max(first, math.ceil(high / step)) + 1  # an atom at `high` must not fall off the end by rounding
    grid = np.arange(first, last + 1, dtype=np.float64) * step
    p, q = pair.masses(grid)
    masses = np.zeros(len(grid))
    masses[0] = p[0]  # losses below the grid are raised to its lowest point
    inner_p, inner_q = p[1:-1], q[1:-1]
    # Share of the cell (a, a + h] that goes to its upper end so that the Q-mass is kept as well.
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_loss = np.log(inner_p) - np.log(inner_q) - grid[:-1] + ROUNDING  # upwards, if in doubt
    share = np.clip(np.nan_to_num(-np.expm1(-mean_loss) / -math.expm1(-step), nan=1.0), 0.0, 1.0)
    masses[1:] += inner_p * share
    masses[:-1] += inner_p * (1 - share)
    return Discrete(first, masses, float(p[-1]), float(p[0]))


def _tilted(leaf: Discrete, step: float, tilt: float) -> tuple[Floats, float]:
    """Return masses proportional to p e^{tilt loss}, summing to 1, and the log of what they summed to."""
    losses = (leaf.first + np.arange(len(leaf.masses))) * step
    with np.errstate(divide="ignore"):
        weight = np.log(leaf.masses) + tilt * losses
    top = float(weight.max())
    tilted = np.exp(weight - top)
    whole = float(tilted.sum())
    return tilted / whole, top + math.log(whole)


class Curve:
    """The tilted distribution of the composed loss on a window, read as a privacy curve.

    With s measured from the tilted mean, delta(epsilon) = scale * sum over s > epsilon of
    weight(s) e^{-tilt s} (1 - e^{epsilon - s}). `excess` is tilted mass that may be missing or misplaced
    (tails outside the window, rounding), `raised` what was raised to the lowest points of the parts' grids or
    made by rounding.
    """

    def __init__(
        self, leaves: Sequence[tuple[Discrete, int]], step: float, size: int, saddle: Saddle
    ) -> None:
        spectrum = _Spectrum(size)
        log_scale = self.mean = self.raised = 0.0
        for leaf, count in leaves:
            tilted, log_moment = _tilted(leaf, step, saddle.tilt)
            self.mean += step * spectrum.multiply(tilted, leaf.first, count)
            log_scale += count * log_moment
            self.raised += count * leaf.raised * math.exp(saddle.tilt * leaf.first * step - log_moment)
        first = math.floor(saddle.low / step) - MARGIN
        self.losses: Floats = np.arange(first, first + size, dtype=np.float64) * step
        self.weights, clipped = spectrum.masses(first)
        self.raised += 4 * clipped  # noise has both signs: as much was added elsewhere, with room to spare
        self.tilt, self.stddev = saddle.tilt, saddle.stddev
        self.log_scale = log_scale - saddle.tilt * self.mean
        count = sum(n for _, n in leaves)
        self.excess = _tails(leaves, step, saddle, log_scale, self.losses) + _rounding(count, size)
        self._near = self._sums(self.mean - min(3 * self.stddev, LARGE / self.tilt))

    def upper(self, delta: float) -> float:
        """Return an epsilon at which delta, with all excess mass counted, is at most `delta`."""
        if not (delta > 0 and abs(self.weights.sum() - 1) < 1e-6):
            return math.inf  # nothing left of delta, or an overflow on the way: no claim
        return max(0.0, self._epsilon(delta, self.excess))

    def lower(self, delta: float) -> float:
        """Return an epsilon at which delta, less all mass that may be misplaced, is above `delta`; else 0."""
        found = self._epsilon(delta, -self.excess - self.raised)
        return max(0.0, found) if math.isfinite(found) else 0.0

    def _epsilon(self, delta: float, excess: float) -> float:
        log_goal = math.log(delta) - self.log_scale
        if log_goal > LARGE and excess < 0:
            return -math.inf  # the goal is out of sight: no lower bound
        goal = math.exp(min(log_goal, LARGE))
        # The answer is near the mean; only if it is not, look as far left as exponents allow.
        found = self._crossing(self._near, goal, excess)
        if found is None:
            far = self._sums(self.mean - LARGE / self.tilt)
            found = self._crossing(far, goal, excess)
            if found is None:
                found = float(far[0][0]) if excess >= 0 else -math.inf
        return self.mean + found

    def _sums(self, start: float) -> tuple[Floats, Floats, Floats, Floats]:
        """Return, from loss `start` on: s, e^{-tilt s}, and the sums over t >= s of mass and mass e^{s-t}."""
        first = min(int(np.searchsorted(self.losses, start)), len(self.losses) - 1)
        s = (self.losses - self.mean)[first:]
        growth = np.exp(-self.tilt * s)
        kept = self.weights[first:] * growth
        above = np.cumsum(kept[::-1])[::-1]
        step = float(self.losses[1] - self.losses[0])
        discounted = _discounted(kept[::-1], math.exp(-step))[::-1]
        return s, growth, above, discounted

    @staticmethod
    def _crossing(sums: tuple[Floats, Floats, Floats, Floats], goal: float, excess: float) -> float | None:
        """Return where the curve falls to `goal` for good, or None if it is there from the start."""
        s, growth, above, discounted = sums
        # The filter raises a rounded e^-h to powers: k cells away, an error of k units in the last place.
        drift = POWER_ROUNDING * min(len(s), 1 / float(s[1] - s[0])) if len(s) > 1 else 0.0
        # At epsilon = s_j the term of s_j itself is zero, so sums that include it are right.
        curve = above * (1 + math.copysign(drift, excess)) - discounted + excess * growth
        # With a negative excess the curve is a lower bound, and dips below the goal on the far left as well.
        over = np.flatnonzero(~(curve <= goal))  # NaN, which no overflow should make, counts as over
        if len(over) == 0:
            return None
        j = int(over[-1]) + 1
        if j == len(s):
            return math.inf
        # Between s_{j-1} and s_j the curve is linear in e^epsilon.
        room = above[j] * (1 + math.copysign(drift, excess)) + excess * growth[j - 1] - goal
        if not (room > 0 and discounted[j] > 0):
            return float(s[j])
        crossing = float(s[j]) + math.log(room) - math.log(discounted[j])
        return min(max(crossing, float(s[j - 1])), float(s[j]))


def _discounted(masses: Floats, factor: float) -> Floats:
    """Return y, where y[i] = masses[i] + factor * y[i - 1]; in either way to the same last bit."""
    if len(masses) > LONG or "scipy.signal" in sys.modules:  # 20 times faster, once it is imported
        from scipy.signal import lfilter

        return np.asarray(lfilter([1.0], [1.0, -factor], masses), dtype=np.float64)

    def following(total: float, mass: float) -> float:
        return mass + factor * total

    return np.fromiter(accumulate(masses.tolist(), following), np.float64, count=len(masses))


class _Spectrum:
    """The logarithm of the Fourier transform of a sum of grid-valued losses, modulo `size` cells."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._log_phi = np.zeros(size // 2 + 1, dtype=np.complex128)
        self._shift = 0

    def multiply(self, masses: Floats, first: int, count: int) -> float:
        """Add `count` losses spread as `masses` from grid index `first` on; return their mean in cells."""
        index = np.arange(len(masses))
        middle = float((masses * index).sum())
        origin = round(middle)  # centred masses have slow phases, which lose little to rounding
        phi = np.asarray(fft.rfft(np.bincount((index - origin) % self.size, masses, self.size)))
        # Frequencies whose power is nothing need no logarithm: with many steps that is nearly all of them.
        heard = (np.abs(phi) > math.exp(SILENT / count)) & (self._log_phi.real > SILENT)
        self._log_phi[heard] += count * np.log(phi[heard])
        self._log_phi[~heard] = 2 * SILENT
        self._shift += count * (first + origin)
        return count * (first + middle)

    def masses(self, first: int) -> tuple[Floats, float]:
        """Return the masses of `size` cells from grid index `first` on, and the negative mass clipped off."""
        heard = self._log_phi.real > SILENT
        phi = np.zeros_like(self._log_phi)
        phi[heard] = np.exp(self._log_phi[heard])
        total = np.asarray(fft.irfft(phi, self.size))
        clipped = -float(np.minimum(total, 0.0).sum())
        return np.roll(np.maximum(total, 0.0), -((first - self._shift) % self.size)), clipped


def _tails(
    leaves: Sequence[tuple[Discrete, int]], step: float, saddle: Saddle, log_scale: float, window: Floats
) -> float:
    """Bound the tilted mass outside the window by Chernoff, on the grid itself."""
    total = 0.0
    for extra, edge in ((saddle.right, window[-1]), (-saddle.left, window[0])):
        # Steeper than the grid is fine would weigh how a loss was rounded, not where it lies.
        extra = math.copysign(min(abs(extra), MARGIN / step), extra)
        moment = math.fsum(n * _tilted(leaf, step, saddle.tilt + extra)[1] for leaf, n in leaves)
        total += math.exp(min(0.0, moment - log_scale - extra * float(edge)))
    return total


def _rounding(count: int, size: int) -> float:
    """Return the tilted mass that rounding may misplace: powers multiply a relative error by the count."""
    return 4e-16 * (count + 16 * math.log2(size)) + size * math.exp(SILENT)
