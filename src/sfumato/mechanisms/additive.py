# SPDX-License-Identifier: Apache-2.0
"""One number plus noise: Laplace, Gaussian, and their versions on the integers.

Guarantee  `release` adds noise of exactly the stated law, on a grid finer than any float64, and rounds the
           sum to float64 (after the noise, so rounding is post-processing). What that costs is `event()`.
Neighbors  `sensitivity` is the most one privacy unit can move the value under `relation`. The event carries
           the noise relative to one unit's contribution, sensitivity / relation.diameter.
Sampling   That half is no bound on a contribution where a unit is replaced: one that a sample leaves out may
           move the value by all of `sensitivity`. So under replacement the event must not be sampled.
Noise      Secure noise is OpenDP's, on the grid of 2^-1074: its privacy map is compared with the ideal loss,
           and the event is charged for whichever is larger. OpenDP cannot be seeded; a generator that is not
           secure draws from `mechanisms.arrays` or `mechanisms.exact` instead, and is for study only.
Edges      A value that is NaN or infinite cannot have the stated sensitivity: it is refused, unseen in the
           message, and nothing is released. Clamp before. Parameters that are NaN, infinite, zero or
           negative are refused, and noise of less than 1e-100 or more than 1e100 times the sensitivity.
Source     Dwork, McSherry, Nissim, Smith 2006 (Laplace); Balle and Wang 2018, Theorem 8 (Gaussian);
           Ghosh, Roughgarden, Sundararajan 2009 (discrete Laplace); Canonne, Kamath, Steinke 2020 (discrete
           Gaussian).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from sfumato import _check
from sfumato.accounting.events import DiscreteGaussianDpEvent, UnsampledDpEvent
from sfumato.accounting.gaussian import classic_stddev, stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import DpEvent
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import arrays, exact, inputs
from sfumato.mechanisms.random import Generator, resolve

__all__ = ["DiscreteGaussian", "DiscreteLaplace", "Gaussian", "Laplace"]

_SMALLEST = 1e-290  # noise below this would feel the grid of float64 itself
_RATIO = (1e-100, 1e100)  # of noise to sensitivity: beyond, a square of it could leave float64
_MAX_SENSITIVITY = 2**62  # of whole numbers: OpenDP counts in 64 bits
_ROUNDING = 1e-9  # a privacy map this close to the ideal loss differs from it by rounding alone


@dataclass(frozen=True, kw_only=True, slots=True)
class Laplace:
    """Laplace noise of a given scale.

    >>> Laplace.calibrated(epsilon=0.5, sensitivity=1.0, relation=Relation.ADD_REMOVE).event()
    LaplaceDpEvent(noise_multiplier=2.0)
    """

    scale: float
    sensitivity: float
    relation: Relation

    def __post_init__(self) -> None:
        _check_common(self, "scale")

    @classmethod
    def calibrated(cls, *, epsilon: float, sensitivity: float, relation: Relation) -> "Laplace":
        """Return the mechanism that costs `epsilon`: scale = sensitivity / epsilon, rounded up."""
        _check.positive(epsilon=epsilon, sensitivity=sensitivity)
        return cls(scale=_divide_up(sensitivity, epsilon), sensitivity=sensitivity, relation=relation)

    def release(self, value: float, *, generator: Generator | None = None) -> float:
        """Return the value with noise."""
        value = inputs.number(value)
        if resolve(generator).secure:
            return _opendp_laplace("f64", self.scale)(value)
        return value + float(arrays.laplace(1, scale=self.scale, generator=generator)[0])

    def event(self) -> DpEvent:
        """Return what one release costs."""
        ideal = self.sensitivity / self.scale
        loss = _charged(ideal, _opendp_laplace("f64", self.scale).map(self.sensitivity))
        return _of_relation(self.relation, dp.LaplaceDpEvent(self.relation.diameter / loss))


@dataclass(frozen=True, kw_only=True, slots=True)
class Gaussian:
    """Gaussian noise of a given standard deviation.

    >>> Gaussian(stddev=3.0, sensitivity=2.0, relation=Relation.REPLACE_ONE).event()
    UnsampledDpEvent(event=GaussianDpEvent(noise_multiplier=3.0))
    """

    stddev: float
    sensitivity: float
    relation: Relation

    def __post_init__(self) -> None:
        _check_common(self, "stddev")

    @classmethod
    def calibrated(
        cls, *, epsilon: float, delta: float, sensitivity: float, relation: Relation
    ) -> "Gaussian":
        """Return the mechanism with the least noise for (epsilon, delta): the analytic calibration."""
        stddev = stddev_for(epsilon, delta, sensitivity)
        return cls(stddev=stddev, sensitivity=sensitivity, relation=relation)

    @classmethod
    def classic(cls, *, epsilon: float, delta: float, sensitivity: float, relation: Relation) -> "Gaussian":
        """Return the textbook calibration, which needs more noise and is a theorem only for epsilon < 1."""
        stddev = classic_stddev(epsilon, delta, sensitivity)
        return cls(stddev=stddev, sensitivity=sensitivity, relation=relation)

    def release(self, value: float, *, generator: Generator | None = None) -> float:
        """Return the value with noise."""
        value = inputs.number(value)
        if resolve(generator).secure:
            return _opendp_gaussian("f64", self.stddev)(value)
        return value + float(arrays.gaussian(1, stddev=self.stddev, generator=generator)[0])

    def event(self) -> DpEvent:
        """Return what one release costs."""
        ideal = (self.sensitivity / self.stddev) ** 2 / 2  # zCDP: Bun and Steinke 2016, Proposition 1.6
        rho = _charged(ideal, _opendp_gaussian("f64", self.stddev).map(self.sensitivity))
        multiplier = self.stddev / self.sensitivity if rho == ideal else 1 / math.sqrt(2 * rho)
        return _of_relation(self.relation, dp.GaussianDpEvent(self.relation.diameter * multiplier))


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscreteLaplace:
    """Noise on the integers with probability proportional to exp(-|x| / scale): the geometric mechanism.

    >>> DiscreteLaplace(scale=2.0, sensitivity=1, relation=Relation.ADD_REMOVE).event()
    DiscreteLaplaceDpEvent(noise_parameter=0.5, sensitivity=1)
    """

    scale: float
    sensitivity: int
    relation: Relation

    def __post_init__(self) -> None:
        _check_whole(self.sensitivity)
        _check_common(self, "scale")
        _check.in_range(0, exact.MAX_SCALE, scale=self.scale)

    @classmethod
    def calibrated(cls, *, epsilon: float, sensitivity: int, relation: Relation) -> "DiscreteLaplace":
        """Return the mechanism that costs `epsilon`: scale = sensitivity / epsilon, rounded up."""
        _check.positive(epsilon=epsilon, sensitivity=sensitivity)
        return cls(scale=_divide_up(sensitivity, epsilon), sensitivity=sensitivity, relation=relation)

    def release(self, value: int, *, generator: Generator | None = None) -> int:
        """Return the whole number with noise."""
        value = inputs.whole_number(value)
        if resolve(generator).secure:
            return _opendp_laplace("i64", self.scale)(value)
        return value + int(exact.laplace_integers(1, scale=self.scale, generator=generator)[0])

    def event(self) -> DpEvent:
        """Return what one release costs. Under replacement an odd sensitivity is charged as the next even."""
        loss = _charged(
            self.sensitivity / self.scale, _opendp_laplace("i64", self.scale).map(int(self.sensitivity))
        )
        contribution = -(-self.sensitivity // self.relation.diameter)
        event = dp.DiscreteLaplaceDpEvent(loss / self.sensitivity, int(contribution))
        return _of_relation(self.relation, event)


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscreteGaussian:
    """Noise on the integers with probability proportional to exp(-x^2 / (2 stddev^2)).

    For tensors see `mechanisms.discrete.GridGaussian`.

    >>> DiscreteGaussian(stddev=3.0, sensitivity=1, relation=Relation.ADD_REMOVE).event()
    DiscreteGaussianDpEvent(stddev=3.0, sensitivity=1.0, dimension=1)
    """

    stddev: float
    sensitivity: int
    relation: Relation

    def __post_init__(self) -> None:
        _check_whole(self.sensitivity)
        _check_common(self, "stddev")
        _check.in_range(0, exact.MAX_SCALE, stddev=self.stddev)

    def release(self, value: int, *, generator: Generator | None = None) -> int:
        """Return the whole number with noise."""
        value = inputs.whole_number(value)
        if resolve(generator).secure:
            return _opendp_gaussian("i64", self.stddev)(value)
        return value + int(exact.gaussian_integers(1, stddev=self.stddev, generator=generator)[0])

    def event(self) -> DpEvent:
        """Return what one release costs. OpenDP draws this very law, so there is nothing to compare."""
        event = DiscreteGaussianDpEvent(self.stddev, self.sensitivity / self.relation.diameter, 1)
        return _of_relation(self.relation, event)


def _of_relation(relation: Relation, event: DpEvent) -> DpEvent:
    """Return the event, closed to sampling where its contribution bound is half of a replacement's reach."""
    return UnsampledDpEvent(event) if relation.replaces else event


def _check_common(mechanism: "Laplace | Gaussian | DiscreteLaplace | DiscreteGaussian", size: str) -> None:
    """Check and settle what all four have; `size` names the field that says how large the noise is."""
    _check.positive(**{size: getattr(mechanism, size)}, sensitivity=mechanism.sensitivity)
    inputs.check_relation(mechanism.relation)
    whole = isinstance(mechanism, DiscreteLaplace | DiscreteGaussian)
    inputs.settle(mechanism, *([size] if whole else [size, "sensitivity"]))
    noise: float = getattr(mechanism, size)
    if noise < _SMALLEST:
        raise InvalidParameterError(f"{size} must be at least {_SMALLEST:g}, but {noise!r} was given.")
    if not _RATIO[0] <= noise / mechanism.sensitivity <= _RATIO[1]:
        raise InvalidParameterError(
            f"{size} must be from {_RATIO[0]:g} to {_RATIO[1]:g} times the sensitivity, but {size}={noise!r} "
            f"and sensitivity={mechanism.sensitivity!r} were given."
        )


def _check_whole(sensitivity: int) -> None:
    _check.count(sensitivity=sensitivity)
    if sensitivity > _MAX_SENSITIVITY:
        raise InvalidParameterError(f"sensitivity must be at most 2^62, but {sensitivity!r} was given.")


def _divide_up(sensitivity: float, epsilon: float) -> float:
    numerator, denominator = (
        inputs.parameter("sensitivity", sensitivity),
        inputs.parameter("epsilon", epsilon),
    )
    quotient = numerator / denominator
    if not math.isfinite(quotient):
        raise InvalidParameterError(
            f"epsilon={epsilon!r} is too small for sensitivity={sensitivity!r}: the noise leaves float64."
        )
    exact_enough = Fraction(quotient) * Fraction(denominator) >= Fraction(numerator)
    return quotient if exact_enough else math.nextafter(quotient, math.inf)


def _charged(ideal: float, mapped: float) -> float:
    """Return the larger of the ideal privacy loss and the one that OpenDP proves, rounding aside."""
    return ideal if mapped <= ideal * (1 + _ROUNDING) else mapped


def _space(kind: str) -> tuple[Any, ...]:
    # Heavy to import, and its flag is process-wide: only when noise is wanted.
    from opendp import domains, measurements, metrics, mod

    mod.enable_features("contrib")
    domain = domains.atom_domain(T=kind, nan=False) if kind == "f64" else domains.atom_domain(T=kind)
    return measurements, domain, metrics.absolute_distance(T=kind)


@lru_cache(maxsize=64)
def _opendp_laplace(kind: str, scale: float) -> Any:
    make, domain, metric = _space(kind)
    return make.make_laplace(domain, metric, scale=float(scale))


@lru_cache(maxsize=64)
def _opendp_gaussian(kind: str, stddev: float) -> Any:
    make, domain, metric = _space(kind)
    return make.make_gaussian(domain, metric, scale=float(stddev))
