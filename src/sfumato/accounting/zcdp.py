# SPDX-License-Identifier: Apache-2.0
"""Zero-concentrated differential privacy: one number, rho, for a whole Rényi curve.

A pure epsilon-DP mechanism has rho = epsilon tanh(epsilon / 2), sharper than the usual epsilon^2 / 2, and
tight. With x = order - 1/2, randomized response diverges by (log cosh(epsilon x) - log cosh(epsilon / 2)) /
(order - 1); log cosh(epsilon sqrt(y)) is concave in y = x^2, and its tangent at y = 1/4 is the claim.

`epsilon_of` errs upwards; the best order is searched, and any order gives a valid bound.

Guarantee  `rho` bounds the Rényi divergence of every order a > 1 by rho * a, so rhos of parts add up, also
           when parts are chosen one after another; `epsilon_of` turns the sum into an (epsilon, delta).
Neighbors  All four relations; noisy sums move twice as far under replace-one and replace-label.
Source     Bun and Steinke 2016, arXiv:1605.02065 (definition, composition, Gaussian noise). Conversion:
           Canonne, Kamath and Steinke 2020, arXiv:2004.00010, Proposition 12, at the best real order.
Not here   Sampled Gaussians and (epsilon, delta) statements are not zCDP: `accounting.rdp`, `accounting.pld`.
"""

import math
from functools import singledispatch

from sfumato import _check
from sfumato.accounting import composition, events, integer_noise
from sfumato.accounting.events import DpEvent
from sfumato.accounting.extremes import in_floats
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.roots import root_between
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError, UnsupportedEventError

__all__ = ["epsilon", "epsilon_of", "rho"]

_SERIES = 1e-3  # below, e^-t - 1 + t is summed from its series: the plain form loses digits


def rho(event: DpEvent, relation: Relation) -> float:
    """Return the smallest rho known for an event.

    >>> rho(dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 100), Relation.ADD_REMOVE)
    3.125
    """
    return math.fsum(n * _price(leaf, relation) for leaf, n in events.leaves(event).items())


def epsilon_of(rho: float, delta: float) -> float:
    """Return the epsilon of rho-zCDP at `delta`.

    >>> round(epsilon_of(0.5, 1e-5), 3), round(0.5 + 2 * math.sqrt(0.5 * math.log(1e5)), 3)  # the loose form
    (4.728, 5.299)
    """
    if not rho >= 0:
        raise InvalidParameterError(f"rho must be 0 or more, but {rho!r} was given.")
    _check.probability(delta=delta)
    if (
        -math.expm1(-rho) * (1 + 1e-15) <= delta * delta
    ):  # Bretagnolle and Huber: the total variation is below
        return 0.0
    if rho == math.inf:
        return math.inf
    excess = _best_order_minus_one(rho, delta)  # it may be far smaller than the rounding of the order itself
    log_order = math.log1p(excess)
    gain = math.log(excess) - log_order - (math.log(delta) + log_order) / excess
    divergence = rho + rho * excess
    return max(0.0, divergence + gain + 1e-15 * (divergence + abs(gain)))


@in_floats
def epsilon(event: DpEvent, *, delta: float, relation: Relation) -> float:
    """Return the epsilon of an event at `delta`.

    >>> round(epsilon(dp.GaussianDpEvent(1.0), delta=1e-5, relation=Relation.ADD_REMOVE), 3)
    4.728
    """
    return epsilon_of(rho(event, relation), delta)


def _best_order_minus_one(rho: float, delta: float) -> float:
    """Solve rho (a - 1)^2 = log(1 / (a delta)), where the bound's derivative in the order a vanishes."""
    limit = math.sqrt(-math.log(delta) / rho)
    if limit < 1e-9:  # so close to order 1 that a in the logarithm is 1
        return limit

    def slope(excess: float) -> float:
        return rho * excess * excess + math.log1p(excess) + math.log(delta)

    return root_between(slope, 0.0, limit, xtol=1e-12 * limit)


@singledispatch
def _price(event: DpEvent, relation: Relation) -> float:
    raise UnsupportedEventError(
        f"{event} is not known to be zCDP under {relation.value}. Use the RDP or PLD accountant."
    )


@_price.register
def _(event: dp.NonPrivateDpEvent, relation: Relation) -> float:
    return math.inf


@_price.register
def _(event: dp.GaussianDpEvent, relation: Relation) -> float:
    shift = relation.diameter / event.noise_multiplier
    return shift * shift / 2


@_price.register
def _(event: events.DiscreteGaussianDpEvent, relation: Relation) -> float:
    shift = relation.diameter * event.sensitivity / event.stddev
    return shift * shift / 2


@_price.register(events.SkellamDpEvent)
@_price.register(events.SummedDiscreteGaussianDpEvent)
def _(event: DpEvent, relation: Relation) -> float:
    shift = relation.diameter * integer_noise.shift(event)
    return shift * shift / 2


@_price.register
def _(event: dp.LaplaceDpEvent, relation: Relation) -> float:
    """Return epsilon + e^-epsilon - 1, the KL divergence (Harrison and Manurangsi 2025, arXiv:2510.25746)."""
    shift = relation.diameter / event.noise_multiplier
    if shift < _SERIES:
        return shift * shift / 2 * (1 - shift / 3 + shift * shift / 12)  # alternating: stops above the sum
    return shift + math.expm1(-shift)


@_price.register(dp.DiscreteLaplaceDpEvent)
@_price.register(dp.RandomizedResponseDpEvent)
@_price.register(events.PureDpEvent)
@_price.register(events.SparseVectorDpEvent)
@_price.register(dp.PoissonSampledDpEvent)
@_price.register(dp.SampledWithoutReplacementDpEvent)
def _(event: DpEvent, relation: Relation) -> float:
    epsilon, delta = composition.basic(event, relation)
    if delta > 0:
        raise UnsupportedEventError(
            f"{event} has a delta of its own, so it is not zCDP. Use the RDP or PLD accountant."
        )
    return epsilon * math.tanh(epsilon / 2)


@_price.register
def _(event: events.ExponentialDpEvent, relation: Relation) -> float:
    """Bounded range gives epsilon^2 / 8 (Cesar and Rogers 2021); for huge epsilons pure DP gives less."""
    return min(event.epsilon * event.epsilon / 8, event.epsilon * math.tanh(event.epsilon / 2))


@_price.register
def _(event: dp.ZCDpEvent, relation: Relation) -> float:
    if event.xi > 0:
        raise UnsupportedEventError(
            f"{event} has an additive part xi, which one rho cannot hold. Use the RDP accountant."
        )
    return event.rho


@_price.register
def _(event: events.ParallelDpEvent, relation: Relation) -> float:
    composition.require_disjoint_parts(event, relation)
    return max((rho(part, relation) for part in event.events), default=0.0)
