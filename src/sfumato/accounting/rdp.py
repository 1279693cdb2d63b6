# SPDX-License-Identifier: Apache-2.0
"""Rényi differential privacy: the accountant whose costs add up, and on which privacy filters are proven.

Parts known only by an (epsilon, delta) cost their epsilon as Rényi divergence and leave their delta outside
(delta-approximate RDP: the divergence holds but for an event of that probability). Every (epsilon, delta)-DP
pair splits so (Kairouz, Oh and Viswanath 2015). These deltas add up.

Clipping by an estimated norm has no finite divergence: an estimate may be wrong by any factor. The rarest
projections of a step, of probability `SET_ASIDE`, are left outside as its delta. So is the truncation of a
Poisson sample if it is as rare.

The conversion to epsilon is that of Canonne, Kamath and Steinke 2020, arXiv:2004.00010, Proposition 12, at
the best order; and epsilon is 0 if the total variation is below delta (Bretagnolle and Huber 1979: TV^2 <= 1
- e^-KL).

Rounding is always towards a larger epsilon. A `NonPrivateDpEvent` costs infinity.

Guarantee  `epsilon` is an upper bound: the event is (epsilon, delta)-DP under the relation. At each order the
           costs of parts chosen one after another add up (Mironov 2017, arXiv:1702.07476, Proposition 1).
Neighbors  All four relations; an event that is not priced under one is refused with the reason.
           Under replace-one and replace-label a contribution to a noisy sum turns into any other.
           Randomized response is refused where a unit may be absent. Parallel parts are refused under
           replace-one, which moves a unit between parts; a label does not.
Not here   The divergences themselves: `accounting.renyi`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting import composition, events, integer_noise, mixtures, perturbation, renyi, selection
from sfumato.accounting.events import DpEvent
from sfumato.accounting.extremes import in_floats
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError, UnsupportedEventError

__all__ = ["ORDERS", "RdpCurve", "curve", "epsilon", "epsilon_of", "largest_rdp"]

Array = npt.NDArray[np.float64]

SET_ASIDE = 1e-12  # the most delta that one step sets aside for what rarely happens to it

_ROUNDING = 8 * 2.0**-53  # relative rounding of the few operations in a conversion


def _default_orders() -> Array:
    """Close to 1 for huge epsilons, tenths to 11, whole numbers from there, four an octave above 64.

    All of dp_accounting's default orders are among them. The best order is near 1 + 2 log(1/delta) / epsilon,
    so that the largest serve epsilons down to 1e-3.
    """
    near_one = [1.0005, 1.001, 1.002, 1.005, *(1 + np.arange(1, 10) / 100)]
    tenths = 1 + np.arange(1, 100) / 10
    octaves = np.round(64 * 2 ** (np.arange(33) / 4))
    return np.concatenate([near_one, tenths, np.arange(11.0, 64.0), octaves, [32768.0, 65536.0]])


ORDERS: Array = _default_orders()
ORDERS.setflags(write=False)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RdpCurve:
    """Rényi divergence bounds `values` at `orders`, but for an event of probability `delta`."""

    orders: Array
    values: Array
    delta: float = 0.0

    def __post_init__(self) -> None:
        if self.orders.ndim != 1 or self.orders.shape != self.values.shape or self.orders.size == 0:
            raise InvalidParameterError(
                f"orders and values must be lists of one length, not empty, but have shapes "
                f"{self.orders.shape} and {self.values.shape}."
            )
        if not (np.all(self.orders > 1) and np.all(np.isfinite(self.orders))):
            raise InvalidParameterError(
                f"orders must be finite numbers above 1, but {self.orders!r} was given."
            )
        if not np.all(self.values >= 0):
            raise InvalidParameterError(f"values must be 0 or more, but {self.values!r} was given.")
        _check.in_range(0, 1, delta=self.delta)


@in_floats
def curve(event: DpEvent, relation: Relation, orders: Array = ORDERS) -> RdpCurve:
    """Return the Rényi cost of an event at each order.

    >>> curve(dp.GaussianDpEvent(2.0), Relation.ADD_REMOVE, np.array([2.0, 16.0])).values.round(3).tolist()
    [0.25, 2.0]
    """
    orders = np.asarray(orders, dtype=np.float64)
    total = RdpCurve(orders=orders, values=np.zeros_like(orders))  # checks the orders before they are used
    values, delta = total.values, 0.0
    for leaf, count in events.leaves(event).items():
        part = _leaf(leaf, relation, orders.tobytes())
        with np.errstate(over="ignore"):
            values = values + count * part.values
        delta += count * part.delta
    return RdpCurve(orders=orders, values=values, delta=min(1.0, delta))


@in_floats
def epsilon_of(curve: RdpCurve, delta: float) -> float:
    """Return the best epsilon that a curve gives at `delta`; infinite if the curve's own delta is no less.

    >>> round(epsilon_of(curve(dp.GaussianDpEvent(1.0), Relation.ADD_REMOVE), 1e-5), 3)
    4.729
    """
    _check.probability(delta=delta)
    left = delta - curve.delta * (1 + _ROUNDING)
    if not left > 0:
        return math.inf
    if np.any(
        -np.expm1(-curve.values) * (1 + _ROUNDING) <= left * left
    ):  # every order bounds the KL divergence
        return 0.0
    gains = _conversion(curve.orders, left)
    bounds = curve.values + gains + _ROUNDING * (curve.values + np.abs(gains))
    return max(0.0, float(bounds.min()))


@in_floats
def epsilon(event: DpEvent, *, delta: float, relation: Relation) -> float:
    """Return the epsilon of an event at `delta`.

    >>> event = events.dp_sgd(noise_multiplier=1.0, sampling_rate=0.01, steps=1000)
    >>> round(epsilon(event, delta=1e-5, relation=Relation.ADD_REMOVE), 4)
    2.1014
    """
    return epsilon_of(curve(event, relation), delta)


@in_floats
def epsilon_at(value: float, *, order: float, delta: float) -> float:
    """Return the epsilon that a divergence of one order gives at `delta`, a straight line in the divergence.

    Unlike `epsilon_of` it knows no bound by total variation, so that it also holds for a divergence that adds
    up along the way, read at a moment chosen by looking at results (docs/decisions/0003-filter.md).

    >>> round(epsilon_at(2.7, order=5.4, delta=1e-5), 3)
    4.729
    """
    _check.non_negative(value=value)
    _check.probability(delta=delta)
    gain = float(_conversion(np.array(order), delta))
    return max(0.0, value + gain + _ROUNDING * (value + abs(gain)))


@in_floats
def largest_rdp(*, epsilon: float, delta: float, order: float) -> float:
    """Return the most Rényi divergence at one order that still gives (epsilon, delta); 0 if none does.

    >>> round(largest_rdp(epsilon=4.7285, delta=1e-5, order=5.4), 3)
    2.7
    """
    _check.non_negative(epsilon=epsilon)
    _check.probability(delta=delta)
    if not 1 < order < math.inf:
        raise InvalidParameterError(f"order must be a finite number above 1, but {order!r} was given.")
    gain = float(_conversion(np.array(order), delta))
    return max(0.0, epsilon - gain - 4 * _ROUNDING * (epsilon + abs(gain)))


def _conversion(orders: Array, delta: float) -> Array:
    """Return what must be added to a divergence to make it an epsilon (Proposition 12)."""
    return np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)


# --- one function per kind of event ----------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _leaf(event: DpEvent, relation: Relation, orders: bytes) -> RdpCurve:
    with np.errstate(over="ignore"):  # too large a divergence is infinity, which is a bound
        return _price(event, relation, np.frombuffer(orders))


@singledispatch
def _price(event: DpEvent, relation: Relation, orders: Array) -> RdpCurve:
    _refuse(event, relation)


def _refuse(event: DpEvent, relation: Relation) -> NoReturn:
    raise UnsupportedEventError(
        f"the RDP accountant has no bound for {event} under {relation.value}. Use the PLD accountant, or "
        "state the mechanism as an ApproximateDpEvent with a proven (epsilon, delta)."
    )


def _curve_of(orders: Array, values: Array, delta: float = 0.0) -> RdpCurve:
    return RdpCurve(orders=orders, values=values, delta=delta)


@_price.register
def _(event: dp.NonPrivateDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    return _curve_of(orders, np.full_like(orders, np.inf))


@_price.register(dp.GaussianDpEvent)
@_price.register(events.DiscreteGaussianDpEvent)
@_price.register(events.SkellamDpEvent)
@_price.register(events.SummedDiscreteGaussianDpEvent)
def _(event: DpEvent, relation: Relation, orders: Array) -> RdpCurve:
    return _curve_of(orders, renyi.gaussian(orders, relation.diameter * _contribution(event)))


@_price.register
def _(event: dp.LaplaceDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    return _curve_of(orders, renyi.laplace(orders, relation.diameter / event.noise_multiplier))


@_price.register
def _(event: dp.DiscreteLaplaceDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    shift = relation.diameter * event.sensitivity
    return _curve_of(orders, renyi.discrete_laplace(orders, event.noise_parameter, shift))


@_price.register
def _(event: dp.RandomizedResponseDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    composition.require_replacement(event, relation)
    return _curve_of(orders, renyi.randomized_response(orders, event.noise_parameter, event.num_buckets))


@_price.register(events.PureDpEvent)
@_price.register(events.SparseVectorDpEvent)
def _(event: events.PureDpEvent | events.SparseVectorDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    return _curve_of(orders, renyi.pure(orders, event.epsilon))


@_price.register
def _(event: events.ApproximateDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    return _curve_of(orders, renyi.pure(orders, event.epsilon), event.delta)


@_price.register
def _(event: events.ExponentialDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    return _curve_of(orders, renyi.bounded_range(orders, event.epsilon))


@_price.register
def _(event: dp.ZCDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    return _curve_of(orders, event.xi + event.rho * orders)


@_price.register
def _(event: events.ParallelDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    composition.require_disjoint_parts(event, relation)
    parts = [curve(part, relation, orders) for part in event.events]
    values = np.max([np.zeros_like(orders), *(part.values for part in parts)], axis=0)
    return _curve_of(orders, values, max((part.delta for part in parts), default=0.0))


@_price.register
def _(event: events.ObjectivePerturbationDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    return _curve_of(orders, perturbation.renyi(event, relation, orders))


@_price.register
def _(event: events.SelectionDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    finer = np.unique(np.concatenate([orders, ORDERS]))  # the theorem looks at a second order of the parts
    parts = [curve(part, relation, finer) for part in event.events]
    if any(part.delta > 0 for part in parts):
        _refuse(event, relation)
    once = np.max([part.values for part in parts], axis=0)
    return _curve_of(orders, selection.renyi(event, finer, once)[np.searchsorted(finer, orders)])


@_price.register
def _(event: dp.PoissonSampledDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    rate = event.sampling_probability
    inner = events.leaves(event.event)
    if any(isinstance(part, events.JohnsonLindenstraussDpEvent) for part in inner):
        return _projected(event.event, relation, orders, rate)
    if rate == 1:
        return curve(event.event, relation, orders)
    if not _all_gaussian(inner):
        return _amplified(event, relation, orders)
    if any(isinstance(part, events.DiscreteGaussianDpEvent) for part in inner):
        # Integer noise beside it has no larger moments, and is as symmetric.
        divergence = (
            renyi.sampled_discrete_gaussian_replaced if relation.replaces else renyi.sampled_discrete_gaussian
        )
        return _curve_of(orders, divergence(orders, _joint_contribution(inner), rate))
    if relation.replaces and any(isinstance(part, integer_noise.KINDS) for part in inner):
        return _curve_of(orders, renyi.sampled_dominated_replaced(orders, _joint_contribution(inner), rate))
    return _curve_of(orders, _sampled(orders, _joint_contribution(inner), rate, replaced=relation.replaces))


def _sampled(orders: Array, mu: float, rate: float, *, replaced: bool) -> Array:
    """Return the divergence of Gaussian noise on a Poisson sample, one contribution moving it by `mu`."""
    if rate == 1:
        return renyi.gaussian(orders, 2 * mu if replaced else mu)
    divergence = renyi.sampled_gaussian_replaced if replaced else renyi.sampled_gaussian
    return divergence(orders, mu, rate)


@_price.register
def _(event: events.TruncatedPoissonSampledDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    inner = events.leaves(event.event)
    if not (_all_gaussian(inner) and events.gaussian_scale(event.event) is not None):
        _refuse(event, relation)
    mu, rate = _joint_contribution(inner), event.sampling_probability
    chance = mixtures.truncation_chance(rate, event.batch_size, event.public_size)
    once = _sampled(orders, mu, rate, replaced=relation.replaces)
    if chance <= SET_ASIDE:
        return _curve_of(orders, once, chance)
    # As in `accounting.mixtures`: a full batch lets the unit take another's place, a shift of 2 mu.
    twice = _sampled(orders, 2 * mu, rate, replaced=relation is not Relation.ADD_REMOVE)
    return _curve_of(orders, renyi.mixed(orders, [once, twice], [1 - chance, chance]))


@_price.register
def _(event: events.JohnsonLindenstraussDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    return _projected(event, relation, orders, rate=1.0)


def _projected(event: DpEvent, relation: Relation, orders: Array, rate: float) -> RdpCurve:
    shifts = mixtures.projected_shifts(event, relation)
    left_out = shifts.tail + np.append(np.cumsum(shifts.weights[::-1])[::-1], 0.0)
    kept = max(1, int(np.argmax(left_out <= SET_ASIDE)))
    delta = float(left_out[kept])
    values = [_sampled(orders, mu, rate, replaced=relation.replaces) for mu in shifts.values[:kept]]
    weights = [weight / (1 - delta) for weight in shifts.weights[:kept]]
    return _curve_of(orders, renyi.mixed(orders, values, weights), delta)


@_price.register
def _(event: dp.SampledWithoutReplacementDpEvent, relation: Relation, orders: Array) -> RdpCurve:
    inner = events.leaves(event.event)
    if event.sample_size == event.source_dataset_size:
        return curve(event.event, relation, orders)
    if not _all_gaussian(inner):
        return _amplified(event, relation, orders)
    if not relation.replaces:
        raise UnsupportedEventError(
            f"sampling without replacement fixes the number of units, so it is not priced under "
            f"{relation.value}. State the account for replace-one neighbors, or use Poisson sampling."
        )
    rate = event.sample_size / event.source_dataset_size
    return _curve_of(orders, renyi.fixed_size_gaussian(orders, _joint_contribution(inner), rate))


def _amplified(event: DpEvent, relation: Relation, orders: Array) -> RdpCurve:
    """Price a sampled (epsilon, delta) mechanism by its amplified statement, nothing else being known."""
    epsilon, delta = composition.basic(event, relation)
    if epsilon == math.inf:
        return _curve_of(orders, np.full_like(orders, np.inf))
    return _curve_of(orders, renyi.pure(orders, epsilon), delta)


def _all_gaussian(inner: dict[DpEvent, int]) -> bool:
    kinds = (dp.GaussianDpEvent, events.DiscreteGaussianDpEvent, *integer_noise.KINDS)
    return bool(inner) and all(isinstance(part, kinds) for part in inner)


def _contribution(event: DpEvent) -> float:
    """Return how many standard deviations one contribution moves a noisy sum."""
    if isinstance(event, events.DiscreteGaussianDpEvent):
        return event.sensitivity / event.stddev
    if isinstance(event, dp.GaussianDpEvent):
        return 1 / event.noise_multiplier
    if isinstance(event, integer_noise.KINDS):
        return integer_noise.shift(event)
    raise TypeError(f"{type(event).__name__} is not a Gaussian event")


def _joint_contribution(inner: dict[DpEvent, int]) -> float:
    """Return the same for several sums of one sample: their squares add, as coordinates of one Gaussian."""
    return math.hypot(*(math.sqrt(count) * _contribution(part) for part, count in inner.items()))
