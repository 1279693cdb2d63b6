# SPDX-License-Identifier: Apache-2.0
"""An attack on a mechanism: many runs on two neighboring data sets, and an event that separates them.

The event may be likelier on the first data set or on the second. Its complement is tried too, which costs
nothing, as it rests on the same two counts. Runs must be independent and draw from the generator they are
given, or from one that does not repeat. Each run gets a generator of its own, so it may fork it. A claim is
about all neighbors: choose those that should be the hardest to hide.

Guarantee  The lower bound exceeds the true epsilon (at this delta, for these two data sets, hence for the
           mechanism) in at most a share 1 - confidence of audits, however the event was found. A quarter of
           the outputs trains scores, a quarter chooses one event (`event_search`), and the other half, which
           neither step used, counts how often it happens. It is one event, fixed before counting, so the
           choice needs no correction.
Not here   An error that a run raises: whether one is raised may itself reveal data, so return a value
           instead.
Source     Clopper and Pearson 1934 (`evidence.bounds`); Ding et al. 2018, "Detecting violations of
           differential privacy" (search on some runs, count on others).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato import _check
from sfumato.accounting.guarantee import Guarantee
from sfumato.audit.evidence.bounds import epsilon_from_counts, needed
from sfumato.audit.evidence.results import AuditResult, LowerBound
from sfumato.audit.evidence.terms import check_claim
from sfumato.audit.mechanisms.event_search import EVENTS, Event, EventSearch, best_event
from sfumato.audit.mechanisms.outputs import Outputs, read
from sfumato.audit.mechanisms.releases import data_of_its_own, require_two_arguments
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, resolve

__all__ = ["Run", "RunMany", "Vectorized", "audit_mechanism", "audit_outputs", "delta_of", "runs_needed"]

Run = Callable[[Any, Generator], object]  # data and generator to one output
RunMany = Callable[[Any, int, Generator], Iterable[object]]  # data, how many and generator to as many outputs

_FEWEST = 40  # outputs of each data set, for ten to learn from, ten to choose on and twenty to count


@dataclass(frozen=True, slots=True)
class Vectorized:
    """A mechanism that returns many outputs at once.

    Args:
        run_many: Called as `run_many(data, count, generator)`; returns `count` independent outputs, one for
            each row.
    """

    run_many: RunMany

    def outputs(self, data: Any, count: int, generator: Generator) -> Iterable[object]:
        """Run the mechanism.

        Args:
            data: The data set.
            count: The number of outputs.
            generator: The source of randomness.

        Returns:
            The outputs.
        """
        return self.run_many(data, count, generator)


def audit_mechanism(
    run: Run | Vectorized,
    first: Any,
    second: Any,
    *,
    trials: int = 10_000,
    delta: float | None = None,
    confidence: float = 0.95,
    claim: Guarantee | None = None,
    subject: str = "mechanism",
    generator: Generator | None = None,
    events: Sequence[EventSearch] = EVENTS,
) -> AuditResult:
    """Bound epsilon from below by runs of a mechanism on two neighboring data sets.

    Args:
        run: Called as `run(data, generator)` with a copy of the data; returns one output: a number, an array,
            None, a word, or tuples of these.
        first: A data set.
        second: A neighbor of it: one unit more or less. With more units apart, a bound refutes nothing.
        trials: The number of runs on each data set.
        delta: The delta to audit at. None is that of the claim, or 0 without a claim.
        confidence: The probability that the bound holds.
        claim: The guarantee to test, or None.
        subject: The name of the mechanism, for the report.
        generator: The source of randomness, or None for secure randomness from the operating system.
        events: The searches for events to use.

    Returns:
        The lower bound, beside the claim.

    Raises:
        InvalidParameterError: If a parameter is out of range, there are too few runs to contradict the
            claim, or data is an iterator.

    >>> from sfumato.mechanisms import laplace
    >>> from sfumato.testing import seeded
    >>> draw = Vectorized(lambda value, count, generator: value + laplace((count,), scale=1.0,
    ...                                                                    generator=generator).numpy())
    >>> found = audit_mechanism(draw, 0.0, 1.0, trials=20_000, generator=seeded(0), subject="Laplace")
    >>> 0.85 < found.best.epsilon < 1.0
    True
    """
    _check.count(trials=trials)
    known = delta_of(delta, claim)
    _check_enough(trials, known, confidence, claim)
    source = resolve(generator)
    drawn = [
        _drawn(run, data, trials, source.fork("audit", index)) for index, data in enumerate((first, second))
    ]
    return audit_outputs(
        *drawn, delta=known, confidence=confidence, claim=claim, subject=subject, events=events
    )


def runs_needed(epsilon: float, *, delta: float = 0.0, confidence: float = 0.95) -> int:
    """Return the number of runs on each data set that can show an epsilon, if all outputs differ.

    Args:
        epsilon: The epsilon to show.
        delta: The delta of the bound.
        confidence: The confidence of the bound.

    Returns:
        The least number of runs.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> runs_needed(1.0), runs_needed(8.0)
    (40, 21998)
    """
    return max(_FEWEST, 2 * needed(epsilon, delta=delta, confidence=confidence))


def audit_outputs(
    first: Iterable[object],
    second: Iterable[object],
    *,
    delta: float | None = None,
    confidence: float = 0.95,
    claim: Guarantee | None = None,
    subject: str = "mechanism",
    events: Sequence[EventSearch] = EVENTS,
) -> AuditResult:
    """Bound epsilon from below by outputs on two neighboring data sets.

    Args:
        first: Outputs on one data set, in the order they were drawn, not sorted.
        second: Outputs on its neighbor.
        delta: The delta to audit at. None is that of the claim, or 0 without a claim.
        confidence: The probability that the bound holds.
        claim: The guarantee to test, or None.
        subject: The name of the mechanism, for the report.
        events: The searches for events to use.

    Returns:
        The lower bound, beside the claim.

    Raises:
        InvalidParameterError: If a parameter is out of range, or there are too few outputs to contradict the
            claim.

    >>> audit_outputs(["yes"] * 100, ["no"] * 100, subject="a mechanism that tells").best.epsilon > 2
    True
    """
    known = delta_of(delta, claim)
    one, two = read(first), read(second)
    _check_enough(min(len(one), len(two)), known, confidence, claim)
    if not events:
        raise InvalidParameterError("events must hold at least one search, such as Histogram().")
    found = _found(events, *_parts(one, two, 0.0, 0.25), *_parts(one, two, 0.25, 0.5), delta=known)
    bound = _counted(found, *_parts(one, two, 0.5, 1.0), delta=known, confidence=confidence)
    return AuditResult(subject=subject, claim=claim, bounds=(bound,))


def _drawn(run: Run | Vectorized, data: Any, trials: int, generator: Generator) -> Iterable[object]:
    if not isinstance(run, Vectorized):
        # Forks of a seeded generator repeat, so no two runs may share one.
        require_two_arguments(run)
        return [run(data_of_its_own(data), generator.fork("run", place)) for place in range(trials)]
    outputs = run.outputs(data_of_its_own(data), trials, generator)
    given = len(outputs) if hasattr(outputs, "__len__") else None  # type: ignore[arg-type]  # has one
    if given is not None and given != trials:
        raise InvalidParameterError(
            f"run_many must return one output for each of the {trials} runs, but it returned {given}. "
            "Put the runs on the first axis."
        )
    return outputs


def _parts(one: Outputs, two: Outputs, start: float, stop: float) -> tuple[Outputs, Outputs]:
    """Return the outputs from one share of the runs to another, of both data sets."""
    first, second = (
        outputs.part(round(start * len(outputs)), round(stop * len(outputs))) for outputs in (one, two)
    )
    return first, second


def _found(
    events: Sequence[EventSearch],
    first: Outputs,
    second: Outputs,
    more_first: Outputs,
    more_second: Outputs,
    *,
    delta: float,
) -> Event:
    scores = [score for search in events for score in search.scores(first, second)]
    if not scores:
        raise InvalidParameterError(
            "no search applies to these outputs. Add Outcomes(), which accepts any output."
        )
    return best_event(scores, more_first, more_second, delta=delta)


def _counted(event: Event, first: Outputs, second: Outputs, *, delta: float, confidence: float) -> LowerBound:
    likely, unlikely = (second, first) if event.reverse else (first, second)
    hits, others = (int(event.holds(outputs).sum()) for outputs in (likely, unlikely))
    epsilon = epsilon_from_counts(
        hits, len(likely), others, len(unlikely), delta=delta, confidence=confidence
    )
    return LowerBound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        attack=f"event search: {event.name}",
        trials=len(first) + len(second),
    )


def delta_of(delta: float | None, claim: Guarantee | None) -> float:
    """Return the delta to audit at. A bound at a smaller delta than the claim's would not contradict the
    claim.

    >>> delta_of(None, None), delta_of(0.5, None)
    (0.0, 0.5)
    """
    check_claim(claim)
    if delta is None:
        return 0.0 if claim is None else claim.delta
    _check.in_range(0, 1, delta=delta)
    if claim is not None and delta < claim.delta:
        raise InvalidParameterError(
            f"a bound at delta={delta:g} does not contradict a claim at delta={claim.delta:g}: epsilon is "
            "larger at a smaller delta. Leave delta out."
        )
    return delta


def _check_enough(runs: int, delta: float, confidence: float, claim: Guarantee | None) -> None:
    """Refuse an audit that could not contradict its claim even if all outputs differed."""
    _check.probability(confidence=confidence)
    epsilon = 0.0 if claim is None or math.isinf(claim.epsilon) else claim.epsilon
    least = runs_needed(epsilon, delta=delta, confidence=confidence)
    if runs < least:
        raise InvalidParameterError(
            f"{runs} runs on each data set are too few: to show an epsilon above {epsilon:g} at confidence "
            f"{confidence:g} takes at least {least}, half of them to find the event."
        )
