# SPDX-License-Identifier: Apache-2.0
"""Replay of a release on a neighbor with the same randomness, to compare the values that noise is added to.

`replay` watches our mechanisms. It runs a release on some data and records the inputs and outputs of every
mechanism. It runs it again on a neighbor; this time every mechanism returns its recorded output, so both
runs are in the same state at every step, as in the proof of adaptive composition. Then

1. both runs must have called the same mechanisms with the same parameters: only their answers decide;
2. their inputs must differ at most by the sensitivity that each mechanism was made for;
3. both outputs must be the same: no data bypassed the mechanisms. An error that only the neighbor's run
   raises is an output too;
4. the mechanisms together must cost no more than the claim (if delta is 0: costs then add up).

It finds an understated sensitivity (2), data that bypassed the noise (1 or 3) and too small a charge (4),
each with certainty, on one pair of neighbors, without statistics. It does not find a sampler that draws from
another distribution than it states; `audit.mechanisms.mechanism_attack` does. Inputs and outputs are copied
when they are recorded, so later changes in place do not change the record.

Edge cases Mechanisms are checked one by one, and their costs add up. A claim that holds for several only
           together is refuted though it is true: quantiles of groups (`queries.quantiles`), whose losses are
           bounded in range together. Replay one group, with add-remove neighbors; a test of that module
           checks the losses of all groups together.
           Messages state how far a neighbor moved a release, so use invented data, never data of people.
           While a release is watched, mechanisms are watched in the whole process: run one replay at a time.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from collections.abc import Generator as Iterating
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from sfumato.accounting import composition
from sfumato.accounting.events import compose
from sfumato.accounting.guarantee import Guarantee
from sfumato.audit.evidence.terms import check_claim
from sfumato.audit.mechanisms.neighbor_distances import (
    SLACK,
    WATCHED,
    Arguments,
    LeakError,
    Watch,
    comparison_of,
)
from sfumato.audit.mechanisms.releases import (
    by_the_neighbor,
    copied,
    data_of_its_own,
    require_repeatable,
    require_two_arguments,
    same,
    twins,
)
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import AboveThreshold, SparseVector
from sfumato.mechanisms.random import Generator

__all__ = ["Call", "LeakError", "Tape", "Watch", "check_call", "replay", "watched"]

Release = Callable[[Any, Generator], Any]  # data and generator to what leaves


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a mechanism: its parameters at that time, its inputs and its output."""

    mechanism: Any
    terms: str
    given: Arguments
    returned: Any


@dataclass
class Tape:
    """A record of the calls of mechanisms. With `answers`, the outputs to repeat."""

    answers: Sequence[Any] | None = None
    calls: list[Call] = field(default_factory=list[Call])
    beyond: bool = False  # whether there were more calls than answers, even if the error was caught
    _inside: bool = False
    _thresholds: WeakKeyDictionary[AboveThreshold, float] = field(
        default_factory=WeakKeyDictionary[AboveThreshold, float]
    )

    def called(self, mechanism: Any, given: Arguments, compute: Callable[[], Any]) -> Any:
        """Record a call, and return its output: computed, or the recorded answer."""
        if self._inside:  # a mechanism that is made of others counts as one
            return compute()
        terms, kept = self._terms(mechanism), copied(given)
        returned = self._computed(compute) if self.answers is None else self._repeated(mechanism)
        self.calls.append(Call(mechanism, terms, kept, copied(returned)))
        return returned

    def started(self, run: AboveThreshold, threshold: float) -> None:
        """Record the threshold of a sparse vector run, which itself keeps it only with noise."""
        self._thresholds[run] = threshold

    def _terms(self, mechanism: Any) -> str:
        if not _is_run(mechanism):
            return repr(mechanism)
        run = comparison_of(mechanism)
        # A run that was started before is known by its noisy threshold: it is the same only in the same run.
        threshold = self._thresholds.get(run, ("with noise", run._bar))
        limits = run._max_answers, run._multiple, run._grid.sensitivity, run.relation
        return repr((mechanism.event(), threshold, *limits))

    def _computed(self, compute: Callable[[], Any]) -> Any:
        self._inside = True
        try:
            return compute()
        finally:
            self._inside = False

    def _repeated(self, mechanism: Any) -> Any:
        answers = self.answers or ()
        if len(self.calls) >= len(answers):
            self.beyond = True
            raise LeakError(_MORE)
        returned = copied(answers[len(self.calls)])
        _keep_count(mechanism, returned)
        return returned


_MORE = "the neighbor's run calls more mechanisms"


def _keep_count(mechanism: Any, returned: Any) -> None:
    """Tell a sparse vector run about an answer that was replayed."""
    if isinstance(mechanism, AboveThreshold | SparseVector):
        comparison_of(mechanism)._left -= (
            bool(returned) if isinstance(mechanism, AboveThreshold) else returned is not None
        )


# --- replay -----------------------------------------------------------------------------------------------


def replay(
    release: Release,
    data: Any,
    neighbor: Any,
    *,
    claim: Guarantee | None = None,
    generator: Generator | None = None,
    watch: Sequence[Watch] | None = None,
) -> tuple[Call, ...]:
    """Check, by a replay on a neighbor, that only outputs of mechanisms leave a release.

    Args:
        release: Called as `release(data, generator)`. It must draw its noise with watched mechanisms.
        data: Invented data.
        neighbor: A neighbor of it.
        claim: The guarantee to check the cost against. The cost is not checked without a claim, or if its
            delta is above 0.
        generator: A seeded generator, the same for both runs. None is `seeded(0)`, as noise on invented data
            need not be secret.
        watch: The watched mechanisms instead of `WATCHED`. Add one of your own by `(*WATCHED, Watch(...))`.

    Returns:
        The calls of mechanisms.

    Raises:
        LeakError: If the release reveals more than it states.
        InvalidParameterError: If the generator is not seeded, the claim is no Guarantee, a value cannot be
            copied, or the release draws noise from elsewhere.

    >>> from sfumato.accounting.guarantee import Relation
    >>> from sfumato.mechanisms import Laplace
    >>> noise = Laplace(scale=1.0, sensitivity=1.0, relation=Relation.ADD_REMOVE)
    >>> def total(values, generator):
    ...     return noise.release(sum(values), generator=generator)
    >>> len(replay(total, [0.5, 0.25], [0.5, 0.25, 1.0]))
    1
    >>> replay(total, [0.5, 0.25], [0.5, 0.25, 3.0])
    Traceback (most recent call last):
    sfumato.audit....LeakError: a neighbor moves a number by 3, but the stated sensitivity is 1
    """
    check_claim(claim)
    require_two_arguments(release)
    watching = WATCHED if watch is None else tuple(watch)
    generators = twins(generator)
    with watched(Tape(), watching) as first:
        output = release(data_of_its_own(data), next(generators))
    answers = [call.returned for call in first.calls]
    with watched(Tape(answers=answers), watching) as second:
        other = by_the_neighbor(release, data_of_its_own(neighbor), next(generators))
    if second.beyond:
        raise LeakError(_MORE)
    if len(second.calls) != len(first.calls):
        raise LeakError("the neighbor's run calls fewer mechanisms")
    for one, two in zip(first.calls, second.calls, strict=True):
        check_call(one, two, watching)
    if not same(output, other):
        with watched(Tape(answers=answers), watching):
            require_repeatable(output, release(data_of_its_own(data), next(generators)))
        raise LeakError("the answers differ although every mechanism returned the same")
    if not first.calls:
        raise LeakError("no mechanism was called")
    if claim is not None and claim.delta == 0:
        _check_cost(claim, first.calls)
    return tuple(first.calls)


_watching = threading.Lock()


@contextlib.contextmanager
def watched(tape: Tape, watch: Sequence[Watch] | None = None) -> Iterating[Tape]:
    """Record every call of a watched mechanism on the tape."""
    watching = WATCHED if watch is None else watch
    before = [(one.kind, one.method, getattr(one.kind, one.method)) for one in watching]
    if not _watching.acquire(blocking=False):
        raise InvalidParameterError("another replay is watching the mechanisms. Run one at a time.")
    start = AboveThreshold.__init__
    try:
        AboveThreshold.__init__ = _started(tape, start)
        for kind, name, original in before:
            setattr(kind, name, _through(tape, original))
        yield tape
    finally:
        AboveThreshold.__init__ = start
        for kind, name, original in before:
            setattr(kind, name, original)
        _watching.release()


def _through(tape: Tape, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *given: Any, **named: Any) -> Any:
        private = (*given, *(value for name, value in named.items() if name != "generator"))
        return tape.called(self, private, lambda: original(self, *given, **named))

    return call


def _started(tape: Tape, original: Callable[..., None]) -> Callable[..., None]:
    def start(self: AboveThreshold, **terms: Any) -> None:
        original(self, **terms)
        tape.started(self, float(terms["threshold"]))

    return start


def check_call(one: Call, two: Call, watch: Sequence[Watch] | None = None) -> None:
    """Raise `LeakError` unless two calls differ by at most what their mechanism allows."""
    if type(one.mechanism) is not type(two.mechanism) or one.terms != two.terms:
        raise LeakError("the neighbor's run calls another mechanism, or one with other parameters")
    for watching in WATCHED if watch is None else watch:
        if isinstance(one.mechanism, watching.kind):
            watching.check(one.mechanism, one.given, two.given)


def _check_cost(claim: Guarantee, calls: Sequence[Call]) -> None:
    paid_once = {id(call.mechanism): call.mechanism for call in calls if _is_run(call.mechanism)}
    each = [call.mechanism for call in calls if not _is_run(call.mechanism)]
    used = compose(*(mechanism.event() for mechanism in (*paid_once.values(), *each)))
    spent = composition.basic_epsilon(used, delta=0.0, relation=claim.relation)
    if not spent <= claim.epsilon * (1 + SLACK):
        raise LeakError(f"the mechanisms cost {spent:g} together, but the question states {claim.epsilon:g}")


def _is_run(mechanism: Any) -> bool:
    return isinstance(mechanism, AboveThreshold | SparseVector)
