# SPDX-License-Identifier: Apache-2.0
"""Replay a release on a neighbor with the same randomness, and compare what reaches the noise.

Two ways   `replay` watches our mechanisms. It runs a release on some data and writes down what went into
           every mechanism and what came out. It runs it again on a neighbor; this time every mechanism
           returns what it returned before, so both runs are in the same place at every step, as in the proof
           of adaptive composition. Then
           1. both runs must have called the same mechanisms with the same parameters: nothing but their
              answers decides;
           2. what went in must differ at most by the sensitivity that each mechanism was made for;
           3. both outputs must be the same: nothing of the data went around the mechanisms;
           4. the mechanisms together must cost no more than the claim (where delta is 0: costs then add up).
           `check_sensitivity` needs no mechanism of ours: with the same randomness additive noise cancels, so
           the outputs differ by what the neighbor moved before the noise.
Finds      An understated sensitivity (2), data read past the noise (1 or 3), too small a charge (4), each for
           certain, on one pair of neighbors, without statistics. What it does not find: a sampler that draws
           another law than it says, which `audit.mechanism` is for.
Messages   They say how far a neighbor moved what was released, so use invented data, never people's.
Threads    While a release is watched, mechanisms are watched in the whole process: one replay at a time.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from collections.abc import Generator as Iterating
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.accounting import composition
from sfumato.accounting.events import compose
from sfumato.accounting.guarantee import Guarantee
from sfumato.audit.distances import SLACK, WATCHED, Given, LeakError, Watch, comparison_of
from sfumato.audit.outputs import read
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import AboveThreshold, SparseVector
from sfumato.mechanisms.random import Generator
from sfumato.testing import seeded

__all__ = ["Call", "LeakError", "Tape", "Watch", "check_call", "check_sensitivity", "replay", "watched"]

Release = Callable[[Any, Generator], Any]  # data and generator to what leaves


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a mechanism: what went in and what came out."""

    mechanism: Any
    given: Given
    returned: Any


@dataclass
class Tape:
    """What went into the mechanisms; with `answers`, the outcomes to repeat."""

    answers: Sequence[Any] | None = None
    calls: list[Call] = field(default_factory=list[Call])
    _inside: bool = False

    def called(self, mechanism: Any, given: Given, compute: Callable[[], Any]) -> Any:
        """Note a call, and return what it returns: computed, or the answer of the tape."""
        if self._inside:  # a mechanism that is made of others counts as one
            return compute()
        returned = self._computed(compute) if self.answers is None else self._repeated(mechanism)
        self.calls.append(Call(mechanism, given, returned))
        return returned

    def _computed(self, compute: Callable[[], Any]) -> Any:
        self._inside = True
        try:
            return compute()
        finally:
            self._inside = False

    def _repeated(self, mechanism: Any) -> Any:
        answers = self.answers or ()
        if len(self.calls) >= len(answers):
            raise LeakError("the neighbor's run calls more mechanisms")
        returned = answers[len(self.calls)]
        _keep_count(mechanism, returned)
        return returned


def _keep_count(mechanism: Any, returned: Any) -> None:
    """Let a sparse vector run know of an answer that was put into its mouth."""
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
    seed: int = 0,
    watch: Sequence[Watch] | None = None,
) -> tuple[Call, ...]:
    """Release on both; raise `LeakError` unless only what mechanisms return can leave. Return the calls.

    `release(data, generator)` must draw its noise with mechanisms of ours, or with those that `watch` adds to
    `WATCHED`. Without a claim, or with one whose delta is above 0, the cost is not checked.

    >>> from sfumato.accounting.guarantee import Relation
    >>> from sfumato.mechanisms import Laplace
    >>> noise = Laplace(scale=1.0, sensitivity=1.0, relation=Relation.ADD_REMOVE)
    >>> def total(values, generator):
    ...     return noise.release(sum(values), generator=generator)
    >>> len(replay(total, [0.5, 0.25], [0.5, 0.25, 1.0]))
    1
    >>> replay(total, [0.5, 0.25], [0.5, 0.25, 3.0])
    Traceback (most recent call last):
    sfumato.audit.distances.LeakError: a neighbor moves a number by 3, but the stated sensitivity is 1
    """
    watching = WATCHED if watch is None else tuple(watch)
    with watched(Tape(), watching) as first:
        output = release(data, seeded(seed))
    with watched(Tape(answers=[call.returned for call in first.calls]), watching) as second:
        other = release(neighbor, seeded(seed))
    if len(second.calls) != len(first.calls):
        raise LeakError("the neighbor's run calls fewer mechanisms")
    for one, two in zip(first.calls, second.calls, strict=True):
        check_call(one, two, watching)
    if read([output]).keys() != read([other]).keys():
        raise LeakError("the answers differ although every mechanism returned the same")
    if not first.calls:
        raise LeakError("no mechanism was called")
    if claim is not None and claim.delta == 0:
        _check_cost(claim, first.calls)
    return tuple(first.calls)


_watching = threading.Lock()


@contextlib.contextmanager
def watched(tape: Tape, watch: Sequence[Watch] | None = None) -> Iterating[Tape]:
    """Send every call of a watched mechanism over the tape."""
    watching = WATCHED if watch is None else watch
    if not _watching.acquire(blocking=False):
        raise InvalidParameterError("another replay is watching the mechanisms. Run one at a time.")
    before = [(one.kind, one.method, getattr(one.kind, one.method)) for one in watching]
    try:
        for kind, name, original in before:
            setattr(kind, name, _through(tape, original))
        yield tape
    finally:
        for kind, name, original in before:
            setattr(kind, name, original)
        _watching.release()


def _through(tape: Tape, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *given: Any, **named: Any) -> Any:
        private = (*given, *(value for name, value in named.items() if name != "generator"))
        return tape.called(self, private, lambda: original(self, *given, **named))

    return call


def check_call(one: Call, two: Call, watch: Sequence[Watch] | None = None) -> None:
    """Raise `LeakError` unless two calls differ by what their mechanism allows neighbors to differ by."""
    if type(one.mechanism) is not type(two.mechanism) or _public(one.mechanism) != _public(two.mechanism):
        raise LeakError("the neighbor's run calls another mechanism, or one with other parameters")
    for watching in WATCHED if watch is None else watch:
        if isinstance(one.mechanism, watching.kind):
            watching.check(one.mechanism, one.given, two.given)


def _public(mechanism: Any) -> str:
    if isinstance(mechanism, AboveThreshold | SparseVector):
        return repr(mechanism.event())
    return repr(mechanism)


def _check_cost(claim: Guarantee, calls: Sequence[Call]) -> None:
    paid_once = {id(call.mechanism): call.mechanism for call in calls if _is_run(call.mechanism)}
    each = [call.mechanism for call in calls if not _is_run(call.mechanism)]
    used = compose(*(mechanism.event() for mechanism in (*paid_once.values(), *each)))
    spent = composition.basic_epsilon(used, delta=0.0, relation=claim.relation)
    if not spent <= claim.epsilon * (1 + SLACK):
        raise LeakError(f"the mechanisms cost {spent:g} together, but the question states {claim.epsilon:g}")


def _is_run(mechanism: Any) -> bool:
    return isinstance(mechanism, AboveThreshold | SparseVector)


# --- without mechanisms of ours ---------------------------------------------------------------------------


def check_sensitivity(
    release: Release, data: Any, neighbor: Any, *, sensitivity: float, order: float = 2.0, seed: int = 0
) -> float:
    """Return how far a neighbor moves what is released with the same randomness, in the norm of `order`.

    Raise `LeakError` if that is more than `sensitivity`, or if the outputs have other shapes. Noise must be
    added, and drawn from the generator in a way that does not depend on the data.

    >>> from sfumato.mechanisms import gaussian
    >>> def noisy_sum(rows, generator):
    ...     return rows.sum(axis=0) + gaussian((2,), stddev=1.0, generator=generator).numpy()
    >>> rows = np.array([[0.6, 0.8], [0.0, 1.0]])
    >>> round(check_sensitivity(noisy_sum, rows, rows[:1], sensitivity=1.0), 6)
    1.0
    """
    _check.positive(sensitivity=sensitivity, order=1.0 if order == np.inf else order)
    one, two = (read([release(given, seeded(seed))]) for given in (data, neighbor))
    if one.kinds != two.kinds:
        raise LeakError("the outputs have other shapes: a neighbor changes more than numbers")
    moved = float(np.linalg.norm(one.rows[0] - two.rows[0], ord=order)) if one.rows[0].size else 0.0
    # What is computed next to noise is rounded to its size.
    rounding = 1e-6 * (float(np.abs(one.rows[0]).max(initial=0.0)) + sensitivity)
    if not moved <= sensitivity * (1 + SLACK) + rounding:
        raise LeakError(
            f"a neighbor moves the output by {moved:g}, but the stated sensitivity is {sensitivity:g}"
        )
    return moved
