# SPDX-License-Identifier: Apache-2.0
"""Events: what a computation does, in terms of privacy.

The language is `dp_accounting.DpEvent`. This module adds the events it lacks, and three functions that every
accountant and the ledger need: `check` an event, flatten it to `leaves`, and write it as JSON.

Noise in an event is relative to the norm bound of ONE unit's contribution, as in dp_accounting's docstrings,
whatever the relation. Under replace-one and replace-label neighbors the accountants let the sum move by twice
that bound. Events that carry an epsilon of their own (pure, approximate, exponential, sparse vector) state it
under the relation they are accounted with.
"""

import json
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import attrs
import numpy as np

from sfumato import _check
from sfumato.accounting.checks import check, require_plain_numbers, walk
from sfumato.accounting.extremes import in_floats
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

__all__ = [
    "ApproximateDpEvent",
    "DiscreteGaussianDpEvent",
    "DpEvent",
    "ExponentialDpEvent",
    "JohnsonLindenstraussDpEvent",
    "ObjectivePerturbationDpEvent",
    "ParallelDpEvent",
    "PureDpEvent",
    "SelectionDpEvent",
    "SkellamDpEvent",
    "SparseVectorDpEvent",
    "SummedDiscreteGaussianDpEvent",
    "TruncatedPoissonSampledDpEvent",
    "UnsampledDpEvent",
    "check",
    "coarsen",
    "compose",
    "dp_sgd",
    "dp_sgd_schedule",
    "from_json",
    "gaussian_scale",
    "is_private",
    "leaves",
    "poisson_sampled",
    "to_json",
    "walk",
]


def compose(*parts: DpEvent) -> DpEvent:
    """Return one event for several that are run one after the other.

    Args:
        parts: The events.

    Returns:
        The composition; equal events are counted together.

    Raises:
        InvalidParameterError: If an event is malformed.

    >>> compose(PureDpEvent(1.0), PureDpEvent(1.0))
    SelfComposedDpEvent(event=PureDpEvent(epsilon=1.0), count=2)
    """
    counted = leaves(dp.ComposedDpEvent(list(parts)), unwrap=False)
    if not counted:
        return dp.NoOpDpEvent()
    repeated = [dp.SelfComposedDpEvent(e, n) if n > 1 else e for e, n in counted.items()]
    return repeated[0] if len(repeated) == 1 else dp.ComposedDpEvent(repeated)


@in_floats
def dp_sgd(*, noise_multiplier: float, sampling_rate: float, steps: int) -> DpEvent:
    """Return the event of a DP-SGD run: Gaussian sums over Poisson samples.

    Args:
        noise_multiplier: Standard deviation of the noise over the clip norm.
        sampling_rate: The chance that a unit is in one batch, above 0 and at most 1.
        steps: The number of noisy updates.

    Returns:
        The event of the whole run.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> dp_sgd(noise_multiplier=1.1, sampling_rate=1.0, steps=3)
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=1.1), count=3)
    """
    _check.positive(noise_multiplier=noise_multiplier)
    _check.count(steps=steps)
    step = poisson_sampled(dp.GaussianDpEvent(noise_multiplier), sampling_rate=sampling_rate)
    return dp.SelfComposedDpEvent(step, steps)


@in_floats
def dp_sgd_schedule(schedule: Sequence[tuple[float, int]], *, sampling_rate: float) -> DpEvent:
    """Return the event of a DP-SGD run whose noise changes.

    Equal noises are counted together, wherever they stand: the cost does not depend on the order. If there
    are more than a hundred different noises, similar ones are merged (see `coarsen`).

    Args:
        schedule: Pairs of (noise_multiplier, steps).
        sampling_rate: The chance that a unit is in one batch, above 0 and at most 1.

    Returns:
        The event of the whole run.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> dp_sgd_schedule([(2.0, 100), (1.0, 50), (2.0, 1)], sampling_rate=1.0).events[0]
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=101)
    """
    coarse = coarsen(schedule)
    return compose(*(dp_sgd(noise_multiplier=s, sampling_rate=sampling_rate, steps=n) for s, n in coarse))


@in_floats
def coarsen(schedule: Sequence[tuple[float, int]], *, levels: int = 100) -> list[tuple[float, int]]:
    """Return a schedule with fewer different noises, none above what it was.

    Less noise costs more, so the price of the result is valid for the original, and is found in seconds.
    Equal neighbors become one entry; the order stays.

    Args:
        schedule: Pairs of (noise_multiplier, steps).
        levels: The largest number of different noises.

    Returns:
        The new schedule.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> coarsen([(3.0, 1), (2.9, 1), (1.0, 5)], levels=2)
    [(3.0, 1), (1.0, 6)]
    """
    _check.count(levels=levels)
    for noise_multiplier, steps in schedule:
        _check.positive(noise_multiplier=noise_multiplier)
        _check.count(steps=steps)
    different = sorted({float(noise) for noise, _ in schedule})
    if len(different) > levels:
        knots = np.geomspace(different[0], different[-1], levels)
        below = np.maximum(np.searchsorted(knots, different, side="right") - 1, 0)
        kept = {s: min(s, float(knots[i])) for s, i in zip(different, below, strict=True)}
        schedule = [(kept[float(noise)], steps) for noise, steps in schedule]
    return [(noise, sum(n for _, n in run)) for noise, run in groupby(schedule, key=lambda entry: entry[0])]


def poisson_sampled(event: DpEvent, *, sampling_rate: float) -> DpEvent:
    """Return an event on a Poisson sample; at rate 1, when every unit is in it, the event itself."""
    _check.rate(sampling_rate=sampling_rate)
    return event if sampling_rate == 1 else dp.PoissonSampledDpEvent(sampling_rate, event)


# --- leaves: a composition as counted parts -------------------------------------------------------------


def leaves(event: DpEvent, *, unwrap: bool = True) -> dict[DpEvent, int]:
    """Check an event and flatten its compositions to `{part: how often}`, equal parts counted together.

    Parts of an `UnsampledDpEvent` come without that wrapper, which is not about cost, if `unwrap` is True.

    >>> e = PureDpEvent(0.5)
    >>> leaves(dp.ComposedDpEvent([e, dp.SelfComposedDpEvent(e, 3), dp.NoOpDpEvent()]))
    {PureDpEvent(epsilon=0.5): 4}
    """
    check(event)
    require_plain_numbers(event)
    counted: dict[DpEvent, int] = {}
    _count(event, 1, counted, unwrap)
    return counted


def _count(event: DpEvent, times: int, counted: dict[DpEvent, int], unwrap: bool) -> None:
    if isinstance(event, dp.NoOpDpEvent):
        return
    if isinstance(event, UnsampledDpEvent):
        for part, repeats in leaves(event.event, unwrap=unwrap).items():
            kept = part if unwrap or isinstance(part, UnsampledDpEvent) else UnsampledDpEvent(part)
            counted[kept] = counted.get(kept, 0) + times * repeats
    elif isinstance(event, dp.SelfComposedDpEvent):
        _count(event.event, times * event.count, counted, unwrap)
    elif isinstance(event, dp.ComposedDpEvent):
        for part in event.events:
            _count(part, times, counted, unwrap)
    else:
        leaf = _hashable(event)
        counted[leaf] = counted.get(leaf, 0) + times


def _hashable(event: DpEvent) -> DpEvent:
    """Return an equal event whose lists are tuples and whose inner composition is flattened."""
    if isinstance(event, ParallelDpEvent):
        return ParallelDpEvent(tuple(_single(part) for part in event.events))
    if isinstance(event, SelectionDpEvent):
        return attrs.evolve(event, events=tuple(_single(part) for part in event.events))
    if isinstance(event, _SAMPLED):
        return attrs.evolve(event, event=_single(event.event))
    return event


_SAMPLED = (dp.PoissonSampledDpEvent, dp.SampledWithoutReplacementDpEvent, TruncatedPoissonSampledDpEvent)


def _single(event: DpEvent) -> DpEvent:
    counted = leaves(event, unwrap=False)
    repeated = tuple(dp.SelfComposedDpEvent(e, n) if n > 1 else e for e, n in counted.items())
    if not repeated:
        return dp.NoOpDpEvent()
    return repeated[0] if len(repeated) == 1 else dp.ComposedDpEvent(repeated)  # type: ignore[arg-type]


# --- JSON ------------------------------------------------------------------------------------------------

_TYPES: Mapping[str, type[DpEvent]] = {
    cls.__name__: cls
    for cls in (
        dp.NoOpDpEvent,
        dp.NonPrivateDpEvent,
        dp.GaussianDpEvent,
        dp.LaplaceDpEvent,
        dp.DiscreteLaplaceDpEvent,
        dp.RandomizedResponseDpEvent,
        dp.ZCDpEvent,
        dp.PoissonSampledDpEvent,
        dp.SampledWithoutReplacementDpEvent,
        dp.SelfComposedDpEvent,
        dp.ComposedDpEvent,
        PureDpEvent,
        ApproximateDpEvent,
        ExponentialDpEvent,
        SparseVectorDpEvent,
        DiscreteGaussianDpEvent,
        ParallelDpEvent,
        UnsampledDpEvent,
        TruncatedPoissonSampledDpEvent,
        JohnsonLindenstraussDpEvent,
        ObjectivePerturbationDpEvent,
        SelectionDpEvent,
        SkellamDpEvent,
        SummedDiscreteGaussianDpEvent,
    )
}


def to_json(event: DpEvent) -> str:
    """Write an event as JSON, keys sorted, so that equal events give equal text.

    >>> to_json(dp.GaussianDpEvent(1.1))
    '{"noise_multiplier": 1.1, "type": "GaussianDpEvent"}'
    """
    check(event)
    return json.dumps(_to_plain(event), sort_keys=True, allow_nan=False)


def _to_plain(value: Any) -> Any:
    if isinstance(value, DpEvent):
        fields = attrs.fields(type(value))  # type: ignore[arg-type]
        plain = {f.name: _to_plain(getattr(value, f.name)) for f in fields}
        floats = {f.name: float(plain[f.name]) for f in fields if f.type in (float, "float")}
        return {"type": type(value).__name__} | plain | floats  # a noise of 1 and of 1.0 read the same
    if isinstance(value, list | tuple):
        return [_to_plain(v) for v in value]
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def from_json(text: str) -> DpEvent:
    """Read an event back; raise `InvalidParameterError` on anything that `to_json` could not have written."""
    try:
        event = _from_plain(json.loads(text, parse_constant=_no_constant))
        if not isinstance(event, DpEvent):
            raise ValueError("it is not an object with a type")
        check(event)
    except UnsupportedEventError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidParameterError(f"not an event in JSON: {error}") from error
    return event


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        fields = dict(value)
        cls: Callable[..., DpEvent] = _TYPES[fields.pop("type")]
        return cls(**{k: _from_plain(v) for k, v in fields.items()})
    if isinstance(value, list):
        return [_from_plain(v) for v in value]
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a parameter")


def is_private(event: DpEvent) -> bool:
    """Return whether the event gives any protection (False once a `NonPrivateDpEvent` is in it)."""
    return not any(isinstance(part, dp.NonPrivateDpEvent) for part in walk(event))


def gaussian_scale(event: DpEvent) -> float | None:
    """Return the noise multiplier of an event that is exactly a Gaussian mechanism, else None.

    A composition of Gaussians of multipliers s_i is one Gaussian of multiplier (sum s_i^-2)^-1/2.
    """
    counted = leaves(event)
    scales = [(e.noise_multiplier, n) for e, n in counted.items() if isinstance(e, dp.GaussianDpEvent)]
    if not scales or len(scales) < len(counted):
        return None
    least = min(scale for scale, _ in scales)  # relative to it no square overflows
    return least / math.sqrt(math.fsum(n * (least / scale) ** 2 for scale, n in scales))
