# SPDX-License-Identifier: Apache-2.0
"""Exact tests of noise in coordinates that hold noise and nothing else.

Values are what was released in such coordinates, in stated standard deviations. If the code is right they are
independent standard normal numbers, whatever the data are.

- The sum of squares of each step, and of all steps, has a chi-square distribution. Only too little counts.
- The number of values within some distances from 0 is binomial. Only too many count. Noise that is cut off,
  uniform or Laplace, with the right variance, shows here. Values must not have been rounded to a coarse type:
  the grid of bfloat16 holds 1, 1.5 and 2, and more values lie within these after rounding.
- Signs of one coordinate in two steps agree with probability 1/2, and are fair coins over coordinates. Too
  many or too few mean noise that is used again or taken back. Each pair of steps is tested, and for each
  distance all pairs of steps of that distance together.
- Signs of two coordinates at a fixed distance in one step are fair coins, too, independent over the places
  that they start at (such pairs form a forest, and products of signs along its edges are independent).
  Repeated or shared draws show.

`Energies` takes coordinates to which the data contribute as well. If a number is added that was fixed before
the noise was drawn, the square of the sum becomes stochastically larger (a noncentral chi-square), so too
little is still evidence. If the data contribute much, it shows nothing.

Guarantee  A p-value is at most p with probability at most p, for independent Gaussian noise of at least the
           stated size. All looks are counted (Bonferroni).
Failure    A bounded sum with Gaussian noise is always a finite number. A step in which it is not is a finding
           by itself, and is left out of all sums, where it would hide the others.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr
from scipy.stats import binom, chi2

from sfumato.audit.evidence.results import Finding

__all__ = [
    "Energies",
    "NoiseLog",
    "least_p",
    "packed",
    "products_at_every_shift",
    "seen_in_one_step",
    "unpacked",
]

Numbers = npt.NDArray[np.float64]
Signs = npt.NDArray[np.int8]

_WITHIN = np.array([0.02, 0.1, 0.3, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0])  # standard deviations
_KEPT = 512  # coordinates whose signs are kept for every step
_LAGS, _WIDE = 512, 1536  # distances within a step, and coordinates that are compared
_ALL_STEPS, _EVERY = 64, 4  # places are compared in the first steps, and then in every fourth
_PAIRED = 1024  # steps of which all pairs are compared; of more, those nearest to one another
_NEAR = 64  # distances in steps of which all pairs are added up
_CANDIDATES = 16  # of all sums of signs, those whose p-value is computed: the smallest is among these
_POWER = 0.9


class NoiseLog:
    """The noise of some fixed coordinates over the steps of a run.

    >>> log, draws = NoiseLog("a layer"), np.random.default_rng(0)
    >>> for _ in range(20): signs = log.add(draws.normal(size=300))
    >>> min(found.p_value for found in log.findings()) > 0.001
    True
    >>> for _ in range(20): signs = log.add(0.8 * draws.normal(size=300))
    >>> min(found.p_value for found in log.findings()) < 1e-9
    True
    """

    def __init__(self, name: str, *, each: str = "step") -> None:
        self.name, self._each = name, each  # what messages call one addition
        self._energies = Energies(name)
        self._within = np.zeros(len(_WITHIN), dtype=np.int64)
        self._count = 0
        self._signs: list[Signs] = []  # of steps, in order
        self._beside: list[tuple[str, Signs]] = []  # of what is no step
        self._lag_sums = np.zeros(_LAGS)
        self._lag_pairs = np.zeros(_LAGS)

    @property
    def observations(self) -> int:
        """How many numbers were seen."""
        return self._count

    @property
    def beside(self) -> int:
        """How many additions were no steps of the run."""
        return len(self._beside)

    def add(
        self, noise: Numbers, *, known: npt.NDArray[np.bool_] | None = None, step: str | None = None
    ) -> Signs:
        """Add coordinates of a step, in stated standard deviations; `known` says which are noise alone.

        `step` is what messages call something that is no step of the run; steps are counted from 1. The
        result are signs: 0 for coordinates that do not hold noise alone, or are not finite.
        """
        known = np.ones(len(noise), dtype=bool) if known is None else known
        pure = noise[known]
        self._energies.add(float(pure @ pure), len(pure), step=step or f"{self._each} {len(self._signs) + 1}")
        known = known & np.isfinite(noise)
        pure = noise[known]
        smallest = np.searchsorted(_WITHIN, np.abs(pure))  # of the intervals that a number is within
        self._within += np.cumsum(np.bincount(smallest, minlength=len(_WITHIN) + 1))[:-1]
        self._count += len(pure)
        signs = np.where(known, np.where(noise < 0, -1, 1), 0).astype(np.int8)
        kept = signs[:: max(1, len(signs) // _KEPT)][:_KEPT]
        if step is None:
            self._signs.append(kept)
        else:
            self._beside.append((step, kept))
        if len(self._signs) <= _ALL_STEPS or len(self._signs) % _EVERY == 0:
            self._add_lags(signs)
        return signs

    def _add_lags(self, signs: Signs) -> None:
        signs = signs[:_WIDE]
        most = min(len(signs) - 1, _LAGS)
        if most < 1:
            return
        for total, values in ((self._lag_sums, signs), (self._lag_pairs, signs != 0)):
            total[:most] += products_at_every_shift(values, values)[len(signs) :][:most]

    def findings(self) -> list[Finding]:
        """Return what each test says."""
        if not self._count:
            return self._energies.findings()
        found = [*self._energies.findings(), self._shape()]
        if len(self._signs) > 1:
            found.append(self._steps())
        if self._lag_pairs.any():
            found.append(self._places())
        return found

    def _shape(self) -> Finding:
        chances = 2 * ndtr(_WITHIN) - 1
        p = binom.sf(self._within - 1, self._count, chances)
        worst = int(np.argmin(p))
        share = self._within[worst] / self._count
        return Finding(
            p_value=min(1.0, len(p) * float(p[worst])),
            message=f"the noise in {self.name} is not Gaussian, or too small: {share:.1%} of it lies within "
            f"{_WITHIN[worst]:g} standard deviations, where {chances[worst]:.1%} should",
            observations=self._count,
        )

    def _steps(self) -> Finding:
        signs = np.stack(self._signs).astype(np.float32)  # [steps, coordinates]
        steps = len(signs)
        paired = [self._pairs_of(signs)] if steps + len(self._beside) <= _PAIRED else []
        p, what = min([*paired, *self._lags_of(signs)])
        looks = len(paired) + min(steps - 1, _NEAR)
        return Finding(
            p_value=min(1.0, looks * p),
            message=f"the noise in {self.name} is not fresh in each {self._each}: {what}",
            observations=int(np.count_nonzero(signs)),
        )

    def _pairs_of(self, signs: npt.NDArray[np.float32]) -> tuple[float, str]:
        names = [f"{self._each} {step + 1}" for step in range(len(signs))]
        names += [name for name, _ in self._beside]
        signs = np.concatenate([signs, *(kept[None].astype(np.float32) for _, kept in self._beside)])
        here = (signs != 0).astype(np.float32)
        first, second = np.triu_indices(len(signs), 1)
        sums, pairs = ((a @ a.T)[first, second] for a in (signs, here))
        p, at = least_p(sums, pairs)
        word = "alike" if sums[at] > 0 else "opposite"
        return p, f"{names[first[at]]} and {names[second[at]]} have {word} noise"

    def _lags_of(self, signs: npt.NDArray[np.float32]) -> list[tuple[float, str]]:
        found: list[tuple[float, str]] = []
        for lag in range(1, min(len(signs) - 1, _NEAR) + 1):
            products = signs[lag:] * signs[:-lag]
            total, pairs = float(products.sum()), float(np.count_nonzero(products))
            p = float(_p_of_signs(np.array([total]), np.array([pairs]))[0])
            how = "repeat" if total > 0 else "take back"
            found.append((p, f"{self._each}s {how} noise of {lag} {self._each}(s) before"))
        return found

    def _places(self) -> Finding:
        p, at = least_p(self._lag_sums, self._lag_pairs)
        return Finding(
            p_value=p,
            message=f"the noise in {self.name} is not drawn for each coordinate: coordinates {at + 1} apart "
            "are related",
            observations=self._count,
        )

    def compared(self, other: "NoiseLog") -> Finding | None:
        """Return whether two groups of coordinates share their noise, step by step."""
        total = pairs = 0.0
        for mine, others in zip(self._signs, other._signs, strict=False):
            length = min(len(mine), len(others))
            products = mine[:length].astype(np.int64) * others[:length]
            total, pairs = total + float(products.sum()), pairs + float(np.count_nonzero(products))
        if not pairs:
            return None
        return Finding(
            p_value=float(_p_of_signs(np.array([total]), np.array([pairs]))[0]),
            message=f"{self.name} and {other.name} share their noise",
            observations=int(pairs),
        )

    def sees(self, error: float) -> str:
        """Return how much too small noise may be before this log shows it, nine times in ten."""
        return self._energies.sees(error)

    def state_dict(self) -> dict[str, Any]:
        """Return all that was seen, as plain values and tensors, in few bytes: checkpoints hold it."""
        beside = [signs for _, signs in self._beside]
        lags = np.stack([self._lag_sums, self._lag_pairs]).astype(np.int64)  # whole numbers
        return {
            "energies": self._energies.state_dict(),
            "within": self._within.tolist(),
            "count": self._count,
            "signs": packed(self._signs),
            "beside": packed(beside),
            "names": [name for name, _ in self._beside],
            "width": max((len(signs) for signs in (*self._signs, *beside)), default=0),
            "lags": torch.from_numpy(lags[:, : len(np.trim_zeros(self._lag_pairs, "b"))]).clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._energies.load_state_dict(state["energies"])
        self._within = np.array(state["within"], dtype=np.int64)
        self._count = int(state["count"])
        width = int(state["width"])
        self._signs = unpacked(state["signs"], width)
        self._beside = list(zip(state["names"], unpacked(state["beside"], width), strict=True))
        self._lag_sums, self._lag_pairs = np.zeros((2, _LAGS))
        for total, kept in zip((self._lag_sums, self._lag_pairs), state["lags"].numpy(), strict=True):
            total[: len(kept)] = kept


class Energies:
    """Sums of squares of noisy coordinates, step by step; data may have been added to them ("Unknown")."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._count = self._size = 0  # of steps, and of coordinates in all of them
        self._sum = 0.0
        self._least: dict[int, tuple[float, str]] = {}  # by size: the smallest sum of a step, and which one
        self._broken: str | None = None  # the first step whose sum is no finite number

    def add(self, energy: float, size: int, *, step: str | None = None) -> None:
        """Add the sum of squares of `size` coordinates, in stated standard deviations.

        Of steps of one size that with the smallest sum has the smallest p-value, so no other need be kept.
        """
        self._count += 1
        if not size:
            return
        name = f"step {self._count}" if step is None else step
        if not math.isfinite(energy):
            self._broken = self._broken or name
            return
        self._sum, self._size = self._sum + energy, self._size + size
        if size not in self._least or energy < self._least[size][0]:
            self._least[size] = energy, name

    def findings(self) -> list[Finding]:
        """Return whether one step, or all together, had too little noise, or noise that is no number."""
        message = f"what was released in {self.name} is no finite number in {self._broken}"
        broken = [] if self._broken is None else [Finding(p_value=0.0, message=message, observations=1)]
        return [*broken, *self._too_little()]

    def _too_little(self) -> list[Finding]:
        if not self._size:
            return []
        sizes = list(self._least)
        p = chi2.cdf([self._least[size][0] for size in sizes], sizes)
        worst = int(np.argmin(p))
        energy, step = self._least[sizes[worst]]
        return [
            Finding(
                p_value=min(1.0, self._count * float(p[worst])),
                message=f"the noise in {self.name} is too small in {step}: its standard deviation is "
                f"{_ratio(energy, sizes[worst])} of the one stated",
                observations=self._size,
            ),
            Finding(
                p_value=float(chi2.cdf(self._sum, self._size)),
                message=f"the noise in {self.name} is too small over all steps: its standard deviation is "
                f"{_ratio(self._sum, self._size)} of the one stated",
                observations=self._size,
            ),
        ]

    def sees(self, error: float) -> str:
        """Return how much too small noise may be before this shows it, nine times in ten."""
        if not self._size:
            return "nothing"
        one = seen_in_one_step(round(self._size / self._count), error / self._count)
        return f"{one} in one step, or {seen_in_one_step(self._size, error)} in all"

    def state_dict(self) -> dict[str, Any]:
        """Return all that was seen."""
        least = [(size, energy, step) for size, (energy, step) in self._least.items()]
        own = {"count": self._count, "sum": self._sum, "size": self._size, "least": least}
        return {**own, "broken": self._broken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._count, self._size = int(state["count"]), int(state["size"])
        self._sum, self._broken = float(state["sum"]), state["broken"]
        self._least = {int(size): (float(energy), str(step)) for size, energy, step in state["least"]}


def packed(signs: Sequence[Signs]) -> torch.Tensor:
    """Return signs of equal length as two bits each: which are above 0, and which are below."""
    if not signs:
        return torch.zeros(2, 0, 0, dtype=torch.uint8)
    stacked = np.stack(signs)
    return torch.from_numpy(np.packbits(np.stack([stacked > 0, stacked < 0]), axis=2))


def unpacked(bits: torch.Tensor, width: int) -> list[Signs]:
    """Return the signs that `packed` returned as bits, each of the width given."""
    above, below = np.unpackbits(bits.numpy(), axis=2, count=width).astype(np.int8)
    return list(above - below)


def seen_in_one_step(size: int, error: float) -> str:
    """Return the standard deviation, in percent of the one stated, that is found too small 9 of 10 times.

    >>> seen_in_one_step(500, 1e-6)
    '82%'
    """
    if size < 1:
        return "0%"
    ratio = math.sqrt(float(chi2.ppf(error, size)) / float(chi2.ppf(_POWER, size)))
    return f"{100 * ratio:.2g}%" if ratio < 0.995 else f"{100 * ratio:.4g}%"


def _ratio(energy: float, size: int) -> str:
    return f"{math.sqrt(max(0.0, energy) / size):.3g}"


def least_p(sums: Sequence[float] | Any, pairs: Sequence[float] | Any) -> tuple[float, int]:
    """Return the smallest p-value of many sums of signs, times their number, and where it is."""
    sizes = np.asarray(pairs, dtype=np.float64)
    far = np.abs(np.asarray(sums, dtype=np.float64)) / np.sqrt(np.maximum(sizes, 1))
    nearest = np.argpartition(-far, min(_CANDIDATES, len(far)) - 1)[:_CANDIDATES]
    p = _p_of_signs(np.asarray(sums)[nearest], sizes[nearest])
    at = int(np.argmin(p))
    return min(1.0, int(np.count_nonzero(sizes)) * float(p[at])), int(nearest[at])


def _p_of_signs(sums: Numbers, pairs: Numbers) -> Numbers:
    """Return the chance that as many fair signs add up to a sum as far from 0."""
    heads = np.rint((np.abs(sums) + pairs) / 2)
    return np.minimum(1.0, 2 * binom.sf(heads - 1, pairs, 0.5))


def products_at_every_shift(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Numbers:
    """Return the sums of `first[i + shift] * second[i]`, of whole numbers of equal count, by shift.

    Shifts go from -(count - 1) to count - 1.

    >>> products_at_every_shift(np.array([1, 2, 3]), np.array([0, 1, 0]))
    array([0., 1., 2., 3., 0.])
    """
    reach = len(first) - 1
    length = 1 << (2 * reach + 1).bit_length()
    spectrum = np.fft.rfft(np.asarray(first, dtype=np.float64), length)
    other = spectrum if second is first else np.fft.rfft(np.asarray(second, dtype=np.float64), length)
    found = np.fft.irfft(spectrum * np.conj(other), length)
    return np.rint(np.concatenate([found[length - reach :], found[: reach + 1]])) + 0.0  # no zero is negative
