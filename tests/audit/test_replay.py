# SPDX-License-Identifier: Apache-2.0
"""A replay finds what reaches the noise, and what goes around it."""

import numpy as np
import pytest
import torch

from sfumato import mechanisms as m
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.distances import WATCHED, LeakError, Watch
from sfumato.audit.replay import Tape, check_sensitivity, replay, watched
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.mechanisms.random import words

ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
DATA, MORE = [0.2, 0.9, 0.4], [0.2, 0.9, 0.4, 1.0]
CLAIM = Guarantee(epsilon=1.0, delta=0.0, relation=ADD, privacy_unit="row")


def laplace(sensitivity=1.0):
    return m.Laplace.calibrated(epsilon=1.0, sensitivity=sensitivity, relation=ADD)


def noisy_sum(values, generator):
    return laplace().release(sum(values), generator=generator)


def test_a_release_that_states_its_sensitivity_passes():
    (call,) = replay(noisy_sum, DATA, MORE, claim=CLAIM)
    assert call.mechanism == laplace()
    assert call.given == (sum(DATA),)


LEAKS = {
    "sensitivity is 0.5": lambda v, g: laplace(0.5).release(sum(v), generator=g),
    "answers differ": lambda v, g: noisy_sum(v, g) / len(v),
    "more mechanisms": lambda v, g: [noisy_sum(v, g) for _ in v],
    "other parameters": lambda v, g: laplace(max(v)).release(0.0, generator=g),
    "cost 2 together": lambda v, g: (noisy_sum(v, g), noisy_sum(v, g)),
    "no mechanism was called": lambda v, g: 0.0,
}


@pytest.mark.parametrize("says", LEAKS)
def test_a_release_that_leaks_is_found(says):
    with pytest.raises(LeakError, match=says):
        replay(LEAKS[says], DATA, MORE, claim=CLAIM)


def test_a_leak_is_found_in_the_other_direction_too():
    with pytest.raises(LeakError, match="fewer mechanisms"):
        replay(LEAKS["more mechanisms"], MORE, DATA)


def test_the_cost_is_checked_only_against_a_pure_claim():
    twice = LEAKS["cost 2 together"]
    assert len(replay(twice, DATA, MORE)) == 2
    approximate = Guarantee(epsilon=1.0, delta=1e-5, relation=ADD, privacy_unit="row")
    assert len(replay(twice, DATA, MORE, claim=approximate)) == 2


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 2)


SCORES = {"epsilon": 1.0, "sensitivity": 1.0}
ASKING = {"threshold": 1.0, "threshold_epsilon": 1.0, "comparison_epsilon": 1.0, "sensitivity": 1.0}
ASKING |= {"max_answers": 1, "relation": ADD}
tested = m.ProposeTestRelease(proposed_sensitivity=0.5, test_epsilon=1.0, release_epsilon=1.0, delta=0.1)
smooth = m.SmoothMedian(epsilon=1.0, bounds=(0.0, 1.0))
grid = m.GridGaussian(clip_norm=1.0, granularity=2.0**-10, stddev=1.0, dimension=2, relation=ADD)


def each(mechanism, *before):
    return lambda given, generator: mechanism.release(*before, given, generator=generator)


# For each mechanism: a release, data, a neighbor, and something that is none.
KINDS = {
    "Gaussian": (each(m.Gaussian(stddev=1.0, sensitivity=1.0, relation=ADD)), 0.0, 1.0, 1.5),
    "DiscreteLaplace": (each(m.DiscreteLaplace(scale=1.0, sensitivity=2, relation=ADD)), 0, 2, 3),
    "DiscreteGaussian": (each(m.DiscreteGaussian(stddev=1.0, sensitivity=2, relation=ADD)), 0, 2, 3),
    "Exponential": (each(m.Exponential(**SCORES, relation=REPLACE)), [0, 1], [1, 0], [2, 1]),
    "Exponential, candidates": (each(m.Exponential(**SCORES, relation=REPLACE)), [0, 1], [1, 0], [1, 0, 0]),
    "PermuteAndFlip": (each(m.PermuteAndFlip(**SCORES, relation=REPLACE)), [0, 1], [1, 0], [2, 1]),
    "NoisyMax": (each(m.NoisyMax(**SCORES, relation=ADD, monotonic=True)), [0, 1], [1, 1], [1, 0]),
    "IntervalExponential": (
        each(m.IntervalExponential(**SCORES, relation=REPLACE, bounds=(0.0, 1.0)), [0.0, 0.5, 1.0]),
        [0.0, 1.0],
        [1.0, 0.0],
        [2.0, 0.0],
    ),
    "AboveThreshold": (
        lambda values, generator: tuple(map(m.AboveThreshold(**ASKING, generator=generator).ask, values)),
        [0.0],
        [1.0],
        [2.0],
    ),
    "SparseVector": (
        lambda values, generator: tuple(
            map(m.SparseVector(**ASKING, answer_epsilon=1.0, generator=generator).ask, values)
        ),
        [0.0],
        [1.0],
        [2.0],
    ),
    "RandomizedResponse": (each(m.RandomizedResponse(noise_parameter=0.5)), [0, 1, 1], [0, 0, 1], [0, 0, 0]),
    "UnaryEncoding": (each(m.UnaryEncoding(epsilon=1.0, num_buckets=3)), [0, 1], [0, 2], [1, 2]),
    "SmoothMedian": (each(smooth), [0.1, 0.2], [0.1, 0.3], [0.3, 0.4]),
    "SmoothMedian, one less": (each(smooth), [0.1, 0.2], [0.1, 0.3], [0.1]),
    "GridGaussian": (each(grid), tensor((1, 0)), tensor((1, 0), (0, 1)), tensor((1, 1))),
    "ProposeTestRelease": (
        lambda given, generator: tested.release(given[0], distance=given[1], generator=generator),
        (0.0, 5),
        (0.5, 4),
        (0.0, 3),
    ),
    "ProposeTestRelease, value": (
        lambda given, generator: tested.release(given[0], distance=given[1], generator=generator),
        (0.0, 5),
        (0.5, 4),
        (0.6, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_each_mechanism_may_be_given_neighbors_and_nothing_else(name):
    release, data, neighbor, stranger = KINDS[name]
    assert len(replay(release, data, neighbor)) == 1
    with pytest.raises(LeakError):
        replay(release, data, stranger)


def test_a_sparse_vector_run_is_paid_for_once():
    def asked(values, generator):
        run = m.AboveThreshold(**(ASKING | {"max_answers": 2}), generator=generator)
        return tuple(run.ask(value) for value in values if run.answers_left)

    claim = Guarantee(epsilon=2.0, delta=0.0, relation=ADD, privacy_unit="row")
    calls = replay(asked, [50.0, -50.0, 50.0, 50.0], [50.5, -50.0, 50.0, 50.0], claim=claim)
    assert [call.returned for call in calls] == [True, False, True]


class Own:
    """A mechanism that this library does not know."""

    sensitivity = 1.0

    def add(self, value, generator):
        return value + int(words(1, generator)[0]) % 5

    def __repr__(self):
        return "Own()"


def test_a_mechanism_of_ones_own_can_be_watched():
    def within_one(mechanism, one, two):
        if abs(one[0] - two[0]) > mechanism.sensitivity:
            raise LeakError("too far")

    def release(value, generator):
        return Own().add(value, generator=generator)

    watch = (*WATCHED, Watch(Own, "add", within_one))
    with pytest.raises(LeakError, match="answers differ"):
        replay(release, 0, 1)
    assert len(replay(release, 0, 1, watch=watch)) == 1
    with pytest.raises(LeakError, match="too far"):
        replay(release, 0, 2, watch=watch)


def test_mechanisms_are_as_before_after_a_replay_even_one_that_fails():
    before = [getattr(watch.kind, watch.method) for watch in WATCHED]
    with pytest.raises(LeakError):
        replay(LEAKS["answers differ"], DATA, MORE)
    assert [getattr(watch.kind, watch.method) for watch in WATCHED] == before


def test_one_replay_at_a_time():
    with watched(Tape()), pytest.raises(InvalidParameterError, match="one at a time"):
        replay(noisy_sum, DATA, MORE)


def test_a_leak_is_an_error_of_ours_and_a_failed_assertion():
    assert issubclass(LeakError, SfumatoError)
    assert issubclass(LeakError, AssertionError)


# --- the same noise ---------------------------------------------------------------------------------------

ROWS = np.array([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]])


def clipped_sum(rows, generator, scale=1.0):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    total = (rows / np.maximum(norms, 1.0)).sum(axis=0)
    return scale * total + m.gaussian((2,), stddev=3.0, generator=generator).numpy()


def test_the_same_noise_cancels_and_leaves_what_the_neighbor_moved():
    assert check_sensitivity(clipped_sum, ROWS, ROWS[1:], sensitivity=1.0) == pytest.approx(1.0, abs=1e-5)
    moved = check_sensitivity(clipped_sum, ROWS, ROWS[1:], sensitivity=1.4, order=1)
    assert moved == pytest.approx(1.4, abs=1e-5)
    moved = check_sensitivity(clipped_sum, ROWS, ROWS[1:], sensitivity=0.8, order=np.inf)
    assert moved == pytest.approx(0.8, abs=1e-5)


@pytest.mark.parametrize(
    ("release", "says"),
    [
        (lambda rows, g: clipped_sum(rows, g, scale=1.01), "by 1.01, but the stated sensitivity is 1"),
        (lambda rows, g: clipped_sum(rows, g) * len(rows), "moves the output"),
        (lambda rows, g: m.gaussian((len(rows),), stddev=1.0, generator=g).numpy(), "other shapes"),
        (lambda rows, g: None if len(rows) < 3 else clipped_sum(rows, g), "other shapes"),
    ],
    ids=["scale", "size", "shape", "none"],
)
def test_a_sum_that_moves_too_far_is_found(release, says):
    with pytest.raises(LeakError, match=says):
        check_sensitivity(release, ROWS, ROWS[1:], sensitivity=1.0)


def test_a_sensitivity_that_is_none_is_refused():
    with pytest.raises(InvalidParameterError, match="sensitivity must be"):
        check_sensitivity(clipped_sum, ROWS, ROWS[1:], sensitivity=0.0)
