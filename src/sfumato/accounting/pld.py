# SPDX-License-Identifier: Apache-2.0
"""The privacy loss accountant: the tightest epsilon of a fixed plan, with a certified interval.

Guarantee  `interval(event, delta, relation)` returns (lower, upper). The plan is (upper, delta)-DP. Where all
           pairs are attained, it is not (lower', delta)-DP for any lower' < lower. Both hold up to
           floating-point rounding, for which a margin is added (`_rounding`).
Method     1. Each leaf's dominating pair (`pairs`) is put on a grid of losses by connecting the dots of its
              profile: within a cell both masses move to the two ends so that P and Q are kept. The result
              dominates the pair (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022).
           2. Before the Fourier transform the losses are tilted by e^{theta loss}, theta chosen where the
              answer lies (a saddle point). So the tail that decides delta is computed with relative, not
              absolute, accuracy, and the window need only cover the neighborhood of the answer.
           3. Merging each cell to one outcome, instead, is post-processing: a pair that is dominated. The
              split pair is the merged one plus one independent error per step, of range h, with
              E[e^-error] = 1. By Hoeffding their sum exceeds T h^2/8 + h sqrt(T/2 log(1/eta)) with chance at
              most eta, which turns the upper curve into a lower bound.
Grid       The step h comes from the composition: by (3) it shrinks as 1/sqrt(T) for a given gap.
           Windows are at most `MOST_CELLS` long in all; beyond that the grid is coarser and the gap wider.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import dp_event as dp
from scipy import fft
from scipy.signal import lfilter

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.pairs import Floats, Pair, all_symmetric, dominating

__all__ = ["interval", "is_tight", "upper_epsilon"]

MOST_CELLS = 2**22  # of one Fourier transform: 32 MiB of float64
MOST_WORK = 2**26  # cells times distinct leaves, one transform each
SEARCH_CELLS = 4096  # of the rough picture from which tilt and window are found
NARROW = 1e-4  # relative spread at which more tilt would only amplify rounding
NEGLIGIBLE = 1e-18  # tilted mass that a part may leave below its grid
SMALL = 1e-7  # share of delta that all cut-off tails together may cost
LARGE = 600.0  # e^600 is still a float64
MARGIN = 8  # cells that the window has on each side beyond what Chernoff asks for
SILENT = -60.0  # log of a Fourier coefficient that is left out
FAR = 3.0  # log of the factor by which tails weigh more at the answer than at the saddle
ETA = 1e-3  # share of delta given to the Hoeffding step
ROUNDING = 4e-16  # relative error of a ratio of two masses, hence absolute error of a loss


@dataclass(frozen=True, slots=True)
class _Part:
    """One leaf: its pair and how often it runs."""

    pair: Pair
    count: int


@dataclass(frozen=True, slots=True)
class _Saddle:
    """Where the answer lies: the tilt, mean and standard deviation of the tilted sum of losses, and a window
    outside of which little tilted mass is, by Chernoff at tilts `tilt - left` and `tilt + right`."""

    tilt: float
    mean: float
    stddev: float
    low: float
    high: float
    left: float
    right: float


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
    parts = [[_Part(pair[d], n) for pair, n in both] for d in directions]
    rough = _rough(parts, delta)
    if not certify:
        return 0.0, max(rough)
    return _certified(parts, rough, delta)


def _rough(directions: Sequence[Sequence[_Part]], delta: float) -> list[float]:
    """Return an upper bound for each direction; a direction that cannot be the worse one is not computed."""
    bounds: list[float] = []
    for parts in directions:
        most = math.fsum(part.count * part.pair.largest for part in parts)
        settled = bool(bounds) and most <= max(bounds)
        bounds.append(most if settled else min(most, _compose(parts, delta, certify=False)[1]))
    return bounds


def _certified(parts: Sequence[Sequence[_Part]], rough: Sequence[float], delta: float) -> tuple[float, float]:
    """Refine the worse direction; the other one only if its rough upper bound is not below the result."""
    worse = max(range(len(rough)), key=rough.__getitem__)
    lower, upper = _compose(parts[worse], delta, certify=True)
    for other, bound in enumerate(rough):
        if other != worse and bound > upper:
            low, high = _compose(parts[other], delta, certify=True)
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


# --- 1. the rough picture: tilt, window, grid -----------------------------------------------------------


class _Cumulants:
    """Log-moments of the composed loss, from cells merged to their mean loss (second-order accurate)."""

    def __init__(self, parts: Sequence[_Part], probability: float) -> None:
        cells = max(64, SEARCH_CELLS // len(parts))
        self._parts: list[tuple[Floats, Floats, int]] = []
        self.reach: list[tuple[float, float]] = []
        for part in parts:
            edges = part.pair.edges(cells, probability)
            self.reach.append((float(edges[0]), float(edges[-1])))
            p, q = part.pair.masses(edges)
            # Rounding may push an atom at the largest loss into the last, open cell.
            low, high = np.append(-np.inf, edges), np.append(edges, part.pair.largest)
            with np.errstate(divide="ignore", invalid="ignore"):
                loss = np.clip(np.log(p) - np.log(q), np.minimum(low, high), high) + ROUNDING
                kept = (p > 0) & np.isfinite(loss)
                self._parts.append((np.log(p[kept]), loss[kept], part.count))

    @property
    def hopeless(self) -> bool:
        """Whether some part has no finite loss at all."""
        return any(len(loss) == 0 for _, loss, _ in self._parts)

    @property
    def most(self) -> float:
        """The largest absolute loss of a part that was not cut off."""
        return max(max(abs(low), abs(high)) for low, high in self.reach)

    def at(self, tilt: float) -> tuple[float, float, float]:
        """Return log E[e^{tilt S}], and mean and variance of S under that tilt."""
        total = mean = variance = 0.0
        for log_p, loss, count in self._parts:
            weight = log_p + tilt * loss
            top = weight.max()
            w = np.exp(weight - top)
            whole = w.sum()
            centre = float((w * loss).sum() / whole)
            total += count * (float(top) + math.log(whole))
            mean += count * centre
            variance += count * float((w * (loss - centre) ** 2).sum() / whole)
        return total, mean, variance

    def lowest(self, tilt: float) -> list[float]:
        """Return for each part a loss below which its tilted mass is negligible (its mass may not be)."""
        cuts: list[float] = []
        for (log_p, loss, count), (low, high) in zip(self._parts, self.reach, strict=True):
            log_moment = float(np.logaddexp.reduce(log_p + tilt * loss))
            cut = (log_moment + math.log(NEGLIGIBLE / count)) / tilt
            cuts.append(min(max(low, cut), high))
        return cuts

    def useful(self, tilt: float) -> bool:
        """Whether more tilt than this would still tell more than rounding takes away."""
        total, mean, variance = self.at(tilt)
        # The relative spread vanishes where losses are bounded: all mass is at the largest one.
        return math.sqrt(variance) > NARROW * abs(mean) and abs(total) + tilt * abs(mean) < MOST_EXPONENT

    def log_delta(self, tilt: float) -> float:
        """Return the saddle-point estimate of log delta at epsilon = the tilted mean."""
        total, mean, variance = self.at(tilt)
        spread = math.sqrt(2 * math.pi * variance) * tilt * (1 + tilt)
        return total - tilt * mean - max(0.0, math.log(spread) if spread > 0 else 0.0)


LEAST_TILT = 1e-4
# In units of 1 / stddev. The small ones are for sums with nearly all mass in one point and a long tail.
EXTRA_TILTS = (
    1e-6,
    1e-5,
    1e-4,
    1e-3,
    0.01,
    0.1,
    0.25,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    5.0,
    6.0,
    7.0,
    8.0,
    10.0,
)
MOST_EXPONENT = 1e6  # log of a weight: beyond it exponents lose the digits that delta needs


def _saddle(cumulants: _Cumulants, delta: float) -> _Saddle:
    """Find the tilt at which the answer for `delta` is the mean, by bisection on its logarithm."""
    most_tilt = MOST_EXPONENT / cumulants.most
    low, high = math.log(min(LEAST_TILT, most_tilt / 2)), math.log(most_tilt)
    goal = math.log(delta)
    while high - low > 1e-2:
        middle = (low + high) / 2
        if cumulants.log_delta(math.exp(middle)) > goal and cumulants.useful(math.exp(middle)):
            low = middle
        else:
            high = middle
    return _window(cumulants, math.exp(low), goal)


def _window(cumulants: _Cumulants, tilt: float, log_delta: float) -> _Saddle:
    """Find the shortest window that Chernoff bounds allow, over a few extra tilts on each side."""
    total, mean, variance = cumulants.at(tilt)
    stddev = math.sqrt(variance)
    if stddev == 0:
        return _Saddle(tilt, mean, 0.0, mean, mean, math.inf, math.inf)
    # Small beside delta, as the tilted measure sees it.
    outside = math.log(SMALL) + min(0.0, log_delta - (total - tilt * mean))
    steepest = MOST_EXPONENT / cumulants.most
    extras = [min(c / stddev, steepest) for c in EXTRA_TILTS]
    high, right = min(((cumulants.at(tilt + a)[0] - total - outside) / a, a) for a in extras)
    low, left = max((-(cumulants.at(tilt - a)[0] - total - outside) / a, a) for a in extras)
    return _Saddle(tilt, mean, stddev, low, high, left, right)


def _step(
    parts: Sequence[_Part], saddle: _Saddle, widest: float, delta: float, *, certify: bool
) -> tuple[float, int]:
    """Choose the grid step h and the window length."""
    epsilon = max(saddle.mean, saddle.stddev, 1e-12)
    count = sum(part.count for part in parts)
    if certify:
        # Hoeffding: h sqrt(T/2 log 1/eta) is at most the wanted gap.
        gap = max(min(0.008, 0.008 * epsilon), 5e-4 * epsilon)
        step = gap / math.sqrt(count / 2 * -math.log(ETA * delta))
    else:
        # Splitting cells adds a variance of at most T h^2/4, which moves epsilon by about tilt T h^2/8.
        gap = 1e-4 * epsilon
        step = min(math.sqrt(8 * gap / (max(saddle.tilt, 1.0) * count)), saddle.stddev / 32)
    step = max(step, gap / (8 * count))  # T steps of at most h each never move the sum by more than T h
    width = saddle.high - saddle.low
    most = min(MOST_CELLS, MOST_WORK // len(parts))
    step = _on_lattice(parts, max(step, width / most, widest / most))
    return step, fft.next_fast_len(max(64, math.ceil(width / step) + 2 * MARGIN + 2), real=True) or 64


def _on_lattice(parts: Sequence[_Part], step: float) -> float:
    """Shrink the step so that the losses of the lattice-valued parts, if they share one, lie on the grid."""
    spacings = {part.pair.lattice for part in parts} - {None}
    if len(spacings) != 1:
        return step
    spacing = float(next(iter(spacings)) or step)
    return spacing / math.ceil(spacing / step)


# --- 2. one leaf on the grid ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Discrete:
    """P-masses on the losses (first + i) * step, the mass moved to infinity, the mass raised from below."""

    first: int
    masses: Floats
    infinite: float
    raised: float


def _discretize(pair: Pair, step: float, low: float, high: float) -> _Discrete:
    """Connect the dots of the pair's profile at whole multiples of `step`, from about `low` to `high`."""
    first = math.floor(low / step + 1e-9)
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
    return _Discrete(first, masses, float(p[-1]), float(p[0]))


def _tilted(leaf: _Discrete, step: float, tilt: float) -> tuple[Floats, float]:
    """Return masses proportional to p e^{tilt loss}, summing to 1, and the log of what they summed to."""
    losses = (leaf.first + np.arange(len(leaf.masses))) * step
    with np.errstate(divide="ignore"):
        weight = np.log(leaf.masses) + tilt * losses
    top = float(weight.max())
    tilted = np.exp(weight - top)
    whole = float(tilted.sum())
    return tilted / whole, top + math.log(whole)


# --- 3. compose and read off ----------------------------------------------------------------------------


def _compose(parts: Sequence[_Part], delta: float, *, certify: bool) -> tuple[float, float]:
    """Return (lower, upper) for one direction."""
    if _total_variation(parts) <= delta:
        return 0.0, 0.0
    count = sum(part.count for part in parts)
    cumulants = _Cumulants(parts, max(SMALL * delta / count, 1e-300))
    if cumulants.hopeless:
        return 0.0, math.inf
    saddle = _saddle(cumulants, delta)
    lower, upper = _look(parts, cumulants, saddle, delta, certify=certify)
    nearer = _nearer(cumulants, saddle, upper, delta)
    if nearer is not None:
        low, high = _look(parts, cumulants, nearer, delta, certify=certify)
        lower, upper = max(lower, low), min(upper, high)
    return lower, upper


def _nearer(cumulants: _Cumulants, saddle: _Saddle, found: float, delta: float) -> _Saddle | None:
    """Return a gentler tilt where the answer lies far left of the saddle: atoms and rare losses mislead it."""
    miss = saddle.mean - found
    if not (found > 0 and saddle.tilt * miss > FAR):
        return None
    return _window(cumulants, 1 / miss, math.log(delta))


def _look(
    parts: Sequence[_Part], cumulants: _Cumulants, saddle: _Saddle, delta: float, *, certify: bool
) -> tuple[float, float]:
    """Return (lower, upper) as seen from one saddle."""
    ranges = [
        (low, high) for low, (_, high) in zip(cumulants.lowest(saddle.tilt), cumulants.reach, strict=True)
    ]
    widest = max(high - low for low, high in ranges)
    step, size = _step(parts, saddle, widest, delta, certify=certify)
    leaves = [(_discretize(p.pair, step, *r), p.count) for p, r in zip(parts, ranges, strict=True)]
    curve = _Curve(leaves, step, size, saddle)
    upper = curve.upper(delta - _some_infinite(leaves))
    if not certify or not all(part.pair.attained for part in parts):
        return 0.0, upper
    shift, eta = _split_error(parts, step, delta)
    lower = curve.lower(delta + eta) - shift
    return min(max(0.0, lower), upper), upper


def _some_infinite(leaves: Sequence[tuple[_Discrete, int]]) -> float:
    """Return the chance that at least one of the losses is infinite."""
    if any(leaf.infinite >= 1 for leaf, _ in leaves):
        return 1.0
    return -math.expm1(math.fsum(n * math.log1p(-leaf.infinite) for leaf, n in leaves))


def _total_variation(parts: Sequence[_Part]) -> float:
    """Bound delta at epsilon 0: the total variation of a product is at most the sum of its parts'."""
    total = 0.0
    for part in parts:
        (_, p), (_, q) = part.pair.masses(np.zeros(1))
        total += part.count * (max(0.0, float(p - q)) + 4e-16)  # p - q is rounded at the scale of 1
    return total


def _split_error(parts: Sequence[_Part], step: float, delta: float) -> tuple[float, float]:
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


class _Curve:
    """The tilted distribution of the composed loss on a window, read as a privacy curve.

    With s measured from the tilted mean, delta(epsilon) = scale * sum over s > epsilon of
    weight(s) e^{-tilt s} (1 - e^{epsilon - s}). `excess` is tilted mass that may be missing or misplaced
    (tails outside the window, rounding), `raised` what was raised to the lowest points of the parts' grids.
    """

    def __init__(
        self, leaves: Sequence[tuple[_Discrete, int]], step: float, size: int, saddle: _Saddle
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
        self.weights = spectrum.masses(first)
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
        discounted = np.asarray(lfilter([1.0], [1.0, -math.exp(-step)], kept[::-1]), dtype=np.float64)[::-1]
        return s, growth, above, discounted

    @staticmethod
    def _crossing(sums: tuple[Floats, Floats, Floats, Floats], goal: float, excess: float) -> float | None:
        """Return where the curve falls to `goal` for good, or None if it is there from the start."""
        s, growth, above, discounted = sums
        # At epsilon = s_j the term of s_j itself is zero, so sums that include it are right.
        curve = above - discounted + excess * growth
        # With a negative excess the curve is a lower bound, and dips below the goal on the far left as well.
        over = np.flatnonzero(~(curve <= goal))  # NaN, which no overflow should make, counts as over
        if len(over) == 0:
            return None
        j = int(over[-1]) + 1
        if j == len(s):
            return math.inf
        # Between s_{j-1} and s_j the curve is linear in e^epsilon.
        room = above[j] + excess * growth[j - 1] - goal
        if not (room > 0 and discounted[j] > 0):
            return float(s[j])
        crossing = float(s[j]) + math.log(room) - math.log(discounted[j])
        return min(max(crossing, float(s[j - 1])), float(s[j]))


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

    def masses(self, first: int) -> Floats:
        """Return the masses of the sum on the window of `size` cells from grid index `first` on."""
        heard = self._log_phi.real > SILENT
        phi = np.zeros_like(self._log_phi)
        phi[heard] = np.exp(self._log_phi[heard])
        total = np.asarray(fft.irfft(phi, self.size))
        return np.roll(np.maximum(total, 0.0), -((first - self._shift) % self.size))


def _tails(
    leaves: Sequence[tuple[_Discrete, int]], step: float, saddle: _Saddle, log_scale: float, window: Floats
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
