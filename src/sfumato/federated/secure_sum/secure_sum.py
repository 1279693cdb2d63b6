# SPDX-License-Identifier: Apache-2.0
"""The sum of the updates of a round with noise of the clients, as one mechanism with one event.

Each client clips its update, rotates it, rounds it to integers, adds its own share of integer noise, and
sends the result modulo 2^bits under a mask. The server learns the sum modulo 2^bits and nothing else.

Guarantee  One client moves the sum of integers by at most `l2_bound` in L2 and `l1_bound` in L1 norm,
           whatever its update is. The noise of any `least_survivors` clients together has a standard
           deviation of at least `noise_multiplier * l2_bound` (a parameter, for the discrete Gaussian, whose
           standard deviation is slightly smaller). `event()` is the event of that sum. A sum with fewer
           clients is never decoded; one with more has more noise than was accounted for.
Neighbors  One client's update is replaced by zeros (zero-out), or by another update (replace-one). The client
           takes part and adds its noise in both worlds: who takes part is not hidden.
Unit       One client. The noise of a round is that of all clients in the sum. A client, or a server together
           with k clients, knows its own noise: against these, pass `helpers=k` to `against_server`.
Edge cases If a coordinate wraps around modulo 2^bits, the decoded sum is wrong there, and privacy is not
           touched. The scale is the largest one with which any coordinate of a round wraps around with
           probability at most `wrap_probability`.
Source     Kairouz, Liu, Steinke 2021, arXiv:2102.06387 (discrete Gaussian); Agarwal, Kairouz, Liu 2021,
           arXiv:2110.04995 (Skellam).
"""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from sfumato import _check
from sfumato.accounting.events import DpEvent, SkellamDpEvent, SummedDiscreteGaussianDpEvent
from sfumato.accounting.guarantee import Guarantee, Relation, round_up
from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.modulus import log_wrap_probability
from sfumato.federated.secure_sum.rotation import padded_size
from sfumato.federated.secure_sum.rounding import l2_bound_squared
from sfumato.federated.secure_sum.skellam import MAX_VARIANCE

__all__ = ["IntegerNoise", "SecureSum"]

_BITS = (8, 32)
_LEAST_CLIP_STEPS = 1.0
_LARGEST_CLIP_STEPS = 2.0**28  # squares of bounds fit 64-bit integers
_HALVINGS = 60


class IntegerNoise(enum.Enum):
    """The law of the noise that each client adds.

    Attributes:
        DISCRETE_GAUSSIAN: The discrete Gaussian. A sum of several is nearly one again; the event says how
            nearly.
        SKELLAM: The difference of two Poisson variables. A sum of several is exactly one again.
    """

    DISCRETE_GAUSSIAN = "discrete-gaussian"
    SKELLAM = "skellam"


@dataclass(frozen=True, kw_only=True, slots=True)
class SecureSum:
    """A sum over a cohort that is seen only as a whole, with noise added by its clients.

    Args:
        dimension: How many coordinates an update has.
        clip_norm: The most an update may have in L2 norm. Longer ones are scaled down.
        noise_multiplier: The noise of `least_survivors` clients together, divided by the bound on one
            client's vector after rounding.
        cohort: How many clients are invited to a round.
        least_survivors: The least number of clients whose vectors must be in a sum that is decoded.
        noise: The law of the noise.
        bits: Bits of a coordinate: sums are taken modulo 2^bits.
        wrap_probability: The most likely that any coordinate of a round may wrap around.

    Raises:
        InvalidParameterError: If a setting is out of range, or so few bits cannot hold the sum.

    >>> mechanism = SecureSum(dimension=1000, clip_norm=1.0, noise_multiplier=1.0, cohort=100,
    ...                       least_survivors=80)
    >>> mechanism.size, mechanism.modulus
    (1024, 65536)
    """

    dimension: int
    clip_norm: float
    noise_multiplier: float
    cohort: int
    least_survivors: int
    noise: IntegerNoise = IntegerNoise.DISCRETE_GAUSSIAN
    bits: int = 16
    wrap_probability: float = 1e-9

    def __post_init__(self) -> None:
        _check.count(
            dimension=self.dimension,
            cohort=self.cohort,
            least_survivors=self.least_survivors,
            bits=self.bits,
        )
        _check.positive(clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier)
        _check.in_range(*_BITS, bits=self.bits)
        _check.probability(wrap_probability=self.wrap_probability)
        object.__setattr__(self, "noise", _noise(self.noise))
        if self.least_survivors > self.cohort:
            raise InvalidParameterError(
                f"least_survivors={self.least_survivors} is more than cohort={self.cohort}: every round "
                "would be skipped. At most all invited clients can be in a sum."
            )
        if not self._fits(_LEAST_CLIP_STEPS / self.clip_norm, self.noise_multiplier):
            raise InvalidParameterError(
                f"sums of {self.cohort} clients and {self.dimension} coordinates with "
                f"noise_multiplier={self.noise_multiplier:g} do not fit {self.bits} bits. Use more bits, "
                "fewer clients, or less noise."
            )

    @property
    def size(self) -> int:
        """How many coordinates a rotated vector has: a power of two."""
        return padded_size(self.dimension)

    @property
    def modulus(self) -> int:
        """What sums are reduced by."""
        return 1 << self.bits

    @property
    def scale(self) -> float:
        """Steps of the integer grid in one unit of an update: the most that the modulus holds."""
        return _largest_scale(self, self.noise_multiplier)

    @property
    def l2_bound_squared(self) -> int:
        """The largest squared L2 norm of one client's integers before noise."""
        return self._l2_bound_squared(self.scale)

    @property
    def l2_bound(self) -> float:
        """The largest L2 norm of one client's integers before noise."""
        return _root(self.l2_bound_squared)

    @property
    def l1_bound(self) -> float:
        """The largest L1 norm of one client's integers before noise."""
        # By Cauchy and Schwarz; and the size of an integer is at most its square.
        return min(_root(self.size * self.l2_bound_squared), float(self.l2_bound_squared))

    @property
    def share_stddev(self) -> float:
        """The noise of one client in steps: the parameter of its discrete Gaussian, or Skellam's stddev."""
        return self._share_stddev(self.scale, self.noise_multiplier)

    def event(self) -> DpEvent:
        """Return the event of one decoded sum.

        Returns:
            The event, for an accountant.
        """
        return self.event_at(self.noise_multiplier)

    def event_at(self, noise_multiplier: float) -> DpEvent:
        """Return the event of one decoded sum with another noise.

        It may be more noise than the bits hold, as calibration tries. A round with it is refused (`scaled`).

        Args:
            noise_multiplier: The noise multiplier.

        Returns:
            The event, for an accountant.
        """
        return self._event(noise_multiplier, survivors=self.least_survivors)

    def against_server(self, *, rounds: int, delta: float, helpers: int = 0) -> Guarantee:
        """Return what one client has against a server that reads these sums and knows whom it asked.

        Args:
            rounds: How many sums the client is in at most.
            delta: The delta of the guarantee.
            helpers: How many other clients of each sum tell the server their noise, add none, or were made up
                by it. With `least_survivors - 1` of them the client has its own share of noise alone.

        Returns:
            The guarantee of all rounds together, for zero-out neighbors.

        Raises:
            InvalidParameterError: If a number is out of range.

        >>> agreed = SecureSum(dimension=9, clip_norm=1, noise_multiplier=4, cohort=10, least_survivors=8)
        >>> print(agreed.against_server(rounds=10, delta=1e-5))
        (3.342, 1e-05)-differential privacy for one client, zero-out neighbors
        """
        _check.count(rounds=rounds)
        if isinstance(helpers, bool) or helpers not in range(self.least_survivors):
            raise InvalidParameterError(
                f"helpers={helpers} must be a whole number from 0 to {self.least_survivors - 1}: one of the "
                "least_survivors clients is the protected one."
            )
        once = self._event(self.noise_multiplier, survivors=self.least_survivors - helpers)
        paid = price(dp.SelfComposedDpEvent(once, rounds), delta=delta, relation=Relation.ZERO_OUT)
        return paid.guarantee("client")

    def bound_at(self, noise_multiplier: float) -> float:
        """Return the most that one client's rounded update has in L2 norm, in units of an update.

        Args:
            noise_multiplier: The noise multiplier.

        Returns:
            The bound: the clip norm, and what rounding may add to it.
        """
        scale = _largest_scale(self, noise_multiplier)
        return _root(self._l2_bound_squared(scale)) / scale

    def statement(self, noise_multiplier: float) -> str:
        """Return what noise there is and who adds it: the words before "added to each sum".

        Args:
            noise_multiplier: The noise multiplier.

        Returns:
            The beginning of a sentence.

        >>> mechanism = SecureSum(dimension=9, clip_norm=1, noise_multiplier=1, cohort=9, least_survivors=7)
        >>> mechanism.statement(1.5)
        'Sums of fewer than 7 clients were not decoded. Discrete Gaussian noise of the clients, in which that
         of 7 has 1.5 times the bound on one contribution, was'
        """
        law = "Skellam" if self.noise is IntegerNoise.SKELLAM else "Discrete Gaussian"
        return (
            f"Sums of fewer than {self.least_survivors} clients were not decoded. {law} noise of the "
            f"clients, in which that of {self.least_survivors} has {-round_up(-noise_multiplier, 6):g} times "
            "the bound on one contribution, was"
        )

    def scaled(self, noise_multiplier: float) -> "SecureSum":
        """Return the mechanism with another noise.

        Args:
            noise_multiplier: The new noise multiplier.

        Returns:
            The mechanism. Its scale may differ too.

        Raises:
            InvalidParameterError: If the sum does not fit the bits any more.
        """
        return replace(self, noise_multiplier=noise_multiplier)

    def _event(self, noise_multiplier: float, *, survivors: int) -> DpEvent:
        """Return the event of one decoded sum to which so many clients have added a share of noise."""
        scale = _largest_scale(self, noise_multiplier)
        bound = _root(self._l2_bound_squared(scale))
        share = self._share_stddev(scale, noise_multiplier)
        if self.noise is IntegerNoise.SKELLAM:
            variance = share * share * survivors * (1 - 2.0**-50)  # rounded down: never more than is there
            return SkellamDpEvent(variance, bound)
        return SummedDiscreteGaussianDpEvent(share, bound, survivors)

    def _l2_bound_squared(self, scale: float) -> int:
        return l2_bound_squared(clip_steps=self.clip_norm * scale, size=self.size)

    def _share_stddev(self, scale: float, noise_multiplier: float) -> float:
        total = noise_multiplier * _root(self._l2_bound_squared(scale))
        return math.nextafter(total / math.sqrt(self.least_survivors) * (1 + 2.0**-50), math.inf)

    def _fits(self, scale: float, noise_multiplier: float) -> bool:
        """Return whether sums at this scale wrap around with at most the stated probability."""
        variance = self._share_stddev(scale, noise_multiplier) ** 2
        skellam = self.noise is IntegerNoise.SKELLAM
        log_probability = log_wrap_probability(
            modulus=self.modulus,
            clients=self.cohort,
            clip_steps=self.clip_norm * scale,
            size=self.size,
            noise_variance=variance,
            skellam=skellam,
        )
        drawn = not skellam or variance <= MAX_VARIANCE
        return drawn and log_probability <= math.log(self.wrap_probability)


def _noise(given: object) -> IntegerNoise:
    known = [kind.value for kind in IntegerNoise]
    if not isinstance(given, IntegerNoise) and given not in known:
        raise InvalidParameterError(f"unknown noise {given!r}. Use one of: {', '.join(known)}.")
    return IntegerNoise(given)


@lru_cache(maxsize=256)
def _largest_scale(mechanism: SecureSum, noise_multiplier: float) -> float:
    """Return the largest scale that fits: sums grow with it, so halving finds it. Else the least."""
    fits: Callable[[float, float], bool] = mechanism._fits  # pyright: ignore[reportPrivateUsage] - of this module
    low, high = (steps / mechanism.clip_norm for steps in (_LEAST_CLIP_STEPS, _LARGEST_CLIP_STEPS))
    if fits(high, noise_multiplier):
        return high
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle, noise_multiplier) else (low, middle)
    return low


def _root(squared: int) -> float:
    """Return the root of a whole number, rounded up."""
    return math.nextafter(math.sqrt(squared), math.inf)
