# SPDX-License-Identifier: Apache-2.0
"""Clip the gradients of a batch, and add them up.

Guarantee  Whatever a unit's gradient is (zero, huge, infinite, NaN), its contribution to the clipped sum has
           an L2 norm of at most `Clipper.bound`, up to floating-point rounding. A unit whose gradient is not
           finite contributes nothing (clipped by coordinate: nothing if it is NaN, and no more than the
           bound where it is infinite), and does not reach any other unit's contribution.
Neighbors  `bound` is the norm of ONE unit's contribution. Under replace-one neighbors the sum moves by up to
           twice as much; accountants take that into account (`accounting.events`, Scale).
Edge cases The count of units below an adaptive threshold must not contain padding: a unit that takes the
           place of padding would move it twice as far. A threshold that adapts stops at 1e-12.
Not here   The styles of clipping (`clipping_styles`), noise (`noise`), and where gradients come from
           (`training.engine`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import tensors
from sfumato.mechanisms.random import Generator
from sfumato.training.privacy.clipping_styles import (
    SMALLEST,
    AdaptiveClip,
    Clipping,
    CoordinateClipping,
    Scaling,
    check_threshold,
    one_clipping,
)
from sfumato.training.privacy.gradient_pass import GradientPass

__all__ = [
    "AdaptiveClip",
    "ClippedSums",
    "Clipper",
    "Clipping",
    "CoordinateClipping",
    "Scaling",
    "one_clipping",
]

# In bfloat16 a weight and its product are rounded by up to 2^-8 each: weights are lowered so that no
# contribution is rounded above the bound.
_COARSE = 1 - 2**-7
_STABILITY = 0.01  # of automatic clipping: the constant its paper uses throughout


@dataclass(frozen=True, slots=True)
class ClippedSums:
    """The clipped sums of some units; if thresholds adapt, also how many units are below them.

    Sums that are `waiting` are in no `sums` yet: they are computed for some parameters at a time.
    """

    sums: dict[str, Tensor]
    below: Tensor | None = None  # [groups]: +1/2 for each unit at or below the threshold, -1/2 for each above
    waiting: tuple[Callable[[Sequence[str]], dict[str, Tensor]], ...] = ()

    def __add__(self, other: "ClippedSums") -> "ClippedSums":
        """Add the sums of other units."""
        sums = dict(self.sums)
        for name, more in other.sums.items():
            sums[name] = sums[name] + more if name in sums else more
        waiting = (*self.waiting, *other.waiting)
        if self.below is None or other.below is None:
            return ClippedSums(sums, other.below if self.below is None else self.below, waiting)
        return ClippedSums(sums, self.below + other.below.to(self.below.device), waiting)

    def without(self, units: float) -> "ClippedSums":
        """Take units back from the count whose gradient is zero because they are padding."""
        return self if self.below is None else replace(self, below=self.below - 0.5 * units)


class Clipper:
    """Applies a style of clipping to the parameters of one model. It holds the thresholds that adapt."""

    def __init__(self, clipping: Clipping | CoordinateClipping, parameters: Mapping[str, Tensor]) -> None:
        self.clipping = clipping
        self._names = list(parameters)
        self._half = any(p.dtype in (torch.bfloat16, torch.float16) for p in parameters.values())
        self._dimension = sum(p.numel() for p in parameters.values())
        norms = isinstance(clipping, Clipping)
        self.groups = clipping.groups(self._names) if norms else [self._names]
        self.thresholds = clipping.thresholds(self._names) if norms else []
        self._thresholds: Tensor | None = None  # the same on the device, once needed
        self.factor = 1.0  # of a schedule, by which the stated thresholds were multiplied

    @property
    def bound(self) -> float:
        """The most one unit contributes to the sum now, in L2 norm."""
        if isinstance(self.clipping, CoordinateClipping):
            return self.clipping.coordinate_bound * math.sqrt(self._dimension)
        if self.clipping.adaptive is None:
            return self.clipping.bound(self._names) * self.factor
        return math.hypot(*self.thresholds)

    @property
    def adaptive(self) -> AdaptiveClip | None:
        """How the thresholds move; None if they are fixed."""
        return self.clipping.adaptive if isinstance(self.clipping, Clipping) else None

    def sums(self, run: GradientPass) -> ClippedSums | Tensor:
        """Clip each unit of a pass and add up.

        If some unit's gradient is not finite, return instead which units' are, [units] of bool: 0 times NaN
        is NaN, so the others must be run again without it.
        """
        if isinstance(self.clipping, CoordinateClipping):
            return self._coordinate_sums(run, self.clipping.coordinate_bound)
        squared = run.squared_norms(self.groups)  # [groups, units]
        if not math.isfinite(float(squared.sum())):  # one look is enough, most of the time
            finite = squared.isfinite().all(0)
            if not bool(finite.all()):
                return finite
        return self.weighed(run, squared)

    def weighed(self, run: GradientPass, squared_norms: Tensor) -> ClippedSums:
        """Clip and add up the units of a pass whose norms are known to be finite."""
        norms = squared_norms.sqrt()
        thresholds = self._column(norms)
        weights = self._weights(norms, thresholds)
        if self._rounds_coarsely(norms.device.type):
            weights = weights * _COARSE
        sums = run.weighted_sums(self.groups, weights, last=True)
        return ClippedSums(sums, self._below(norms, thresholds))

    def _rounds_coarsely(self, device: str) -> bool:
        return self._half or torch.is_autocast_enabled(device)

    def _column(self, norms: Tensor) -> Tensor:
        """Return the thresholds as [groups, 1], beside the norms. The tensor stays the same one."""
        if self._thresholds is None or self._thresholds.device != norms.device:
            self._thresholds = torch.tensor(self.thresholds, dtype=norms.dtype, device=norms.device)[:, None]
        return self._thresholds

    def scaled(self, factor: float) -> list[float]:
        """Return the stated thresholds times the factor of a schedule; refuse one that is too small to clip.

        Adaptive thresholds and coordinates have no schedule.
        """
        _check.positive(factor=factor)
        if not isinstance(self.clipping, Clipping) or self.clipping.adaptive is not None:
            raise InvalidParameterError(
                "a schedule scales a fixed clip norm, but the clipping is by coordinate or adapts itself. "
                "Use Clipping(clip_norm=...) without adaptive, or leave the schedule out."
            )
        found = [threshold * factor for threshold in self.clipping.thresholds(self._names)]
        for threshold in found:
            check_threshold(**{f"a clip threshold times the factor {factor:g} of a schedule": threshold})
        return found

    def scale(self, factor: float) -> None:
        """Clip at the stated thresholds times a factor from now on."""
        self._set(self.scaled(factor))
        self.factor = factor

    def _set(self, thresholds: Iterable[float]) -> None:
        found = list(thresholds)
        for threshold in found:
            check_threshold(**{"a clip threshold": threshold})
        self.thresholds = found
        if self._thresholds is not None:
            self._thresholds.copy_(torch.tensor(self.thresholds, dtype=self._thresholds.dtype)[:, None])

    def _below(self, norms: Tensor, thresholds: Tensor) -> Tensor | None:
        if self.adaptive is None:
            return None
        return (norms <= thresholds).to(norms.dtype).sub_(0.5).sum(1)

    def _weights(self, norms: Tensor, thresholds: Tensor) -> Tensor:
        assert isinstance(self.clipping, Clipping)
        if self.clipping.scaling is Scaling.LOCAL:
            return (thresholds / norms).clamp_(max=1.0)  # a zero gradient divides to inf, and clamps to 1
        if self.clipping.scaling is Scaling.AUTOMATIC:
            return thresholds / (norms + _STABILITY)
        limit = self.clipping.drop_above
        assert limit is not None  # global clipping has one
        return torch.where(norms <= limit, thresholds / limit, torch.zeros_like(norms))

    def _coordinate_sums(self, run: GradientPass, bound: float) -> ClippedSums:
        sums = {
            name: _precise(run.per_unit(name)).nan_to_num(0.0, bound, -bound).clamp(-bound, bound).sum(0)
            for name in self._names
        }
        return ClippedSums(sums)

    def adapt(
        self,
        below: Tensor,
        *,
        expected_batch_size: float,
        generator: Generator | None,
        sensitivity: float = 1.0,
    ) -> None:
        """Move the thresholds by a noisy count of the units below them; does nothing if they are fixed.

        One contribution moves each group's count by 1/2, so all of them by sqrt(groups) / 2. `sensitivity` is
        how often one unit does so: twice if it takes a clipped average from one side to the other.
        """
        adaptive = self.adaptive
        if adaptive is None:
            return
        moved = sensitivity * math.sqrt(len(self.groups)) / 2
        noisy = below.detach().to("cpu", torch.float64).clone()
        tensors.add_gaussian_(noisy, stddev=adaptive.count_noise_multiplier * moved, generator=generator)
        # Shares lie in [0, 1]; noise beyond that would only move the threshold wildly.
        shares = (min(max(count / expected_batch_size + 0.5, 0.0), 1.0) for count in noisy.tolist())
        self._set(
            max(threshold * math.exp(-adaptive.learning_rate * (share - adaptive.quantile)), SMALLEST)
            for threshold, share in zip(self.thresholds, shares, strict=True)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"thresholds": list(self.thresholds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the thresholds of a checkpoint."""
        self._set(float(t) for t in state["thresholds"])


def _precise(x: Tensor) -> Tensor:
    """Return `x` in float32 at least: in 16 bits bounds are rounded, and sums over a batch by far more."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
