# SPDX-License-Identifier: Apache-2.0
"""The region of the answer of a composition: the tilt, the window and the grid step, from a rough estimate.

Nothing here is a claim: a poor choice makes `pld` slow or loose, never wrong.

Under the tilt e^{theta loss} the sum of losses has its mean where the epsilon for delta is, if log E[e^{theta
S}] - theta mean, with its Gaussian correction, is log delta.

Outside of the window little tilted mass is left, by Chernoff. `grid` bounds it again, on the grid.

The grid step follows from the wanted gap and the number of steps, or from the variance that splitting adds
(see `pld`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft

from sfumato.accounting.pairs import Floats, Pair

__all__ = ["Cumulants", "Part", "Saddle", "choose_step", "find_saddle", "window_at"]

MOST_CELLS = 3 * 2**20  # of one Fourier transform: 24 MiB of float64
MOST_WORK = 2**26  # cells times distinct leaves, one transform each
SEARCH_CELLS = 4096  # of the rough picture from which tilt and window are found
NARROW = 1e-4  # relative spread at which more tilt would only amplify rounding
NEGLIGIBLE = 1e-18  # tilted mass that a part may leave below its grid
SMALL = 1e-7  # share of delta that all cut-off tails together may cost
MARGIN = 8  # cells that the window has on each side beyond what Chernoff asks for
ETA = 1e-3  # share of delta given to the Hoeffding step
ROUNDING = 4e-16  # relative error of a ratio of two masses, hence absolute error of a loss


@dataclass(frozen=True, slots=True)
class Part:
    """One leaf: its pair and how often it runs."""

    pair: Pair
    count: int


@dataclass(frozen=True, slots=True)
class Saddle:
    """Where the answer lies: the tilt, mean and standard deviation of the tilted sum of losses, and a window
    outside of which little tilted mass is, by Chernoff at tilts `tilt - left` and `tilt + right`."""

    tilt: float
    mean: float
    stddev: float
    low: float
    high: float
    left: float
    right: float


class Cumulants:
    """Log-moments of the composed loss, from cells merged to their mean loss (second-order accurate)."""

    def __init__(self, parts: Sequence[Part], probability: float) -> None:
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
        """Whether some part has no finite loss at all, or losses whose squares are not finite."""
        return any(len(loss) == 0 for _, loss, _ in self._parts) or not self.most < 1e150

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

    def log_moment(self, tilt: float) -> float:
        """Return log E[e^{tilt S}] alone, the same number as by `at`."""
        total = 0.0
        for log_p, loss, count in self._parts:
            weight = log_p + tilt * loss
            top = weight.max()
            total += count * (float(top) + math.log(np.exp(weight - top).sum()))
        return total

    def lowest(self, tilt: float) -> list[float]:
        """Return for each part a loss below which its tilted mass is negligible (its mass may not be)."""
        cuts: list[float] = []
        for (log_p, loss, count), (low, high) in zip(self._parts, self.reach, strict=True):
            log_moment = float(np.logaddexp.reduce(log_p + tilt * loss))
            cut = (log_moment + math.log(NEGLIGIBLE / count)) / tilt
            cuts.append(min(max(low, cut), high))
        return cuts

    def is_below(self, tilt: float, log_delta: float) -> bool:
        """Whether the tilt that is searched for is larger, and more than this one tells something."""
        total, mean, variance = self.at(tilt)
        return _log_delta(tilt, total, mean, variance) > log_delta and _useful(tilt, total, mean, variance)


def _log_delta(tilt: float, total: float, mean: float, variance: float) -> float:
    """Return the saddle-point estimate of log delta at epsilon = the tilted mean."""
    spread = math.sqrt(2 * math.pi * variance) * tilt * (1 + tilt)
    return total - tilt * mean - max(0.0, math.log(spread) if spread > 0 else 0.0)


def _useful(tilt: float, total: float, mean: float, variance: float) -> bool:
    """Whether more tilt than this would still tell more than rounding takes away."""
    # The relative spread vanishes where losses are bounded: all mass is at the largest one.
    return math.sqrt(variance) > NARROW * abs(mean) and abs(total) + tilt * abs(mean) < MOST_EXPONENT


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


def find_saddle(cumulants: Cumulants, delta: float) -> Saddle:
    """Find the tilt at which the answer for `delta` is the mean, by bisection on its logarithm."""
    most_tilt = MOST_EXPONENT / cumulants.most
    low, high = math.log(min(LEAST_TILT, most_tilt / 2)), math.log(most_tilt)
    goal = math.log(delta)
    while high - low > 1e-2:
        middle = (low + high) / 2
        if cumulants.is_below(math.exp(middle), goal):
            low = middle
        else:
            high = middle
    return window_at(cumulants, math.exp(low), goal)


def window_at(cumulants: Cumulants, tilt: float, log_delta: float) -> Saddle:
    """Find the shortest window that Chernoff bounds allow, over a few extra tilts on each side."""
    total, mean, variance = cumulants.at(tilt)
    stddev = math.sqrt(variance)
    if stddev == 0:
        return Saddle(tilt, mean, 0.0, mean, mean, math.inf, math.inf)
    # Small beside delta, as the tilted measure sees it.
    outside = math.log(SMALL) + min(0.0, log_delta - (total - tilt * mean))
    steepest = MOST_EXPONENT / cumulants.most
    extras = [min(c / stddev, steepest) for c in EXTRA_TILTS]
    high, right = min(((cumulants.log_moment(tilt + a) - total - outside) / a, a) for a in extras)
    low, left = max((-(cumulants.log_moment(tilt - a) - total - outside) / a, a) for a in extras)
    return Saddle(tilt, mean, stddev, low, high, left, right)


def choose_step(
    parts: Sequence[Part], saddle: Saddle, widest: float, delta: float, *, certify: bool
) -> tuple[float, int]:
    """Choose the grid step h and the window length."""
    epsilon = max(saddle.mean, saddle.stddev, 1e-12)
    count = sum(part.count for part in parts)
    if certify:
        # Hoeffding: h sqrt(T/2 log 1/eta) is at most the wanted gap.
        gap = max(min(0.008, 0.008 * epsilon), 2e-4 * epsilon)
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


def _on_lattice(parts: Sequence[Part], step: float) -> float:
    """Shrink the step so that the losses of the lattice-valued parts, if they share one, lie on the grid."""
    spacings = {part.pair.lattice for part in parts} - {None}
    if len(spacings) != 1:
        return step
    spacing = float(next(iter(spacings)) or step)
    return spacing / math.ceil(spacing / step)
