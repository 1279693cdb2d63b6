# SPDX-License-Identifier: Apache-2.0
"""How far apart two neighboring data sets may be before noise is added, for each mechanism.

A `Watch` names a method that adds noise, and a check of the values that two neighboring data sets pass to
it: they may differ by at most the sensitivity that the mechanism was made for, in its norm, under its
relation. `WATCHED` lists our mechanisms. For a mechanism of your own, pass `(*WATCHED, Watch(...))` to
`audit.replay`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.errors import SfumatoError
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
    ProposeTestRelease,
    RandomizedResponse,
    SmoothMedian,
    SparseVector,
    UnaryEncoding,
)
from sfumato.statistics.gaussian_vectors import VectorGaussian
from sfumato.statistics.noise import WholeNoise

__all__ = ["SLACK", "WATCHED", "Arguments", "LeakError", "Watch", "comparison_of", "score_at"]

Arguments = tuple[Any, ...]
Floats = npt.NDArray[np.float64]
SLACK = 1e-9  # float64, relative


class LeakError(SfumatoError, AssertionError):
    """A release reveals more of its data than it states."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A method that adds noise, and the check of what two neighbors pass to it.

    Args:
        kind: The class of the mechanism.
        method: The name of the method that adds noise.
        check: Called with the mechanism and the arguments of both runs; raises `LeakError` if they differ by
            too much.
    """

    kind: type
    method: str
    check: Callable[[Any, Arguments, Arguments], None]


def _within(moved: float, allowed: float, what: str) -> None:
    if not moved <= allowed * (1 + SLACK):
        raise LeakError(f"a neighbor moves {what} by {moved:g}, but the stated sensitivity is {allowed:g}")


def _number(mechanism: Any, one: Arguments, two: Arguments) -> None:
    _within(abs(one[0] - two[0]), mechanism.sensitivity, "a number")


def comparison_of(mechanism: Any) -> Any:
    """Return the comparison of a sparse vector run. Its internal state is not public."""
    return getattr(mechanism, "_test", mechanism)


def _asked(mechanism: Any, one: Arguments, two: Arguments) -> None:
    _within(abs(one[0] - two[0]), comparison_of(mechanism)._grid.sensitivity, "a value")


def _whole(mechanism: WholeNoise, one: Arguments, two: Arguments) -> None:
    if len(one[0]) != len(two[0]):
        raise LeakError("a neighbor changes how many numbers get noise")
    moves = np.array([abs(int(a) - int(b)) for a, b in zip(one[0], two[0], strict=True)], dtype=np.float64)
    if mechanism.delta == 0:
        _within(float(moves.sum()), mechanism.l1_sensitivity, "numbers, added up,")
    else:
        _within(float(np.linalg.norm(moves)), mechanism.l2_sensitivity, "numbers, in Euclidean norm,")
        _within(float((moves > 0).sum()), mechanism.coordinates, "numbers: so many")


def _vector(mechanism: VectorGaussian, one: Arguments, two: Arguments) -> None:
    if one[0].shape != two[0].shape:
        raise LeakError("a neighbor changes how many numbers get noise")
    moved = float(np.linalg.norm((one[0] - two[0]).astype(np.float64).ravel()))
    _within(moved, mechanism.sensitivity, "a vector, in Euclidean norm,")


def _scores(mechanism: Any, one: Arguments, two: Arguments) -> None:
    if len(one[-1]) != len(two[-1]):
        raise LeakError("a neighbor changes how many candidates there are")
    _check_gaps(mechanism, np.asarray(one[-1], dtype=float) - np.asarray(two[-1], dtype=float))


def _interval_scores(mechanism: Any, one: Arguments, two: Arguments) -> None:
    (edges, scores), (others, other_scores) = one, two
    cuts = np.unique(np.concatenate([np.asarray(edges, float), np.asarray(others, float)]))
    middles = (cuts[1:] + cuts[:-1]) / 2
    inside = (middles > cuts[:-1]) & (middles < cuts[1:])  # no float lies between two neighboring ones
    gaps = score_at(middles[inside], edges, scores) - score_at(middles[inside], others, other_scores)
    _check_gaps(mechanism, gaps)


def score_at(points: Floats, edges: Any, scores: Any) -> Floats:
    """Return the score of the interval that each point lies in."""
    place = np.searchsorted(np.asarray(edges, float), points, side="right") - 1
    return np.asarray(scores, float)[place]


def _check_gaps(mechanism: Any, gaps: Floats) -> None:
    _within(float(np.abs(gaps).max(initial=0.0)), mechanism.sensitivity, "a score")
    if mechanism.monotonic and (gaps > 0).any() and (gaps < 0).any():
        raise LeakError(
            "a neighbor moves scores in both directions, but the mechanism was declared monotonic"
        )


def _tested(mechanism: ProposeTestRelease, one: Arguments, two: Arguments) -> None:
    _within(abs(one[1] - two[1]), 1, "a distance")
    if max(one[1], two[1]) > 0:  # within the proposal: what lies beyond it passes the test with delta only
        _within(abs(one[0] - two[0]), mechanism.proposed_sensitivity, "a number")


def _units(mechanism: Any, one: Arguments, two: Arguments) -> None:
    """Check that the row of one unit differs, in any order. The mechanism bounds the effect of a row."""
    before, after = (Counter(row.tobytes() for row in np.asarray(given[0])) for given in (one, two))
    gone, new = (before - after).total(), (after - before).total()
    allowed = (gone == new <= 1) if mechanism.relation.replaces else gone + new <= 1
    if not allowed:
        raise LeakError(
            f"a neighbor takes {gone} units and brings {new}, but the relation is {mechanism.relation.value}"
        )


def _answers(mechanism: Any, one: Arguments, two: Arguments) -> None:
    """Check that one person's answer differs. Each report stays in its person's place."""
    before, after = np.asarray(one[0]), np.asarray(two[0])
    if len(before) != len(after):
        raise LeakError("a neighbor changes how many people answer")
    _within(float((before != after).sum()), 1, "answers: so many")


_ADDITIVE = (Laplace, Gaussian, DiscreteLaplace, DiscreteGaussian)
_CHOOSING = (Exponential, NoisyMax, PermuteAndFlip)


def _by_unit() -> tuple[type, ...]:
    """Return the mechanisms that take a row for each unit: one of them is for tensors, and needs torch."""
    try:
        from sfumato.mechanisms.discrete import GridGaussian
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return (SmoothMedian,)
    return SmoothMedian, GridGaussian


_LOCAL = (RandomizedResponse, UnaryEncoding)
WATCHED: tuple[Watch, ...] = (
    *(Watch(kind, "release", _number) for kind in _ADDITIVE),
    *(Watch(kind, "release", _scores) for kind in _CHOOSING),
    *(Watch(kind, "release", _units) for kind in _by_unit()),
    *(Watch(kind, "release", _answers) for kind in _LOCAL),
    Watch(IntervalExponential, "release", _interval_scores),
    Watch(ProposeTestRelease, "release", _tested),
    *(Watch(kind, "ask", _asked) for kind in (AboveThreshold, SparseVector)),
    Watch(WholeNoise, "add", _whole),
    Watch(VectorGaussian, "add", _vector),
)
