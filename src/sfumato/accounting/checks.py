# SPDX-License-Identifier: Apache-2.0
"""Checks that an event is well-formed, one small function for each kind.

`accounting.events` re-exports `check` and `walk`.
"""

import numbers
import sys
from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import attrs

from sfumato import _check
from sfumato.accounting.kinds import (
    ApproximateDpEvent,
    DiscreteGaussianDpEvent,
    ExponentialDpEvent,
    JohnsonLindenstraussDpEvent,
    ObjectivePerturbationDpEvent,
    ParallelDpEvent,
    PureDpEvent,
    SelectionDpEvent,
    SkellamDpEvent,
    SparseVectorDpEvent,
    SummedDiscreteGaussianDpEvent,
    TruncatedPoissonSampledDpEvent,
    UnsampledDpEvent,
)
from sfumato.accounting.upstream import DpEvent
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError, UnsupportedEventError

__all__ = ["check", "require_plain_numbers", "walk"]


@singledispatch
def check(event: DpEvent) -> None:
    """Raise a specific error unless the event and everything in it is well-formed."""
    raise UnsupportedEventError(
        f"sfumato has no accounting for events of type {type(event).__name__}. "
        "Use an event from sfumato.accounting, or ApproximateDpEvent with a proven (epsilon, delta)."
    )


@check.register(dp.NoOpDpEvent)
@check.register(dp.NonPrivateDpEvent)
def _(event: DpEvent) -> None:
    pass


@check.register(dp.GaussianDpEvent)
@check.register(dp.LaplaceDpEvent)
def _(event: Any) -> None:
    _check.positive(noise_multiplier=event.noise_multiplier)


@check.register
def _(event: dp.DiscreteLaplaceDpEvent) -> None:
    _check.positive(noise_parameter=event.noise_parameter)
    _check.count(sensitivity=event.sensitivity)


@check.register
def _(event: dp.RandomizedResponseDpEvent) -> None:
    _check.rate(noise_parameter=event.noise_parameter)
    _check.count(num_buckets=event.num_buckets)
    if event.num_buckets < 2:
        raise InvalidParameterError(f"num_buckets must be 2 or more, but {event.num_buckets!r} was given.")


@check.register
def _(event: dp.ZCDpEvent) -> None:
    _check.non_negative(rho=event.rho, xi=event.xi)


@check.register(PureDpEvent)
@check.register(ExponentialDpEvent)
def _(event: Any) -> None:
    _check.positive(epsilon=event.epsilon)


@check.register
def _(event: ApproximateDpEvent) -> None:
    _check.non_negative(epsilon=event.epsilon)
    _check.probability(delta=event.delta)


@check.register
def _(event: SparseVectorDpEvent) -> None:
    _check.positive(threshold_epsilon=event.threshold_epsilon, comparison_epsilon=event.comparison_epsilon)
    _check.non_negative(answer_epsilon=event.answer_epsilon)


@check.register
def _(event: DiscreteGaussianDpEvent) -> None:
    _check.positive(stddev=event.stddev, sensitivity=event.sensitivity)
    _check.count(dimension=event.dimension)


@check.register
def _(event: SkellamDpEvent) -> None:
    _check.positive(variance=event.variance, sensitivity=event.sensitivity)


@check.register
def _(event: SummedDiscreteGaussianDpEvent) -> None:
    _check.positive(stddev=event.stddev, sensitivity=event.sensitivity)
    _check.count(summands=event.summands)


@check.register
def _(event: JohnsonLindenstraussDpEvent) -> None:
    _check.positive(noise_multiplier=event.noise_multiplier)
    _check.count(projections=event.projections)


@check.register
def _(event: ObjectivePerturbationDpEvent) -> None:
    _check.positive(noise_multiplier=event.noise_multiplier, curvature=event.curvature)


@check.register
def _(event: SelectionDpEvent) -> None:
    _check.probability(stop=event.stop)
    _check.finite(shape=event.shape)
    if not event.shape > -1:
        raise InvalidParameterError(f"shape must be above -1, but {event.shape!r} was given.")
    if not event.events:
        raise InvalidParameterError("a selection needs at least one event to choose from.")
    for part in event.events:
        check(part)


@check.register
def _(event: UnsampledDpEvent) -> None:
    check(event.event)


@check.register
def _(event: dp.PoissonSampledDpEvent) -> None:
    _check.rate(sampling_rate=event.sampling_probability)
    check(event.event)
    _check_may_be_sampled(event.event)


@check.register
def _(event: dp.SampledWithoutReplacementDpEvent) -> None:
    _check.count(source_dataset_size=event.source_dataset_size, sample_size=event.sample_size)
    if event.sample_size > event.source_dataset_size:
        raise InvalidParameterError(
            f"sample_size must be at most source_dataset_size={event.source_dataset_size}, "
            f"but {event.sample_size} was given."
        )
    check(event.event)
    _check_may_be_sampled(event.event)


@check.register
def _(event: TruncatedPoissonSampledDpEvent) -> None:
    _check.rate(sampling_rate=event.sampling_probability)
    _check.count(batch_size=event.batch_size, public_size=event.public_size)
    check(event.event)
    _check_may_be_sampled(event.event)


def _check_may_be_sampled(event: DpEvent) -> None:
    if any(isinstance(part, UnsampledDpEvent) for part in walk(event)):
        raise UnsupportedEventError(
            "a mechanism whose sensitivity is stated between neighbors that replace a unit says nothing of a "
            "unit that is absent, so it must not be sampled. Bound each unit's contribution, and state the "
            "noise relative to that bound: GaussianDpEvent(stddev / bound)."
        )


def require_plain_numbers(event: DpEvent) -> None:
    """Raise unless every number in an event is a float or a whole number that a float holds."""
    for part in walk(event):
        for field in attrs.fields(type(part)):
            value = getattr(part, field.name)
            if isinstance(value, numbers.Real) and not _is_plain(value):
                raise InvalidParameterError(
                    f"{field.name} of a {type(part).__name__} must be a float, or a whole number up to "
                    f"1e308, but a {type(value).__name__} that is neither was given. Convert it with float()."
                )


def _is_plain(value: numbers.Real) -> bool:
    if not isinstance(value, numbers.Integral):
        return not isinstance(value, numbers.Rational)
    return abs(int(value)) <= sys.float_info.max


def walk(event: DpEvent) -> Iterator[DpEvent]:
    """Yield the event and everything inside it."""
    inside = [event]
    while inside:
        part = inside.pop()
        yield part
        inside += getattr(part, "events", ())
        inside += [part.event] if hasattr(part, "event") else []  # type: ignore[attr-defined]


@check.register
def _(event: dp.SelfComposedDpEvent) -> None:
    _check.count(count=event.count)
    check(event.event)


@check.register(dp.ComposedDpEvent)
@check.register(ParallelDpEvent)
def _(event: Any) -> None:
    for part in event.events:
        check(part)
