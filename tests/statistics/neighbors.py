# SPDX-License-Identifier: Apache-2.0
"""Replay a question on neighboring data, and find out whether anything but noisy numbers leaves.

`replay` asks a question of some data with seeded noise and writes down what went into every mechanism and
what came out. It asks again of a neighbor; this time every mechanism returns what it returned before, so both
runs are in the same place at every step, as in the proof of adaptive composition. Then it checks that

1. both runs called the same mechanisms, with the same public parameters: nothing but their answers decides;
2. what went in differs at most by the sensitivity that each mechanism was made for;
3. both answers are the same: nothing of the data went around the mechanisms;
4. the mechanisms together cost no more than the question says (where costs simply add up).

A question whose sensitivity is understated fails 2, one that reads the data past its noise 1 or 3, one that
charges too little 4.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato.accounting import composition
from sfumato.accounting.events import ParallelDpEvent, compose, walk
from sfumato.mechanisms import (
    AboveThreshold,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Gaussian,
    IntervalExponential,
    Laplace,
    NoisyMax,
    PermuteAndFlip,
    SparseVector,
)
from sfumato.statistics.asking import Query, cost
from sfumato.statistics.concentrated import VectorGaussian
from sfumato.statistics.noise import WholeNoise
from sfumato.testing import seeded

SLACK = 1e-9  # float64, relative


class LeakError(AssertionError):
    """A question lets more of its data out than it states."""


@dataclass
class Call:
    mechanism: Any
    given: tuple[Any, ...]
    returned: Any


@dataclass
class Tape:
    """What went into the mechanisms; with `answers`, the outcomes to repeat."""

    answers: list[Any] | None = None
    calls: list[Call] = field(default_factory=list)
    inside: bool = False

    def called(self, mechanism: Any, given: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        if self.inside:  # a mechanism that is made of others counts as one
            return compute()
        if self.answers is None:
            self.inside = True
            try:
                returned = compute()
            finally:
                self.inside = False
        else:
            if len(self.calls) >= len(self.answers):
                raise LeakError("the neighbor's run calls more mechanisms")
            returned = self.answers[len(self.calls)]
            _keep_count(mechanism, returned)
        self.calls.append(Call(mechanism, given, returned))
        return returned


def _keep_count(mechanism: Any, returned: Any) -> None:
    """Let a sparse vector run know of an answer that was put into its mouth."""
    if isinstance(mechanism, AboveThreshold):
        mechanism._left -= bool(returned)
    elif isinstance(mechanism, SparseVector):
        mechanism._test._left -= returned is not None


_WATCHED = [
    *((kind, "release") for kind in (Laplace, Gaussian, DiscreteLaplace, DiscreteGaussian)),
    *((kind, "release") for kind in (Exponential, IntervalExponential, NoisyMax, PermuteAndFlip)),
    *((kind, "ask") for kind in (AboveThreshold, SparseVector)),
    *((kind, "add") for kind in (WholeNoise, VectorGaussian)),
]


@contextlib.contextmanager
def watched(tape: Tape) -> Iterator[Tape]:
    """Send every call of a mechanism over the tape."""
    before = [(kind, name, getattr(kind, name)) for kind, name in _WATCHED]

    def through(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *given: Any, generator: Any = None) -> Any:
            options = {} if generator is None else {"generator": generator}
            return tape.called(self, given, lambda: original(self, *given, **options))

        return call

    try:
        for kind, name, original in before:
            setattr(kind, name, through(original))
        yield tape
    finally:
        for kind, name, original in before:
            setattr(kind, name, original)


def replay(question: Any, data: Any, neighbor: Any, *, seed: int = 0, adds_up: bool = True) -> list[Call]:
    """Ask on both; raise `LeakError` unless only what was paid for can leave. Return the first run's calls.

    `adds_up=False` leaves out check 4, for questions whose event is not the plain sum of its mechanisms'.
    """
    Query(question, data), Query(question, neighbor)  # the question must be made for this data
    with watched(Tape()) as first:
        answer = question.answer(data, generator=seeded(seed))
    with watched(Tape(answers=[call.returned for call in first.calls])) as second:
        other = question.answer(neighbor, generator=seeded(seed))
    if len(second.calls) != len(first.calls):
        raise LeakError("the neighbor's run calls fewer mechanisms")
    for one, two in zip(first.calls, second.calls, strict=True):
        _check_call(one, two)
    if not _same(answer, other):
        raise LeakError("the answers differ although every mechanism returned the same")
    if not first.calls:
        raise LeakError("no mechanism was called")
    if adds_up:
        _check_cost(question, first.calls)
    return first.calls


def _check_call(one: Call, two: Call) -> None:
    if type(one.mechanism) is not type(two.mechanism) or _public(one.mechanism) != _public(two.mechanism):
        raise LeakError("the neighbor's run calls another mechanism, or one with other parameters")
    for kinds, check in _DISTANCES:
        if isinstance(one.mechanism, kinds):
            check(one.mechanism, one.given, two.given)


def _public(mechanism: Any) -> str:
    if isinstance(mechanism, AboveThreshold | SparseVector):
        return repr(mechanism.event())
    return repr(mechanism)


def _within(moved: float, allowed: float, what: str) -> None:
    if not moved <= allowed * (1 + SLACK):
        raise LeakError(f"a neighbor moves {what} by {moved:g}, but the stated sensitivity is {allowed:g}")


def _number(mechanism: Any, one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    _within(abs(one[0] - two[0]), mechanism.sensitivity, "a number")


def _asked(mechanism: Any, one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    test = mechanism._test if isinstance(mechanism, SparseVector) else mechanism
    _within(abs(one[0] - two[0]), test._grid.sensitivity, "a value")


def _whole(mechanism: WholeNoise, one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    if len(one[0]) != len(two[0]):
        raise LeakError("a neighbor changes how many numbers get noise")
    moves = [abs(int(a) - int(b)) for a, b in zip(one[0], two[0], strict=True)]
    if mechanism.delta == 0:
        _within(sum(moves), mechanism.l1_sensitivity, "numbers, added up,")
    else:
        _within(math.hypot(*moves), mechanism.l2_sensitivity, "numbers, in Euclidean norm,")
        _within(sum(move > 0 for move in moves), mechanism.coordinates, "numbers: so many")


def _vector(mechanism: VectorGaussian, one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    if one[0].shape != two[0].shape:
        raise LeakError("a neighbor changes how many numbers get noise")
    moved = float(np.linalg.norm((one[0] - two[0]).astype(np.float64).ravel()))
    _within(moved, mechanism.sensitivity, "a vector, in Euclidean norm,")


def _scores(mechanism: Any, one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    gaps = np.asarray(one[-1], dtype=float) - np.asarray(two[-1], dtype=float)
    _check_gaps(mechanism, gaps)


def _interval_scores(mechanism: Any, one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    (edges, scores), (others, other_scores) = one, two
    cuts = np.unique(np.concatenate([np.asarray(edges, float), np.asarray(others, float)]))
    middles = (cuts[1:] + cuts[:-1]) / 2
    inside = (middles > cuts[:-1]) & (middles < cuts[1:])  # no float lies between two neighboring ones
    gaps = _score_at(middles[inside], edges, scores) - _score_at(middles[inside], others, other_scores)
    _check_gaps(mechanism, gaps)


def _score_at(points: np.ndarray, edges: Any, scores: Any) -> np.ndarray:
    place = np.searchsorted(np.asarray(edges, float), points, side="right") - 1
    return np.asarray(scores, float)[place]


def _check_gaps(mechanism: Any, gaps: np.ndarray) -> None:
    _within(float(np.abs(gaps).max(initial=0.0)), mechanism.sensitivity, "a score")
    if mechanism.monotonic and (gaps > 0).any() and (gaps < 0).any():
        raise LeakError("a neighbor moves scores in both directions, which were said to be monotonic")


_DISTANCES = [
    ((Laplace, Gaussian, DiscreteLaplace, DiscreteGaussian), _number),
    ((AboveThreshold, SparseVector), _asked),
    ((WholeNoise,), _whole),
    ((VectorGaussian,), _vector),
    ((IntervalExponential,), _interval_scores),
    ((Exponential, NoisyMax, PermuteAndFlip), _scores),
]


def _check_cost(question: Any, calls: list[Call]) -> None:
    event = question.event()
    if any(isinstance(part, ParallelDpEvent) for part in walk(event)) or question.delta != 0:
        return  # no plain sum: the accountants' own tests cover these
    different = {id(call.mechanism): call.mechanism for call in calls}  # a sparse vector run is paid for once
    runs = [m for m in different.values() if isinstance(m, AboveThreshold | SparseVector)]
    others = [
        call.mechanism for call in calls if not isinstance(call.mechanism, AboveThreshold | SparseVector)
    ]
    used = compose(*(mechanism.event() for mechanism in (*runs, *others)))
    spent = composition.basic_epsilon(used, delta=0.0, relation=question.relation)
    if not spent <= cost(question) * (1 + SLACK):
        raise LeakError(f"the mechanisms cost {spent:g} together, but the question states {cost(question):g}")


def _same(one: Any, two: Any) -> bool:
    """Whether two answers are equal, arrays and NaN included."""
    return repr(_plain(one)) == repr(_plain(two))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None:
        return {name: _plain(getattr(value, name)) for name in fields}
    return value
