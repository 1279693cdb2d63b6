# SPDX-License-Identifier: Apache-2.0
"""Events in words, for people who must judge a claim: what noise, how often, on which sample.

Every number in an event is public: it is what was charged. Noise is rounded down and rates are rounded up, so
that no sentence claims more protection than the event.
"""

import math
from collections.abc import Callable
from typing import Any

from sfumato.accounting import kinds
from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.accounting.upstream import DpEvent
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import UnsupportedEventError

__all__ = ["proved_by", "told"]

_MOST_PARTS = 6  # of a composition; the rest is counted
_SAME = 1 + 1e-6  # two accountants' roundings of one price


def told(event: DpEvent) -> str:
    """Return an event as part of a sentence.

    >>> from sfumato.accounting.events import dp_sgd
    >>> told(dp_sgd(noise_multiplier=1.1, sampling_rate=0.01, steps=300))
    '300 times: on a Poisson sample at rate 0.01: Gaussian noise of 1.1 times the sensitivity'
    """
    words = _WORDS.get(type(event))
    return f"an event of kind {type(event).__name__}" if words is None else words(event)


def proved_by(event: DpEvent, guarantee: Guarantee) -> tuple[str | None, str]:
    """Return the accountant and the theorem that prove a guarantee of an event; None and "" if none does.

    >>> from sfumato.accounting import Relation
    >>> promise = Guarantee(epsilon=1.0, delta=0.0, relation=Relation.ADD_REMOVE, privacy_unit="row")
    >>> proved_by(kinds.PureDpEvent(1.0), promise)[0]
    'basic'
    """
    from sfumato.accounting import composition  # heavy, and not needed for words
    from sfumato.accounting.price import Accountant, price

    if not math.isfinite(guarantee.epsilon):
        return None, ""
    try:
        if guarantee.delta == 0:
            paid = composition.basic_epsilon(event, delta=0.0, relation=guarantee.relation)
            name, theorem = Accountant.BASIC.value, Accountant.BASIC.theorem
        else:
            found = price(event, delta=guarantee.delta, relation=guarantee.relation)
            paid, name, theorem = found.epsilon, found.accountant.value, found.theorem
    except UnsupportedEventError:
        return None, ""
    return (name, theorem) if paid <= guarantee.epsilon * _SAME else (None, "")


def _up(value: float) -> str:
    return f"{round_up(value):g}"


def _down(value: float) -> str:
    return f"{-round_up(-value):g}"


def _listed(parts: Any, between: str) -> str:
    shown = [told(part) for part in parts[:_MOST_PARTS]]
    rest = len(parts) - len(shown)
    return between.join([*shown, f"and {rest} more"] if rest else shown)


def _sparse(event: kinds.SparseVectorDpEvent) -> str:
    total = event.threshold_epsilon + event.comparison_epsilon + event.answer_epsilon
    return f"a sparse vector of epsilon {_up(total)}"


def _truncated(event: kinds.TruncatedPoissonSampledDpEvent) -> str:
    rate = _up(event.sampling_probability)
    return f"on a Poisson sample at rate {rate}, of at most {event.batch_size}: {told(event.event)}"


def _fixed(event: Any) -> str:
    size, whole = event.sample_size, event.source_dataset_size
    return f"on {size} of {whole} units without replacement: {told(event.event)}"


def _integers(law: str) -> Callable[[Any], str]:
    return lambda event: f"{law} noise of {_down(event.stddev)}, at a sensitivity of {_up(event.sensitivity)}"


def _skellam(event: kinds.SkellamDpEvent) -> str:
    return f"Skellam noise of variance {_down(event.variance)}, at a sensitivity of {_up(event.sensitivity)}"


def _scaled(law: str) -> Callable[[Any], str]:
    return lambda event: f"{law} noise of {_down(event.noise_multiplier)} times the sensitivity"


_WORDS: dict[type, Callable[[Any], str]] = {
    dp.NoOpDpEvent: lambda _: "nothing private",
    dp.NonPrivateDpEvent: lambda _: "a release without protection",
    dp.GaussianDpEvent: _scaled("Gaussian"),
    dp.LaplaceDpEvent: _scaled("Laplace"),
    dp.DiscreteLaplaceDpEvent: lambda event: (
        f"discrete Laplace noise of rate {_up(event.noise_parameter)}, at a sensitivity of "
        f"{_up(event.sensitivity)}"
    ),
    dp.RandomizedResponseDpEvent: lambda event: (
        f"randomized response among {event.num_buckets} values, uniform with probability "
        f"{_down(event.noise_parameter)}"
    ),
    dp.ComposedDpEvent: lambda event: _listed(event.events, "; then "),
    dp.SelfComposedDpEvent: lambda event: f"{event.count} times: {told(event.event)}",
    dp.PoissonSampledDpEvent: lambda event: (
        f"on a Poisson sample at rate {_up(event.sampling_probability)}: {told(event.event)}"
    ),
    dp.SampledWithoutReplacementDpEvent: _fixed,
    kinds.PureDpEvent: lambda event: f"a mechanism of epsilon {_up(event.epsilon)}",
    kinds.ApproximateDpEvent: lambda event: (
        f"a mechanism of epsilon {_up(event.epsilon)} and delta {_up(event.delta)}"
    ),
    kinds.ExponentialDpEvent: lambda event: f"an exponential mechanism of epsilon {_up(event.epsilon)}",
    kinds.SparseVectorDpEvent: _sparse,
    kinds.DiscreteGaussianDpEvent: _integers("discrete Gaussian"),
    kinds.SummedDiscreteGaussianDpEvent: _integers("summed discrete Gaussian"),
    kinds.SkellamDpEvent: _skellam,
    kinds.ParallelDpEvent: lambda event: f"on disjoint parts of the data: {_listed(event.events, '; ')}",
    kinds.UnsampledDpEvent: lambda event: told(event.event),
    kinds.TruncatedPoissonSampledDpEvent: _truncated,
    kinds.JohnsonLindenstraussDpEvent: lambda event: (
        f"Gaussian noise of {_down(event.noise_multiplier)} times a sensitivity estimated by "
        f"{event.projections} projections"
    ),
    kinds.ObjectivePerturbationDpEvent: lambda event: (
        f"noise of {_down(event.noise_multiplier)} times the sensitivity in an objective that is minimized"
    ),
    kinds.SelectionDpEvent: lambda event: f"the best of several tries of: {_listed(event.events, '; ')}",
}
