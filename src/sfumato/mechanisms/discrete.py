# SPDX-License-Identifier: Apache-2.0
"""Discrete noise in tensors, and the Gaussian mechanism on an integer grid, whose guarantee is exact.

In grid steps, with d coordinates, each rounded by at most 1/2:
- CONTRIBUTIONS rounded, then summed in integers: one unit contributes a vector of norm at most
  clip_norm + sqrt(d)/2, and a neighbor moves the sum by `diameter` times that.
- SUM rounded: the unrounded sum moves by diameter * clip_norm, and the two roundings (before and
  after) differ by at most 1/2 + 1/2 in each coordinate, sqrt(d) in norm, whatever the relation.
  The contribution bound of the event is therefore clip_norm + sqrt(d)/diameter.

The event of CONTRIBUTIONS bounds what each unit adds, so it may be sampled. The event of SUM under
replacement may not: a unit that a sample leaves out moves the sum by up to clip_norm + sqrt(d). A sum of rows
in float64 is itself rounded; rounding CONTRIBUTIONS avoids that and is the default.

Guarantee  `GridGaussian` clips each unit's row to `clip_norm`, rounds to a public grid, adds exact discrete
           Gaussian noise in integers, and multiplies back. No real-number theorem is stretched over
           floating-point noise: the law of the output is the stated one.
Neighbors  Add-or-remove and zero-out move the sum by one contribution, replacement by two.
Edge cases A row that is NaN or infinite counts as zero. A sum that is not finite is refused, without being
           shown, and so is one that was not added up in float64 or in integers. Integers of 2^53 and more are
           refused.
Source     Canonne, Kamath, Steinke 2020, arXiv:2004.00010; rounding as in Kairouz, Liu, Steinke 2021,
           arXiv:2102.06387, Section 4, with deterministic rounding.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from sfumato import _check
from sfumato.accounting.events import DiscreteGaussianDpEvent, UnsampledDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import DpEvent
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import exact, inputs
from sfumato.mechanisms.random import Generator

__all__ = ["GridGaussian", "Rounded", "discrete_gaussian", "discrete_laplace", "quantize"]

_LARGEST = 2.0**52  # whole numbers up to here are exact in float64, and a thousand of them fit 64 bits
_LARGEST_INTEGER = 2.0**53  # larger ones may change when they become float64
_STDDEV_STEPS = (2.0**-20, 2.0**40)
_CLIP_STEPS = (2.0**-20, 2.0**31)  # two billion units of that size still fit a 64-bit sum


def discrete_gaussian(
    shape: Sequence[int], *, stddev: float | Fraction, generator: Generator | None = None
) -> Tensor:
    """Return integers with probability exactly proportional to exp(-x^2 / (2 stddev^2)).

    A float is a fraction, and is taken as exactly that.

    Args:
        shape: The shape of the tensor.
        stddev: The parameter of the noise, about its standard deviation. A float is taken as exactly that
            fraction.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.

    Returns:
        The noise, as int64.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> discrete_gaussian((2, 2), stddev=3.0).dtype
    torch.int64
    """
    drawn = exact.gaussian_integers(math.prod(shape), stddev=stddev, generator=generator)
    return torch.from_numpy(drawn).view(tuple(shape))


def discrete_laplace(
    shape: Sequence[int], *, scale: float | Fraction, generator: Generator | None = None
) -> Tensor:
    """Return integers with probability exactly proportional to exp(-|x| / scale).

    Args:
        shape: The shape of the tensor.
        scale: The scale of the noise.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.

    Returns:
        The noise, as int64.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> discrete_laplace((3,), scale=0.5).shape
    torch.Size([3])
    """
    drawn = exact.laplace_integers(math.prod(shape), scale=scale, generator=generator)
    return torch.from_numpy(drawn).view(tuple(shape))


def quantize(tensor: Tensor, *, granularity: float) -> Tensor:
    """Round to the nearest multiple of a granularity, and return the multiples as integers.

    Args:
        tensor: The numbers.
        granularity: The grid step, a power of two.

    Returns:
        The multiples, as int64.

    Raises:
        InvalidParameterError: If the granularity is not a power of two, or a number is not finite or too
            large.

    >>> quantize(torch.tensor([0.3, -1.0]), granularity=0.25)
    tensor([ 1, -4])
    """
    _check_granularity(granularity)
    exact_values = _float64(tensor, "the tensor")
    steps = exact_values / granularity  # exact: only the exponent changes
    held = tensor.dtype.is_floating_point or bool((exact_values.abs() < _LARGEST_INTEGER).all())
    if not (held and bool((steps.abs() <= _LARGEST).all())):
        raise InvalidParameterError(
            f"a value is not finite, lies more than 2^52 steps of granularity={granularity!r} from zero, "
            "or is an integer that float64 does not hold. "
            "Clip it first, or use a coarser granularity; nothing was released."
        )
    return steps.round().to(torch.int64)


class Rounded(enum.Enum):
    """What is rounded to the grid.

    Attributes:
        CONTRIBUTIONS: Each contribution is rounded, and the sum is exact. This is the default.
        SUM: The finished sum is rounded.
    """

    CONTRIBUTIONS = "contributions"
    SUM = "sum"


@dataclass(frozen=True, kw_only=True, slots=True)
class GridGaussian:
    """The sum of clipped vectors with exact discrete Gaussian noise on a grid.

    Args:
        clip_norm: The largest L2 norm of one unit's vector. Longer vectors are clipped to it.
        granularity: The grid step, a power of two.
        stddev: The parameter of the noise, about its standard deviation, in the unit of the vectors.
        dimension: How many coordinates a vector has.
        relation: Which data sets are neighbors.
        rounded: What is rounded to the grid: each contribution or the sum.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> mechanism = GridGaussian(clip_norm=1.0, granularity=2.0**-10, stddev=4.0, dimension=4,
    ...                          relation=Relation.ADD_REMOVE)
    >>> mechanism.event()
    DiscreteGaussianDpEvent(stddev=4096.0, sensitivity=1025.0..., dimension=4)
    """

    clip_norm: float
    granularity: float
    stddev: float
    dimension: int
    relation: Relation
    rounded: Rounded = Rounded.CONTRIBUTIONS

    def __post_init__(self) -> None:
        _check.positive(clip_norm=self.clip_norm, stddev=self.stddev)
        _check.count(dimension=self.dimension)
        _check_granularity(self.granularity)
        inputs.check_relation(self.relation)
        if not isinstance(self.rounded, Rounded):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise InvalidParameterError(f"rounded must be a Rounded, but {self.rounded!r} was given.")
        inputs.settle(self, "clip_norm", "granularity", "stddev")
        _check_steps("stddev", self.stddev_steps, _STDDEV_STEPS)
        _check_steps("clip_norm", self.sensitivity_steps, _CLIP_STEPS)

    @property
    def stddev_steps(self) -> float:
        """Return the noise in grid steps (exact: the granularity is a power of two)."""
        return self.stddev / self.granularity

    @property
    def sensitivity_steps(self) -> float:
        """Return the L2 bound on one unit's contribution in grid steps, rounding included."""
        share = 2 if self.rounded is Rounded.CONTRIBUTIONS else self.relation.diameter
        # Clipping relies on a norm of d numbers computed in float64, to a relative d / 2^53 at worst.
        slack = 1 + (self.dimension + 16) * 2.0**-52
        return (self.clip_norm / self.granularity + math.sqrt(self.dimension) / share) * slack

    def event(self) -> DpEvent:
        """Return the event of one release, which accountants price.

        Returns:
            The event.
        """
        event = DiscreteGaussianDpEvent(self.stddev_steps, self.sensitivity_steps, self.dimension)
        halved = self.rounded is Rounded.SUM and self.relation.replaces
        return UnsampledDpEvent(event) if halved else event

    def release(self, contributions: Tensor, *, generator: Generator | None = None) -> Tensor:
        """Clip the rows, sum them, and release the sum with noise.

        Args:
            contributions: A [units, dimension] tensor, one row for each privacy unit.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The sum with noise, as float64.

        Raises:
            InvalidParameterError: If the tensor has another shape or type, or `rounded` is SUM.
        """
        rows = _float64(contributions, "contributions")
        if rows.ndim != 2 or rows.shape[1] != self.dimension:
            raise InvalidParameterError(
                f"contributions must have shape [units, {self.dimension}], one row for each privacy unit."
            )
        rows = self._clipped(rows)
        if self.rounded is Rounded.SUM:
            return self.release_sum(rows.sum(0), generator=generator)
        return self._noised(quantize(rows, granularity=self.granularity).sum(0), generator)

    def release_sum(self, total: Tensor, *, generator: Generator | None = None) -> Tensor:
        """Release a sum that was clipped elsewhere, with noise; `rounded` must be SUM.

        The sum must have been added up in float64 or in integers. Floating-point addition rounds, and one
        unit can change every rounding after it: in float32 by more than `clip_norm`, so other types are
        refused. In float64 the same happens on a scale of 2^-53 of the largest partial sum for each addition,
        which the event does not cover. Round CONTRIBUTIONS if the guarantee must be exact.

        Args:
            total: The sum, a vector of `dimension` coordinates.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The sum with noise, as float64.

        Raises:
            InvalidParameterError: If the sum has another shape or type or is not finite, or `rounded` is not
                SUM.
        """
        if self.rounded is not Rounded.SUM:
            raise InvalidParameterError(
                "this mechanism is charged for rounded contributions, not for a rounded sum. "
                "Make it with rounded=Rounded.SUM, or call release with the contributions."
            )
        _check_exact_sum(total)
        if total.shape != (self.dimension,):
            raise InvalidParameterError(f"the sum must have shape [{self.dimension}].")
        return self._noised(quantize(total, granularity=self.granularity), generator)

    def _clipped(self, rows: Tensor) -> Tensor:
        rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)
        largest = rows.abs().amax(1, keepdim=True).clamp(min=1e-300)
        norms = (rows / largest).norm(dim=1, keepdim=True) * largest  # scaled first: squares may overflow
        return rows * (self.clip_norm / norms.clamp(min=1e-300)).clamp(max=1.0)

    def _noised(self, total: Tensor, generator: Generator | None) -> Tensor:
        noise = discrete_gaussian((self.dimension,), stddev=self.stddev_steps, generator=generator)
        return (total + noise).to(torch.float64) * self.granularity


def _float64(tensor: Tensor, what: str) -> Tensor:
    """Return a real tensor in float64, which holds all smaller floating types and most integers exactly."""
    if not isinstance(tensor, Tensor) or tensor.dtype.is_complex:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(f"{what} must be a torch tensor of real numbers; nothing was released.")
    return tensor.detach().to("cpu", torch.float64)


def _check_exact_sum(total: Tensor) -> None:
    real = isinstance(total, Tensor) and not total.dtype.is_complex and total.dtype is not torch.bool  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
    if not real or (total.dtype.is_floating_point and total.dtype is not torch.float64):
        raise InvalidParameterError(
            "the sum must be a tensor of float64 or of integers: additions in a smaller type round so much "
            "that one unit can move the sum by more than clip_norm. Add up in float64, or call release with "
            "the contributions; nothing was released."
        )


def _check_granularity(granularity: float) -> None:
    _check.positive(granularity=granularity)
    if math.frexp(granularity)[0] != 0.5:
        raise InvalidParameterError(
            f"granularity must be a power of two, so that rounding to it is exact, but {granularity!r} was "
            f"given. Use {2.0 ** round(math.log2(granularity))!r}."
        )


def _check_steps(name: str, steps: float, allowed: tuple[float, float]) -> None:
    if not allowed[0] <= steps <= allowed[1]:
        raise InvalidParameterError(
            f"{name} is {steps:.3g} steps of the granularity, which must be from {allowed[0]:.3g} to "
            f"{allowed[1]:.3g}. Choose a finer or coarser granularity."
        )
