# SPDX-License-Identifier: Apache-2.0
"""Events: what a computation does, in privacy terms.

The language is `dp_accounting.DpEvent`; this module adds the events it lacks, and the three things every
accountant and the ledger need of any event: `check` it, flatten it to `leaves`, write it as JSON.

Scale      Noise in an event is relative to the norm bound of ONE unit's contribution, as in dp_accounting's
           docstrings, whatever the relation. Under replace-one and replace-label neighbors the accountants
           let the sum move by twice that bound.
Epsilon    Events that carry an epsilon of their own (pure, approximate, exponential, sparse vector) state it
           under the relation they are accounted with.
"""

import json
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import singledispatch
from typing import Any

import attrs
from dp_accounting import dp_event as dp
from dp_accounting.dp_event import DpEvent

from sfumato import _check
from sfumato.errors import InvalidParameterError, UnsupportedEventError

__all__ = [
    "ApproximateDpEvent",
    "DiscreteGaussianDpEvent",
    "DpEvent",
    "ExponentialDpEvent",
    "ParallelDpEvent",
    "PureDpEvent",
    "SparseVectorDpEvent",
    "UnsampledDpEvent",
    "check",
    "compose",
    "dp_sgd",
    "from_json",
    "leaves",
    "to_json",
    "walk",
]


@attrs.frozen(slots=True)
class PureDpEvent(DpEvent):
    """Any epsilon-differentially private mechanism, nothing else being known of it."""

    epsilon: float


@attrs.frozen(slots=True)
class ApproximateDpEvent(DpEvent):
    """Any (epsilon, delta)-differentially private mechanism, nothing else being known of it."""

    epsilon: float
    delta: float


@attrs.frozen(slots=True)
class ExponentialDpEvent(DpEvent):
    """The exponential mechanism, or any other mechanism with epsilon-bounded range.

    Bounded range: the privacy losses of two neighbors lie in one interval of length epsilon (Durfee and
    Rogers 2019). It is stronger than epsilon-DP and composes better.
    """

    epsilon: float


@attrs.frozen(slots=True)
class SparseVectorDpEvent(DpEvent):
    """A sparse vector run: noisy threshold, noisy comparisons, and numeric answers where they are given.

    Each part is pure DP and the parts add up, whatever the number of queries below the threshold (Lyu, Su
    and Li 2017, Theorems 4 and 5).
    """

    threshold_epsilon: float
    comparison_epsilon: float
    answer_epsilon: float = 0.0

    @property
    def epsilon(self) -> float:
        """The pure cost of the whole run."""
        return self.threshold_epsilon + self.comparison_epsilon + self.answer_epsilon


@attrs.frozen(slots=True)
class DiscreteGaussianDpEvent(DpEvent):
    """Discrete Gaussian noise on a sum of integer vectors.

    Noise is drawn per coordinate with probability proportional to exp(-x^2 / (2 stddev^2)) on the integers;
    one unit contributes an integer vector of L2 norm at most `sensitivity` (Canonne, Kamath, Steinke 2020).
    """

    stddev: float
    sensitivity: float
    dimension: int = 1


@attrs.frozen(slots=True)
class ParallelDpEvent(DpEvent):
    """Mechanisms on disjoint parts of the data: each unit is in exactly one part, fixed by public rules.

    Adding, removing or zeroing a unit touches one part, so the cost is the dearest part's. Replacing a unit
    may touch two parts, so accountants refuse this event under replace-one. Under replace-label the rule that
    makes the parts must not look at labels: they are what is private there.
    """

    events: Sequence[DpEvent]


@attrs.frozen(slots=True)
class UnsampledDpEvent(DpEvent):
    """A mechanism on all of the data, whose bound says how far neighbors are apart and nothing more.

    Values in [0, 1] move a sum by at most 1 when one is replaced, so half of that is stated as the bound of
    one contribution. It is not: a unit that is absent from a sample moves the sum by up to 1. So this event
    costs what `event` costs, and must not stand inside a sampling event.
    """

    event: DpEvent


def compose(*parts: DpEvent) -> DpEvent:
    """Return one event for all `parts`, run one after the other.

    >>> compose(PureDpEvent(1.0), PureDpEvent(1.0))
    SelfComposedDpEvent(event=PureDpEvent(epsilon=1.0), count=2)
    """
    counted = leaves(dp.ComposedDpEvent(list(parts)), unwrap=False)
    if not counted:
        return dp.NoOpDpEvent()
    repeated = [dp.SelfComposedDpEvent(e, n) if n > 1 else e for e, n in counted.items()]
    return repeated[0] if len(repeated) == 1 else dp.ComposedDpEvent(repeated)


def dp_sgd(*, noise_multiplier: float, sampling_rate: float, steps: int) -> DpEvent:
    """Return the event of `steps` Poisson-sampled Gaussian sums, as DP-SGD takes them.

    >>> dp_sgd(noise_multiplier=1.1, sampling_rate=1.0, steps=3)
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=1.1), count=3)
    """
    _check.positive(noise_multiplier=noise_multiplier)
    _check.rate(sampling_rate=sampling_rate)
    _check.count(steps=steps)
    step: DpEvent = dp.GaussianDpEvent(noise_multiplier)
    if sampling_rate < 1:
        step = dp.PoissonSampledDpEvent(sampling_rate, step)
    return dp.SelfComposedDpEvent(step, steps)


# --- check: every parameter of an event is sensible -----------------------------------------------------


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


def _check_may_be_sampled(event: DpEvent) -> None:
    if any(isinstance(part, UnsampledDpEvent) for part in walk(event)):
        raise UnsupportedEventError(
            "a mechanism whose sensitivity is stated between neighbors that replace a unit says nothing of a "
            "unit that is absent, so it must not be sampled. Bound each unit's contribution, and state the "
            "noise relative to that bound: GaussianDpEvent(stddev / bound)."
        )


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


# --- leaves: a composition as counted parts -------------------------------------------------------------


def leaves(event: DpEvent, *, unwrap: bool = True) -> dict[DpEvent, int]:
    """Check an event and flatten its compositions to `{part: how often}`, equal parts counted together.

    Parts of an `UnsampledDpEvent` come without that wrapper, which is not about cost, if `unwrap` is True.

    >>> e = PureDpEvent(0.5)
    >>> leaves(dp.ComposedDpEvent([e, dp.SelfComposedDpEvent(e, 3), dp.NoOpDpEvent()]))
    {PureDpEvent(epsilon=0.5): 4}
    """
    check(event)
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
    if isinstance(event, dp.PoissonSampledDpEvent | dp.SampledWithoutReplacementDpEvent):
        return attrs.evolve(event, event=_single(event.event))
    return event


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
    """Whether the event gives any protection at all (False once a `NonPrivateDpEvent` is in it)."""
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
