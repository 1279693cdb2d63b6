# SPDX-License-Identifier: Apache-2.0
"""One number plus noise: Laplace, Gaussian, and their versions on the integers.

Under replacement, the bound of one contribution in the event is half of `sensitivity`. It is not a bound on
what a sampled unit adds: a unit that a sample leaves out may move the value by all of `sensitivity`. So the
event must not be sampled there.

Secure noise is drawn by OpenDP, on the grid of 2^-1074. Its privacy map is compared with the ideal loss, and
the event is charged for the larger of the two. OpenDP cannot be seeded: a generator that is not secure draws
from `mechanisms.tensors` or `mechanisms.exact` instead, and is for study only.

Guarantee  `release` adds noise of exactly the stated law, on a grid finer than any float64, and rounds the
           sum to float64 (after the noise, so rounding is post-processing). What that costs is `event()`.
Neighbors  `sensitivity` is the most one privacy unit can move the value under `relation`. The event carries
           the noise relative to one unit's contribution, sensitivity / relation.diameter.
Edge cases A value that is NaN or infinite cannot have the stated sensitivity. It is refused, without being
           shown in the message, and nothing is released: clamp it before. Parameters that are NaN, infinite,
           zero or negative are refused, and noise of less than 1e-100 or more than 1e100 times the
           sensitivity.
Source     Dwork, McSherry, Nissim, Smith 2006 (Laplace); Balle and Wang 2018, Theorem 8 (Gaussian);
           Ghosh, Roughgarden, Sundararajan 2009 (discrete Laplace); Canonne, Kamath, Steinke 2020 (discrete
           Gaussian).
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from sfumato import _check
from sfumato.accounting.events import DiscreteGaussianDpEvent, UnsampledDpEvent
from sfumato.accounting.gaussian import classic_stddev, stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import DpEvent
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import arrays, exact, inputs, opendp_noise
from sfumato.mechanisms.random import Generator, resolve

__all__ = ["DiscreteGaussian", "DiscreteLaplace", "Gaussian", "Laplace"]

_SMALLEST = 1e-290  # noise below this would feel the grid of float64 itself
_RATIO = (1e-100, 1e100)  # of noise to sensitivity: beyond, a square of it could leave float64
_MAX_SENSITIVITY = 2**62  # of whole numbers: OpenDP counts in 64 bits


@dataclass(frozen=True, kw_only=True, slots=True)
class Laplace:
    """The Laplace mechanism: one number plus Laplace noise.

    Args:
        scale: The scale of the noise.
        sensitivity: The most that one privacy unit can move the value under `relation`.
        relation: Which data sets are neighbors.

    Raises:
        InvalidParameterError: If a parameter is out of range.

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
        """Return the mechanism that costs a given epsilon: its scale is sensitivity / epsilon, rounded up.

        Args:
            epsilon: The privacy budget of one release.
            sensitivity: The most that one privacy unit can move the value under `relation`.
            relation: Which data sets are neighbors.

        Returns:
            The mechanism.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        _check.positive(epsilon=epsilon, sensitivity=sensitivity)
        return cls(scale=_divide_up(sensitivity, epsilon), sensitivity=sensitivity, relation=relation)

    def release(self, value: float, *, generator: Generator | None = None) -> float:
        """Release a number with noise.

        Args:
            value: The private number.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The number with noise.

        Raises:
            InvalidParameterError: If the value is not a finite number. The message does not show it.
        """
        value = inputs.number(value)
        if resolve(generator).secure:
            return opendp_noise.laplace("f64", self.scale)(value)
        return value + float(arrays.laplace(1, scale=self.scale, generator=generator)[0])

    def event(self) -> DpEvent:
        """Return the event of one release, which accountants price.

        Returns:
            The event.
        """
        ideal = self.sensitivity / self.scale
        loss = opendp_noise.charged(ideal, opendp_noise.laplace("f64", self.scale).map(self.sensitivity))
        return _of_relation(self.relation, dp.LaplaceDpEvent(self.relation.diameter / loss))


@dataclass(frozen=True, kw_only=True, slots=True)
class Gaussian:
    """The Gaussian mechanism: one number plus Gaussian noise.

    Args:
        stddev: The standard deviation of the noise.
        sensitivity: The most that one privacy unit can move the value under `relation`.
        relation: Which data sets are neighbors.

    Raises:
        InvalidParameterError: If a parameter is out of range.

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
        """Return the mechanism with the smallest noise for (epsilon, delta): the analytic calibration.

        Args:
            epsilon: The privacy budget of one release.
            delta: The delta of the guarantee, above 0 and below 1.
            sensitivity: The most that one privacy unit can move the value under `relation`.
            relation: Which data sets are neighbors.

        Returns:
            The mechanism.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        stddev = stddev_for(epsilon, delta, sensitivity)
        return cls(stddev=stddev, sensitivity=sensitivity, relation=relation)

    @classmethod
    def classic(cls, *, epsilon: float, delta: float, sensitivity: float, relation: Relation) -> "Gaussian":
        """Return the textbook calibration, which needs more noise and is a theorem only for epsilon < 1.

        Args:
            epsilon: The privacy budget of one release, below 1.
            delta: The delta of the guarantee, above 0 and below 1.
            sensitivity: The most that one privacy unit can move the value under `relation`.
            relation: Which data sets are neighbors.

        Returns:
            The mechanism.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        stddev = classic_stddev(epsilon, delta, sensitivity)
        return cls(stddev=stddev, sensitivity=sensitivity, relation=relation)

    def release(self, value: float, *, generator: Generator | None = None) -> float:
        """Release a number with noise.

        Args:
            value: The private number.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The number with noise.

        Raises:
            InvalidParameterError: If the value is not a finite number. The message does not show it.
        """
        value = inputs.number(value)
        if resolve(generator).secure:
            return opendp_noise.gaussian("f64", self.stddev)(value)
        return value + float(arrays.gaussian(1, stddev=self.stddev, generator=generator)[0])

    def event(self) -> DpEvent:
        """Return the event of one release, which accountants price.

        Returns:
            The event.
        """
        ideal = (self.sensitivity / self.stddev) ** 2 / 2  # zCDP: Bun and Steinke 2016, Proposition 1.6
        rho = opendp_noise.charged(ideal, opendp_noise.gaussian("f64", self.stddev).map(self.sensitivity))
        multiplier = self.stddev / self.sensitivity if rho == ideal else 1 / math.sqrt(2 * rho)
        return _of_relation(self.relation, dp.GaussianDpEvent(self.relation.diameter * multiplier))


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscreteLaplace:
    """The geometric mechanism: integer noise with probability proportional to exp(-|x| / scale).

    Args:
        scale: The scale of the noise.
        sensitivity: The most that one privacy unit can move the value under `relation`, a whole number.
        relation: Which data sets are neighbors.

    Raises:
        InvalidParameterError: If a parameter is out of range.

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
        """Return the mechanism that costs a given epsilon: its scale is sensitivity / epsilon, rounded up.

        Args:
            epsilon: The privacy budget of one release.
            sensitivity: The most that one privacy unit can move the value under `relation`, a whole number.
            relation: Which data sets are neighbors.

        Returns:
            The mechanism.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        _check.positive(epsilon=epsilon, sensitivity=sensitivity)
        return cls(scale=_divide_up(sensitivity, epsilon), sensitivity=sensitivity, relation=relation)

    def release(self, value: int, *, generator: Generator | None = None) -> int:
        """Release a whole number with noise.

        Args:
            value: The private whole number.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The whole number with noise.

        Raises:
            InvalidParameterError: If the value is not a whole number. The message does not show it.
        """
        value = inputs.whole_number(value)
        if resolve(generator).secure:
            return opendp_noise.laplace("i64", self.scale)(value)
        return value + int(exact.laplace_integers(1, scale=self.scale, generator=generator)[0])

    def event(self) -> DpEvent:
        """Return the event of one release, which accountants price.

        Under replacement an odd sensitivity is charged as the next even one.

        Returns:
            The event.
        """
        loss = opendp_noise.charged(
            self.sensitivity / self.scale, opendp_noise.laplace("i64", self.scale).map(int(self.sensitivity))
        )
        contribution = -(-self.sensitivity // self.relation.diameter)
        event = dp.DiscreteLaplaceDpEvent(loss / self.sensitivity, int(contribution))
        return _of_relation(self.relation, event)


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscreteGaussian:
    """Discrete Gaussian noise: integers with probability proportional to exp(-x^2 / (2 stddev^2)).

    For tensors see `mechanisms.discrete.GridGaussian`.

    Args:
        stddev: The parameter of the noise, about its standard deviation.
        sensitivity: The most that one privacy unit can move the value under `relation`, a whole number.
        relation: Which data sets are neighbors.

    Raises:
        InvalidParameterError: If a parameter is out of range.

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
        """Release a whole number with noise.

        Args:
            value: The private whole number.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The whole number with noise.

        Raises:
            InvalidParameterError: If the value is not a whole number. The message does not show it.
        """
        value = inputs.whole_number(value)
        if resolve(generator).secure:
            return opendp_noise.gaussian("i64", self.stddev)(value)
        return value + int(exact.gaussian_integers(1, stddev=self.stddev, generator=generator)[0])

    def event(self) -> DpEvent:
        """Return the event of one release, which accountants price.

        Returns:
            The event.
        """
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
