# SPDX-License-Identifier: Apache-2.0
"""Global, local and smooth sensitivity, each with a mechanism that can use it; the median is the example.

Global sensitivity is the most that any neighbor of ANY data set moves the value. Noise in proportion to it is
private: `mechanisms.additive.Laplace`. For a median it is the whole width of the bounds.

Local sensitivity is the most that any neighbor of THIS data set moves the value. Noise in proportion to it is
NOT private: its size alone distinguishes neighbors. `ProposeTestRelease` uses it safely: it proposes a bound,
tests with noise that the data are far from any that violate it, and only then releases.

Smooth sensitivity is a bound on local sensitivity that itself changes by at most a factor e^beta between
neighbors, so its size reveals little. `SmoothMedian` scales its noise by it.

Guarantee  `ProposeTestRelease`: (test_epsilon + release_epsilon, delta). `SmoothMedian`: epsilon with delta
           0, or (epsilon, delta). Floating point: `SmoothMedian` computes in float64 and rounds its answer to
           a public grid of 2^-32 of the bounds; its guarantee holds up to rounding.
Neighbors  Replace-one: the number of values is public.
Edge cases Values are clamped to `bounds`, and NaN counts as the lower bound. The median is the value of rank
           ceil(n / 2). An empty list of values is refused: their number is public.
Source     Nissim, Raskhodnikova, Smith 2007, Definitions 2.1 and 2.2, Proposition 3.4 (median); Dwork and Lei
           2009, as in Vadhan 2017, Section 3.2 (propose-test-release).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import ApproximateDpEvent, PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import DpEvent
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import exact, inputs
from sfumato.mechanisms.additive import Laplace
from sfumato.mechanisms.random import Generator, words

__all__ = [
    "ProposeTestRelease",
    "SmoothMedian",
    "distance_to_sensitive",
    "global_sensitivity",
    "local_sensitivity",
    "median",
    "smooth_sensitivity",
]

Values = Sequence[float] | npt.NDArray[np.floating]
Bounds = tuple[float, float]
_UP = 1 + 2.0**-40  # covers the rounding of a smooth bound; a constant factor keeps it smooth
_OUTPUT_BITS = 32
_EPSILONS = (1e-100, 1e100)  # beyond, the noise or its inverse could leave float64
_LARGEST_BETA = 700.0


def median(values: Values, *, bounds: Bounds) -> float:
    """Return the value of rank ceil(n / 2), without noise: private.

    >>> median([3.0, 1.0, 2.0], bounds=(0.0, 10.0))
    2.0
    """
    known = _sorted(values, bounds)
    return float(known[_middle(known.size)])


def global_sensitivity(*, bounds: Bounds) -> float:
    """Return the global sensitivity of the median: some data set has a neighbor that crosses the bounds."""
    _check.bounds(bounds=bounds)
    return bounds[1] - bounds[0]


def local_sensitivity(values: Values, *, bounds: Bounds, distance: int = 0) -> float:
    """Return the largest local sensitivity of the median within `distance` replacements of the data.

    max over t = 0 ... k+1 of x[m+t] - x[m+t-k-1], with k the distance: Proposition 3.4. Private.

    >>> local_sensitivity([1.0, 2.0, 4.0], bounds=(0.0, 10.0))
    2.0
    """
    _check.non_negative(distance=distance)
    return _local(_sorted(values, bounds), bounds, int(distance))


def smooth_sensitivity(values: Values, *, bounds: Bounds, beta: float) -> float:
    """Return max over k of e^(-k beta) times the local sensitivity at distance k. Private.

    Distances are tried in turn and no further than where e^(-k beta) times the width of the bounds, the most
    that any term can still reach, falls below the largest found.

    >>> smooth_sensitivity([5.0], bounds=(0.0, 10.0), beta=0.1)
    9.04837418...
    """
    _check.positive(beta=beta)
    known = _sorted(values, bounds)
    width, largest = bounds[1] - bounds[0], 0.0
    for k in range(known.size + 1):
        discount = math.exp(-k * beta)
        if discount * width <= largest:
            break
        largest = max(largest, discount * _local(known, bounds, k))
    return largest


def distance_to_sensitive(values: Values, *, bounds: Bounds, proposed_sensitivity: float) -> int:
    """Return how many values to replace before the local sensitivity of the median exceeds the proposal.

    It moves by at most 1 between neighbors, as a distance to a fixed set does. If no data set exceeds the
    proposal, because it covers the bounds, it is n + 1. Private.

    >>> distance_to_sensitive([1.0, 2.0, 4.0], bounds=(0.0, 10.0), proposed_sensitivity=2.5)
    1
    """
    _check.positive(proposed_sensitivity=proposed_sensitivity)
    known = _sorted(values, bounds)
    for k in range(known.size + 1):
        if _local(known, bounds, k) > proposed_sensitivity:
            return k
    return known.size + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ProposeTestRelease:
    """Release a value with noise for a proposed local sensitivity, or nothing if the data may violate it.

    The test adds exact discrete Laplace noise of scale 1 / test_epsilon to the distance and checks whether it
    reaches t = ceil(ln(1 / delta) / test_epsilon). Data that violate the proposal have distance 0 and pass
    with probability below e^(-t test_epsilon) <= delta. For all others the release noise covers every
    neighbor.

    Args:
        proposed_sensitivity: The local sensitivity that the noise is scaled to.
        test_epsilon: The epsilon of the test.
        release_epsilon: The epsilon of the released value.
        delta: The delta of the guarantee, above 0 and below 1.
        relation: Which data sets are neighbors.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> mechanism = ProposeTestRelease(proposed_sensitivity=0.5, test_epsilon=1.0, release_epsilon=1.0,
    ...                                delta=1e-6)
    >>> mechanism.event()
    ApproximateDpEvent(epsilon=2.0, delta=1e-06)
    """

    proposed_sensitivity: float
    test_epsilon: float
    release_epsilon: float
    delta: float
    relation: Relation = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        _check.positive(
            proposed_sensitivity=self.proposed_sensitivity,
            test_epsilon=self.test_epsilon,
            release_epsilon=self.release_epsilon,
        )
        _check.probability(delta=self.delta)
        inputs.settle(self, "proposed_sensitivity", "test_epsilon", "release_epsilon", "delta")
        _check.in_range(1 / exact.MAX_SCALE, math.inf, test_epsilon=self.test_epsilon)
        self._laplace()

    @property
    def distance_needed(self) -> int:
        """Return the noisy distance from which a value is released."""
        return math.ceil(-math.log(self.delta) / self.test_epsilon * (1 + 2.0**-50))

    def release(self, value: float, *, distance: int, generator: Generator | None = None) -> float | None:
        """Release a value with noise, or None if the test fails.

        Args:
            value: The private value.
            distance: How many units must be replaced before the local sensitivity of the value exceeds the
                proposal (`distance_to_sensitive` for a median). It is private, too.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The value with noise, or None.

        Raises:
            InvalidParameterError: If the value is not finite or the distance is not a whole number.
        """
        # Both are read before the test: an error that came only after it would tell how the test ended.
        value, distance = inputs.number(value), inputs.whole_number(distance, what="the distance")
        spread = 1 / Fraction(self.test_epsilon)
        noise = int(exact.integers(1, power=1, spread=spread, generator=generator)[0])
        if distance + noise < self.distance_needed:
            return None
        return self._laplace().release(value, generator=generator)

    def _laplace(self) -> Laplace:
        return Laplace.calibrated(
            epsilon=self.release_epsilon, sensitivity=self.proposed_sensitivity, relation=self.relation
        )

    def event(self) -> DpEvent:
        """Return the event of one release, answered or not.

        Returns:
            The event.
        """
        return ApproximateDpEvent(self.test_epsilon + self.release_epsilon, self.delta)


@dataclass(frozen=True, kw_only=True, slots=True)
class SmoothMedian:
    """The median with noise in proportion to its smooth sensitivity S.

    delta = 0: median + (S / alpha) Cauchy, with alpha = beta = epsilon / 2. For h(z) = 1 / (pi (1 + z^2))
    the slope of ln h is at most 1, so a shift of alpha costs alpha; and a stretch by e^beta costs at most
    beta, because beta + ln((1 + z^2) / (1 + e^(2 beta) z^2)) lies in [-beta, beta]. Together epsilon. (The
    2007 paper's constants, epsilon / 6 for each with this noise, serve a whole family and are looser.)

    delta > 0: median + (2 S / epsilon) Laplace(1), with beta = epsilon / (2 ln(2 / delta)), as in the paper.
    A shift costs epsilon / 2; a stretch by e^beta costs (e^beta - 1) |z| - beta, more than epsilon / 2 only
    where |z| > (epsilon / 2 + beta) / (e^beta - 1), whose probability must be at most delta. That is checked
    when the object is made, as it fails for large epsilon.

    Args:
        epsilon: The privacy budget of one release.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        delta: The delta of the guarantee; 0 for pure differential privacy.

    Raises:
        InvalidParameterError: If a parameter is out of range, or epsilon is too large for this delta.

    >>> SmoothMedian(epsilon=1.0, bounds=(0.0, 10.0)).event()
    PureDpEvent(epsilon=1.0)
    """

    epsilon: float
    bounds: Bounds
    delta: float = 0.0

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        inputs.settle(self, "epsilon")
        _check.in_range(*_EPSILONS, epsilon=self.epsilon)
        inputs.settle_bounds(self, self.bounds)
        if self.delta == 0:
            return
        _check.probability(delta=self.delta)
        inputs.settle(self, "delta")
        # Beyond this beta the tail is far too short for any delta, and e^beta could overflow.
        tail = (self.epsilon / 2 + self.beta) / math.expm1(self.beta) if self.beta < _LARGEST_BETA else 0.0
        if not tail >= -math.log(self.delta):
            raise InvalidParameterError(
                f"epsilon={self.epsilon!r} is too large for delta={self.delta!r} with Laplace noise on a "
                "smooth sensitivity. Use a smaller epsilon, or delta=0."
            )

    @property
    def relation(self) -> Relation:
        """Return the relation that the guarantee is stated for."""
        return Relation.REPLACE_ONE

    @property
    def beta(self) -> float:
        """Return how smooth the sensitivity must be."""
        return (
            self.epsilon / 2 if self.delta == 0 else self.epsilon / (2 * (math.log(2) - math.log(self.delta)))
        )

    def release(self, values: Values, *, generator: Generator | None = None) -> float:
        """Release a private median, inside the bounds.

        Args:
            values: The private values.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The median with noise.

        Raises:
            InvalidParameterError: If there are no values, or one is not a number. The message does not show
                it.
        """
        smooth = smooth_sensitivity(values, bounds=self.bounds, beta=self.beta) * _UP
        noise = _cauchy(generator) if self.delta == 0 else _laplace(generator)
        noisy = median(values, bounds=self.bounds) + smooth / (self.epsilon / 2) * noise
        step = math.ldexp(1.0, math.frexp(self.bounds[1] - self.bounds[0])[1] - 1 - _OUTPUT_BITS)
        noisy = min(max(noisy, self.bounds[0]), self.bounds[1])
        return min(max(round(noisy / step) * step, self.bounds[0]), self.bounds[1])

    def event(self) -> DpEvent:
        """Return the event of one release, which accountants price.

        Returns:
            The event.
        """
        return PureDpEvent(self.epsilon) if self.delta == 0 else ApproximateDpEvent(self.epsilon, self.delta)


def _sorted(values: Values, bounds: Bounds) -> npt.NDArray[np.float64]:
    _check.bounds(bounds=bounds)
    known = inputs.numbers(values, what="values")
    if known.ndim != 1 or known.size == 0:
        raise InvalidParameterError("values must be a non-empty list of numbers, one for each privacy unit.")
    return np.sort(np.clip(np.where(np.isnan(known), bounds[0], known), *bounds))


def _middle(size: int) -> int:
    return (size + 1) // 2 - 1  # rank ceil(n / 2), counted from 0


def _local(known: npt.NDArray[np.float64], bounds: Bounds, k: int) -> float:
    """Return the local sensitivity at distance k; beyond its ends the list goes on with the bounds."""
    below = np.arange(_middle(known.size) - k - 1, _middle(known.size) + 1)
    return float((_at(known, bounds, below + k + 1) - _at(known, bounds, below)).max())


def _at(
    known: npt.NDArray[np.float64], bounds: Bounds, index: npt.NDArray[np.int_]
) -> npt.NDArray[np.float64]:
    inside = known[np.clip(index, 0, known.size - 1)]
    return np.where(index < 0, bounds[0], np.where(index >= known.size, bounds[1], inside))


def _unit(generator: Generator | None) -> tuple[float, int]:
    """Return a uniform of (0, 1) with 63 bits and a coin."""
    word = int(words(1, generator)[0])
    return ((word >> 1) + 0.5) * 2.0**-63, word & 1


def _cauchy(generator: Generator | None) -> float:
    # z and 1/z have one law, so drawing |z| <= 1 and a coin to invert keeps the tail's digits.
    (unit, invert), (_, negative) = _unit(generator), _unit(generator)
    inner = math.tan(math.pi / 4 * unit)
    size = 1 / inner if invert else inner
    return -size if negative else size


def _laplace(generator: Generator | None) -> float:
    unit, negative = _unit(generator)
    return math.log(unit) if negative else -math.log(unit)
