# SPDX-License-Identifier: Apache-2.0
"""Styles of clipping, as data: flat or per layer, fixed or adaptive, by norm or by coordinate.

A gradient of norm n is scaled to the threshold C in one of three ways:

- local: min(1, C / n), Abadi et al. 2016, arXiv:1607.00133
- global: C / Z if n <= Z, else 0, the same factor for all, Bu et al. 2021, arXiv:2106.07830
- automatic: C / (n + 0.01), always, Bu et al. 2023, arXiv:2206.07136

Guarantee  Per-layer thresholds C_g bound the whole contribution of a unit by sqrt(sum C_g^2). Coordinates
           that are clipped to [-c, c] bound it by c sqrt(number of parameters). An adaptive threshold follows
           a quantile of the norms. The share of units below it is released with noise of its own, which
           `event` states: Andrew et al. 2021, arXiv:1905.03871.
Edge cases No threshold is below 1e-12: squares of such norms vanish in float32, and a norm of zero is not
           clipped. A clip norm that many layers share, a factor of a schedule and a checkpoint that would
           give a smaller threshold are refused.
Not here   Clipping itself (`clipping`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn

from dp_accounting import dp_event as dp

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.errors import InvalidParameterError

__all__ = [
    "SMALLEST",
    "AdaptiveClip",
    "Clipping",
    "CoordinateClipping",
    "Scaling",
    "check_threshold",
    "one_clipping",
]

SMALLEST: Final = 1e-12  # a threshold: squares of smaller norms vanish in float32, and would not be clipped


class Scaling(Enum):
    """How a gradient is scaled to its threshold (see the module's docstring)."""

    LOCAL = "local"
    GLOBAL = "global"
    AUTOMATIC = "automatic"


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveClip:
    """Let the threshold follow a quantile of the norms, at a price of its own.

    Args:
        count_noise_multiplier: The noise of the count of units below the threshold, divided by the most that
            one unit moves this count.
        quantile: The share of units that should be below the threshold. It costs nothing.
        learning_rate: How fast the threshold moves. It costs nothing.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    count_noise_multiplier: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        _check.positive(count_noise_multiplier=self.count_noise_multiplier, learning_rate=self.learning_rate)
        _check.in_range(0, 1, quantile=self.quantile)

    def event(self) -> DpEvent:
        """Return what one release of the count costs.

        Returns:
            Its event, before sampling.
        """
        return dp.GaussianDpEvent(self.count_noise_multiplier)


class _Norms(dict[str, float]):
    """A copy of the norms, which cannot be changed: a claim is made for them."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("layer_norms cannot be changed. Make another Clipping(layer_norms=...).")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]  # all refuse alike
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]  # all refuse alike

    def __reduce__(self) -> tuple[type, tuple[dict[str, float]]]:
        return _Norms, (dict(self),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clipping:
    """Clip by norm.

    Args:
        clip_norm: The bound of a unit's whole gradient, whatever the style. Pass this or `layer_norms`.
        per_layer: Clip the parameters of each module on their own, to equal shares of `clip_norm`.
        layer_norms: Thresholds of single layers, by module path. They are copied.
        scaling: How a gradient is scaled to its threshold.
        drop_above: The norm above which global clipping drops a gradient; None for other scalings.
        adaptive: How thresholds follow the norms; None keeps them fixed.

    Raises:
        InvalidParameterError: If a threshold is below 1e-12, or arguments exclude each other.

    >>> Clipping(clip_norm=1.0).bound(["a.weight", "a.bias", "b.weight"])
    1.0
    """

    clip_norm: float | None = None
    per_layer: bool = False
    layer_norms: Mapping[str, float] | None = None
    scaling: Scaling = Scaling.LOCAL
    drop_above: float | None = None
    adaptive: AdaptiveClip | None = None

    def __post_init__(self) -> None:
        if (self.clip_norm is None) == (self.layer_norms is None):
            raise InvalidParameterError("pass either clip_norm or layer_norms, not both and not neither.")
        if self.clip_norm is not None:
            check_threshold(clip_norm=self.clip_norm)
        if self.layer_norms is not None:
            object.__setattr__(self, "layer_norms", _Norms(self.layer_norms))
        for layer, norm in (self.layer_norms or {}).items():
            check_threshold(**{f"layer_norms[{layer!r}]": norm})
        if (self.scaling is Scaling.GLOBAL) != (self.drop_above is not None):
            raise InvalidParameterError(
                "global clipping needs drop_above, the norm above which a gradient is dropped, and no other "
                f"scaling takes it; got scaling={self.scaling.value!r}, drop_above={self.drop_above!r}."
            )
        if self.drop_above is not None:
            check_threshold(drop_above=self.drop_above)

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """Return which parameters are clipped together.

        Args:
            names: The names of all trainable parameters.

        Returns:
            Groups of names.
        """
        if not self.per_layer and self.layer_norms is None:
            return [list(names)]
        layers: dict[str, list[str]] = {}
        for name in names:
            layers.setdefault(_layer(name), []).append(name)
        return list(layers.values())

    def thresholds(self, names: Sequence[str]) -> list[float]:
        """Return the threshold of each group, at the start.

        Args:
            names: The names of all trainable parameters.

        Returns:
            One threshold for each of `groups(names)`.

        Raises:
            InvalidParameterError: If `layer_norms` names other layers, or a share of `clip_norm` is too
                small.
        """
        groups = self.groups(names)
        if self.clip_norm is not None:
            shared = self.clip_norm / math.sqrt(len(groups)) if groups else self.clip_norm
            check_threshold(**{f"each layer's share of clip_norm={self.clip_norm:g}": shared})
            return [shared] * len(groups)
        norms = dict(self.layer_norms or {})
        layers = [_layer(group[0]) for group in groups]
        if set(layers) != set(norms):
            raise InvalidParameterError(
                f"layer_norms must name the layers {sorted(layers)}, but it names {sorted(norms)}."
            )
        return [norms[layer] for layer in layers]

    def bound(self, names: Sequence[str]) -> float:
        """Return the most one unit contributes, at the start.

        Args:
            names: The names of all trainable parameters.

        Returns:
            A bound in L2 norm.
        """
        return self.clip_norm if self.clip_norm is not None else math.hypot(*self.thresholds(names))

    def event(self, noisy_sum: DpEvent) -> DpEvent:
        """Return what one step costs.

        Args:
            noisy_sum: What the noisy sum alone costs.

        Returns:
            The event of the step, before sampling.
        """
        return noisy_sum if self.adaptive is None else dp.ComposedDpEvent([noisy_sum, self.adaptive.event()])


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinateClipping:
    """Clip each coordinate to [-coordinate_bound, coordinate_bound].

    The L2 bound grows with the number of parameters d, as coordinate_bound sqrt(d). Noise that is sized for
    coordinate_bound alone protects nobody.

    Args:
        coordinate_bound: The largest absolute value of a coordinate of one unit's gradient.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    coordinate_bound: float

    def __post_init__(self) -> None:
        _check.positive(coordinate_bound=self.coordinate_bound)

    def event(self, noisy_sum: DpEvent) -> DpEvent:
        """Return what one step costs.

        Args:
            noisy_sum: What the noisy sum alone costs.

        Returns:
            The event of the step, before sampling.
        """
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


def check_threshold(**thresholds: float) -> None:
    """Raise unless thresholds are large enough to clip at. The keyword names a threshold in the message."""
    _check.positive(**thresholds)
    for name, value in thresholds.items():
        if value < SMALLEST:
            raise InvalidParameterError(
                f"{name} must be at least {SMALLEST}, but {value!r} was given: squares of such norms vanish "
                "in float32. Multiply the loss and the threshold by the same factor."
            )


def _layer(name: str) -> str:
    return name.rpartition(".")[0]
