# SPDX-License-Identifier: Apache-2.0
"""Dominating pairs of events: two distributions that stand for a mechanism under a relation.

Guarantee  The pair dominates every mechanism that the event describes, under the relation (`pairs`).
Neighbors  One pair for each direction: (M(D), M(D')) and (M(D'), M(D)), D being the data set with the unit in
           it. Both are the same object where the pair is symmetric.
Failure    If no such pair is known, `UnsupportedEventError` is raised. Another accountant may have a bound.
"""

import math
from collections.abc import Sequence
from functools import singledispatch

import numpy as np

from sfumato.accounting import events, integer_noise, perturbation
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.mixtures import Mixture, projected_shifts, truncation_chance
from sfumato.accounting.pairs import (
    Atoms,
    BoundedRange,
    FixedSize,
    Gaussian,
    Laplace,
    Pair,
    PoissonAdd,
    PoissonRemove,
    PoissonReplace,
)
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import UnsupportedEventError

__all__ = ["all_symmetric", "dominating"]


def dominating(event: DpEvent, relation: Relation) -> tuple[Pair, Pair]:
    """Return the dominating pairs of one leaf event, for removing and for adding a unit.

    >>> dominating(dp.GaussianDpEvent(2.0), Relation.REPLACE_ONE)[0]
    Gaussian(mu=1.0, attained=True, lattice=None)
    """
    return _dominating(event, relation)


def _unsupported(event: DpEvent, relation: Relation, fix: str = "") -> UnsupportedEventError:
    return UnsupportedEventError(
        f"the PLD accountant has no dominating pair for {type(event).__name__} "
        f"under {relation.value} neighbors. "
        + (fix or "Use the RDP accountant, or leave the choice of accountant to `price`.")
    )


@singledispatch
def _dominating(event: DpEvent, relation: Relation) -> tuple[Pair, Pair]:
    raise _unsupported(event, relation)


@_dominating.register
def _(event: dp.GaussianDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = Gaussian(relation.diameter / event.noise_multiplier)
    return pair, pair


@_dominating.register
def _(event: dp.LaplaceDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = Laplace(relation.diameter / event.noise_multiplier)
    return pair, pair


@_dominating.register
def _(event: dp.DiscreteLaplaceDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    shift = relation.diameter * int(event.sensitivity)
    a = event.noise_parameter
    if shift > 1_000_000:
        raise _unsupported(event, relation, "Its sensitivity is above 1e6: use a coarser grid.")
    # Outcomes x <= 0 all have the largest loss, x >= shift the least; between them one atom each.
    x = np.arange(1, shift)
    unit = math.tanh(a / 2)
    tail = 1 / (1 + math.exp(-a))  # P[noise <= 0]
    p = np.concatenate([[tail], unit * np.exp(-a * x), [tail * math.exp(-a * shift)]])
    pair = Atoms(p, p[::-1].copy(), lattice=a if shift % 2 else 2 * a)
    return pair, pair


@_dominating.register
def _(event: dp.RandomizedResponseDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    if not relation.replaces:
        raise _unsupported(event, relation, "A unit that is absent sends no report: use replace-one.")
    other = event.noise_parameter / event.num_buckets
    kept = 1 - event.noise_parameter + other
    rest = (event.num_buckets - 2) * other
    atoms = [kept, other] + ([rest] if event.num_buckets > 2 else [])
    p = np.array(atoms)
    q = np.array([other, kept, *atoms[2:]])
    pair = Atoms(p, q, lattice=math.log(kept / other) if kept > other else None)
    return pair, pair


def _two_points(epsilon: float, delta: float = 0.0, *, attained: bool = True) -> Pair:
    """Return the pair that dominates every (epsilon, delta)-DP mechanism (Kairouz, Oh, Viswanath 2015)."""
    high = (1 - delta) / (1 + math.exp(-epsilon))
    low = (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))
    if delta == 0:
        return Atoms(np.array([high, low]), np.array([low, high]), epsilon or None, attained)
    return Atoms(
        np.array([delta, high, low, 0.0]), np.array([0.0, low, high, delta]), lattice=epsilon or None
    )


@_dominating.register
def _(event: events.PureDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = _two_points(event.epsilon)
    return pair, pair


@_dominating.register
def _(event: events.SparseVectorDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = _two_points(event.epsilon, attained=False)  # a run is not randomized response
    return pair, pair


@_dominating.register
def _(event: events.ApproximateDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = _two_points(event.epsilon, event.delta)
    return pair, pair


@_dominating.register
def _(event: events.ExponentialDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = BoundedRange(event.epsilon)
    return pair, pair


MOST_STDDEV = 20_000.0  # grid units: 1.6 million atoms to 40 stddev; the RDP of a wider one is as good


@_dominating.register
def _(event: events.DiscreteGaussianDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    shift = relation.diameter * event.sensitivity
    if event.dimension != 1 or shift != int(shift):
        raise _unsupported(event, relation, "Vectors of discrete Gaussians are priced by RDP, exactly.")
    if event.stddev > MOST_STDDEV:
        raise _unsupported(
            event, relation, f"A stddev above {MOST_STDDEV:g} grid units is priced by RDP, exactly."
        )
    # Beyond 39 stddev a mass is below the smallest float64, so the atoms are all there is.
    reach = math.ceil(39 * event.stddev) + int(shift)
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    p = np.exp(-0.5 * (x / event.stddev) ** 2)
    q = np.exp(-0.5 * ((x - shift) / event.stddev) ** 2)
    # A subnormal mass has lost its digits, and its loss would be noise: as 0 it makes the loss infinite.
    p, q = (np.where(m < np.finfo(np.float64).tiny, 0.0, m) for m in (p / p.sum(), q / p.sum()))
    seen = (p > 0) | (q > 0)
    # Integer contributions do not reach a shift between two integers.
    pair = Atoms(p[seen], q[seen], attained=float(event.sensitivity).is_integer())
    return pair, pair


@_dominating.register(events.SkellamDpEvent)
@_dominating.register(events.SummedDiscreteGaussianDpEvent)
def _(event: DpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = _bounding(integer_noise.shift(event), relation)
    return pair, pair


def _bounding(mu: float, relation: Relation) -> Pair:
    """Return a Gaussian pair that dominates noise but is not reached; two disjoint outcomes at infinity."""
    if mu == math.inf:
        return Atoms(np.array([1.0, 0.0]), np.array([0.0, 1.0]), attained=False)
    return Gaussian(relation.diameter * mu, attained=False)


@_dominating.register
def _(event: events.JohnsonLindenstraussDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = _projected(event, relation)
    return pair, pair


@_dominating.register
def _(event: events.ObjectivePerturbationDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    pair = perturbation.pair(event, relation)
    return pair, pair


def _projected(event: DpEvent, relation: Relation) -> Pair:
    shifts = projected_shifts(event, relation)
    pairs = tuple(Gaussian(relation.diameter * mu) for mu in shifts.values)
    return Mixture(pairs, shifts.weights, disjoint=shifts.tail)


@_dominating.register
def _(event: dp.PoissonSampledDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    rate = event.sampling_probability
    if rate == 1:
        return _sampled(event.event, relation)
    if relation.replaces:
        pair = _replaced(event, relation)
        return pair, pair
    remove, add = _sampled(event.event, relation)
    if relation is Relation.ZERO_OUT and not all(isinstance(e, _SUMS) for e in events.leaves(event.event)):
        # Its epsilon compares the unit with a zero in its place, which may still be counted; the theorem
        # compares it with no unit at all. For noise on a sum these are the same.
        raise _unsupported(event, relation, "State it for add-remove neighbors, or without the sampling.")
    return PoissonRemove(remove, rate), PoissonAdd(add, rate)


def _replaced(event: dp.PoissonSampledDpEvent, relation: Relation) -> Pair:
    """Return the pair of a Poisson-sampled sum in which a unit is replaced: known for Gaussian noise only."""
    rate = event.sampling_probability
    if _is_projected(event.event):
        shifts = projected_shifts(event.event, relation)
        pairs = tuple(PoissonReplace(mu, rate) for mu in shifts.values)
        return Mixture(pairs, shifts.weights, disjoint=shifts.tail)
    scale = events.gaussian_scale(event.event)
    if scale is None:
        raise _unsupported(event, relation, "Only Gaussian noise is known there; use add-remove neighbors.")
    return PoissonReplace(1 / scale, rate)


@_dominating.register
def _(event: events.TruncatedPoissonSampledDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    scale = events.gaussian_scale(event.event)
    mu = 1 / scale if scale is not None else integer_noise.joint_shift(events.leaves(event.event))
    if mu is None or (scale is None and relation is not Relation.ADD_REMOVE):
        raise _unsupported(
            event,
            relation,
            "Known there: Gaussian noise; integer noise for add-remove neighbors. Else use Poisson sampling.",
        )
    rate, inside = event.sampling_probability, event.event if scale is None else dp.GaussianDpEvent(scale)
    not_full = _dominating(dp.PoissonSampledDpEvent(rate, inside), relation)
    chance = truncation_chance(rate, event.batch_size, event.public_size)
    if chance == 0 or mu == math.inf:  # outcomes that are told apart in any case do not depend on the rest
        return not_full
    full = _displaced(2 * mu, rate, relation)
    remove, add = (Mixture(pairs, (1 - chance, chance)) for pairs in zip(not_full, full, strict=True))
    return (
        (remove, remove) if not_full[0] is not_full[1] and full[0] is full[1] else (remove, add)
    )  # symmetric pairs are one object


def _displaced(mu: float, rate: float, relation: Relation) -> tuple[Pair, Pair]:
    """Return the pairs of a unit that, where it is sampled, takes the place of another one: shift `mu`.

    Two integer contributions differ by an integer vector, to which the lemma of `integer_noise` applies as it
    is: its shift grows with the norm, and sampling a unit that is absent otherwise keeps the order (step 5).
    """
    if relation is Relation.ADD_REMOVE:  # then the neighbor's batch is the one without the unit
        pair = _bounding(mu, relation)
        return (pair, pair) if rate == 1 else (PoissonRemove(pair, rate), PoissonAdd(pair, rate))
    pair = Gaussian(2 * mu, attained=False) if rate == 1 else PoissonReplace(mu, rate)
    return pair, pair


@_dominating.register
def _(event: dp.SampledWithoutReplacementDpEvent, relation: Relation) -> tuple[Pair, Pair]:
    if not relation.replaces:
        raise _unsupported(
            event, relation, "A sample of fixed size makes the number of units public: use replace-one."
        )
    inner, _same = _sampled(event.event, relation)
    if event.sample_size == event.source_dataset_size:
        return inner, inner
    if relation is Relation.REPLACE_LABEL and not all(
        isinstance(e, _SUMS) for e in events.leaves(event.event)
    ):
        # The theorem also compares samples that hold different units in the unit's place; a promise about
        # labels does not cover that, except for noise on a sum, whose norm bound covers any two units.
        raise _unsupported(event, relation, "Account it as replace-one, or without the sampling.")
    pair = FixedSize(inner, event.sample_size / event.source_dataset_size)
    return pair, pair


_SUMS = (
    dp.GaussianDpEvent,
    dp.LaplaceDpEvent,
    dp.DiscreteLaplaceDpEvent,
    events.DiscreteGaussianDpEvent,
    events.JohnsonLindenstraussDpEvent,
    *integer_noise.KINDS,
)


def _sampled(event: DpEvent, relation: Relation) -> tuple[Pair, Pair]:
    """Return the pairs of what stands inside a sampling event: one mechanism, or Gaussians of one sample."""
    if _is_projected(event):
        pair = _projected(event, relation)
        return pair, pair
    scale = events.gaussian_scale(event)
    if scale is not None:
        return _dominating(dp.GaussianDpEvent(scale), relation)
    counted = events.leaves(event)
    mu = integer_noise.joint_shift(counted)
    if mu is not None:
        pair = _bounding(mu, relation)
        return pair, pair
    if len(counted) != 1 or next(iter(counted.values())) != 1:
        raise UnsupportedEventError(
            "the PLD accountant can sample one mechanism or a composition of Gaussians, not "
            f"a composition of {sorted({type(e).__name__ for e in counted})}. Sample each on its own."
        )
    return _dominating(next(iter(counted)), relation)


def _is_projected(event: DpEvent) -> bool:
    return any(isinstance(part, events.JohnsonLindenstraussDpEvent) for part in events.leaves(event))


def all_symmetric(pairs: Sequence[tuple[Pair, Pair]]) -> bool:
    """Whether both directions are the same for every pair, so that one composition serves both."""
    return all(remove is add for remove, add in pairs)
