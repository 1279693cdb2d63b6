# SPDX-License-Identifier: Apache-2.0
"""Clipping: how much one unit may move the sum of gradients.

Guarantee  Whatever a unit's gradient is (zero, huge, infinite, NaN), its contribution to the clipped sum has
           an L2 norm of at most `Clipper.bound`, up to floating-point rounding. A unit whose gradient is not
           finite contributes nothing (clipped by coordinate: nothing where it is NaN, and no more than the
           bound where it is infinite), and reaches no other unit's contribution.
Neighbors  `bound` is the norm of ONE unit's contribution. Under replace-one neighbors the sum moves by up to
           twice as much; accountants know (`accounting.events`, Scale).
Styles     flat or per layer, fixed or adaptive, and how a gradient of norm n is scaled to the threshold C:
           local      min(1, C / n): Abadi et al. 2016, arXiv:1607.00133
           global     C / Z if n <= Z, else 0, the same factor for all: Bu et al. 2021, arXiv:2106.07830
           automatic  C / (n + 0.01), always: Bu et al. 2023, arXiv:2206.07136
           or each coordinate on its own, to [-c, c], for which the bound is c sqrt(number of parameters).
Adaptive   The threshold follows a quantile of the norms. The share of units below it is released with noise
           of its own, which `event` states: Andrew et al. 2021, arXiv:1905.03871. Padding is nobody, so it
           must not be in the count: a unit that takes its place would move it twice as far.
Layers     Per-layer thresholds C_g bound the whole contribution by sqrt(sum C_g^2).
Edge cases No threshold is below 1e-12: squares of such norms vanish in float32, and what has a norm of zero
           is not clipped. A clip norm that many layers share, a factor of a schedule and a checkpoint that
           would take one below are refused; a threshold that adapts stops there.
Not here   Noise (`noise`), and where gradients come from (`book_keeping`, `functional`, `projections`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NoReturn

import torch
from dp_accounting import dp_event as dp
from torch import Tensor

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import tensors
from sfumato.mechanisms.random import Generator
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

# In bfloat16 a weight and its product are rounded by up to 2^-9 each: weights are lowered so that no
# contribution is rounded above the bound.
_COARSE = 1 - 2**-7
_STABILITY = 0.01  # of automatic clipping: the constant its paper uses throughout
_SMALLEST = 1e-12  # a threshold: squares of much smaller norms vanish in float32, and would not be clipped


class Scaling(Enum):
    """How a gradient is scaled to its threshold."""

    LOCAL = "local"
    GLOBAL = "global"
    AUTOMATIC = "automatic"


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveClip:
    """Let the threshold follow a quantile of the norms, at a price of its own.

    The count of units below the threshold gets Gaussian noise of `count_noise_multiplier` times the most that
    one unit moves it. `quantile` and `learning_rate` cost nothing.
    """

    count_noise_multiplier: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        _check.positive(count_noise_multiplier=self.count_noise_multiplier, learning_rate=self.learning_rate)
        _check.in_range(0, 1, quantile=self.quantile)

    def event(self) -> DpEvent:
        """Return what one release of the count costs, before sampling."""
        return dp.GaussianDpEvent(self.count_noise_multiplier)


class _Norms(dict[str, float]):
    """A copy of the norms given, which cannot be changed: a claim was or will be made for them."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("layer_norms cannot be changed. Make another Clipping(layer_norms=...).")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]  # all refuse alike
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]  # all refuse alike

    def __reduce__(self) -> tuple[type, tuple[dict[str, float]]]:
        return _Norms, (dict(self),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clipping:
    """Clip by norm. `clip_norm` bounds the whole gradient of a unit, whatever the style.

    `per_layer` clips the parameters of each module on their own, to equal shares of `clip_norm`, or as
    `layer_norms` says (module path to threshold; `clip_norm` is then left out). `drop_above` is the Z of
    global clipping.

    >>> Clipping(clip_norm=1.0).bound(["a.weight", "a.bias", "b.weight"])
    1.0
    """

    clip_norm: float | None = None
    per_layer: bool = False
    layer_norms: Mapping[str, float] | None = None  # copied: later changes to what was given do not count
    scaling: Scaling = Scaling.LOCAL
    drop_above: float | None = None
    adaptive: AdaptiveClip | None = None

    def __post_init__(self) -> None:
        if (self.clip_norm is None) == (self.layer_norms is None):
            raise InvalidParameterError("give either clip_norm or layer_norms, and not both.")
        if self.clip_norm is not None:
            _check_threshold(clip_norm=self.clip_norm)
        if self.layer_norms is not None:
            object.__setattr__(self, "layer_norms", _Norms(self.layer_norms))
        for layer, norm in (self.layer_norms or {}).items():
            _check_threshold(**{f"layer_norms[{layer!r}]": norm})
        if (self.scaling is Scaling.GLOBAL) != (self.drop_above is not None):
            raise InvalidParameterError(
                "global clipping needs drop_above, the norm above which a gradient is dropped, and no other "
                f"scaling takes it; got scaling={self.scaling.value!r}, drop_above={self.drop_above!r}."
            )
        if self.drop_above is not None:
            _check_threshold(drop_above=self.drop_above)

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """Return which parameters are clipped together."""
        if not self.per_layer and self.layer_norms is None:
            return [list(names)]
        layers: dict[str, list[str]] = {}
        for name in names:
            layers.setdefault(_layer(name), []).append(name)
        return list(layers.values())

    def thresholds(self, names: Sequence[str]) -> list[float]:
        """Return the threshold of each group, at the start."""
        groups = self.groups(names)
        if self.clip_norm is not None:
            shared = self.clip_norm / math.sqrt(len(groups)) if groups else self.clip_norm
            _check_threshold(**{f"each layer's share of clip_norm={self.clip_norm:g}": shared})
            return [shared] * len(groups)
        norms = dict(self.layer_norms or {})
        layers = [_layer(group[0]) for group in groups]
        if set(layers) != set(norms):
            raise InvalidParameterError(
                f"layer_norms must name the layers {sorted(layers)}, but it names {sorted(norms)}."
            )
        return [norms[layer] for layer in layers]

    def bound(self, names: Sequence[str]) -> float:
        """Return the most one unit contributes in L2 norm, at the start."""
        return self.clip_norm if self.clip_norm is not None else math.hypot(*self.thresholds(names))

    def event(self, noisy_sum: DpEvent) -> DpEvent:
        """Return what one step costs, before sampling, whose noisy sum alone costs `noisy_sum`."""
        return noisy_sum if self.adaptive is None else dp.ComposedDpEvent([noisy_sum, self.adaptive.event()])


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinateClipping:
    """Clip each coordinate to [-coordinate_bound, coordinate_bound].

    The L2 bound grows with the number of parameters d, as coordinate_bound sqrt(d): noise that is sized for
    coordinate_bound alone protects nobody.
    """

    coordinate_bound: float

    def __post_init__(self) -> None:
        _check.positive(coordinate_bound=self.coordinate_bound)

    def event(self, noisy_sum: DpEvent) -> DpEvent:
        """Return what one step costs, before sampling, whose noisy sum alone costs `noisy_sum`."""
        return noisy_sum


def one_clipping(
    clip_norm: float | None, clipping: Clipping | CoordinateClipping | None
) -> Clipping | CoordinateClipping:
    """Return the clipping that exactly one of two arguments states.

    >>> one_clipping(2.0, None).clip_norm
    2.0
    """
    if (clip_norm is None) == (clipping is None):
        raise InvalidParameterError("pass either clip_norm or clipping, not both and not neither.")
    return Clipping(clip_norm=clip_norm) if clipping is None else clipping


def _check_threshold(**thresholds: float) -> None:
    _check.positive(**thresholds)
    for name, value in thresholds.items():
        if value < _SMALLEST:
            raise InvalidParameterError(
                f"{name} must be at least {_SMALLEST}, but {value!r} was given: squares of such norms vanish "
                "in float32. Multiply the loss and the threshold by the same factor."
            )


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class ClippedSums:
    """The clipped sums of some units; where thresholds adapt, also how many units are below them."""

    sums: dict[str, Tensor]
    below: Tensor | None = None  # [groups]: +1/2 for each unit at or below the threshold, -1/2 for each above

    def without(self, units: float) -> "ClippedSums":
        """Take units back from the count whose gradient is zero because they are padding."""
        return self if self.below is None else replace(self, below=self.below - 0.5 * units)


class Clipper:
    """A style of clipping at work on the parameters of one model; it holds the thresholds that adapt."""

    def __init__(self, clipping: Clipping | CoordinateClipping, parameters: Mapping[str, Tensor]) -> None:
        self.clipping = clipping
        self._names = list(parameters)
        self._half = any(p.dtype in (torch.bfloat16, torch.float16) for p in parameters.values())
        self._dimension = sum(p.numel() for p in parameters.values())
        norms = isinstance(clipping, Clipping)
        self.groups = clipping.groups(self._names) if norms else [self._names]
        self.thresholds = clipping.thresholds(self._names) if norms else []
        self._thresholds: Tensor | None = None  # the same on the device, once needed

    @property
    def bound(self) -> float:
        """The most one unit contributes to the sum now, in L2 norm."""
        if isinstance(self.clipping, CoordinateClipping):
            return self.clipping.coordinate_bound * math.sqrt(self._dimension)
        if self.clipping.adaptive is None and self.clipping.clip_norm is not None:
            return self.clipping.clip_norm
        return math.hypot(*self.thresholds)

    @property
    def adaptive(self) -> AdaptiveClip | None:
        """How the thresholds move; None if they are fixed."""
        return self.clipping.adaptive if isinstance(self.clipping, Clipping) else None

    def sums(self, run: GradientPass) -> ClippedSums | Tensor:
        """Clip each unit of a pass and add up.

        Where some unit's gradient is not finite, return instead which units' are, [units] of bool: 0 times
        NaN is NaN, so the others must be run again without it.
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
        """Return the thresholds stated, times the factor of a schedule; refuse where one cannot clip.

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
            _check_threshold(**{f"a clip threshold times the factor {factor:g} of a schedule": threshold})
        return found

    def _set(self, thresholds: Iterable[float]) -> None:
        found = list(thresholds)
        for threshold in found:
            _check_threshold(**{"a clip threshold": threshold})
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
            name: run.per_unit(name).nan_to_num(0.0, bound, -bound).clamp(-bound, bound).sum(0)
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

        What is clipped moves each group's count by 1/2, so all of them by sqrt(groups) / 2. `sensitivity`
        says how often one unit does so: twice where it takes a clipped average from one side to the other.
        """
        adaptive = self.adaptive
        if adaptive is None:
            return
        moved = sensitivity * math.sqrt(len(self.groups)) / 2
        noisy = below.detach().to("cpu", torch.float64).clone()
        tensors.add_gaussian_(noisy, stddev=adaptive.count_noise_multiplier * moved, generator=generator)
        # A share of 0 or 1 already says all; noise beyond it would only move the threshold wildly.
        shares = (min(max(count / expected_batch_size + 0.5, 0.0), 1.0) for count in noisy.tolist())
        self._set(
            max(threshold * math.exp(-adaptive.learning_rate * (share - adaptive.quantile)), _SMALLEST)
            for threshold, share in zip(self.thresholds, shares, strict=True)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"thresholds": list(self.thresholds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the thresholds of a checkpoint."""
        self._set(float(t) for t in state["thresholds"])
