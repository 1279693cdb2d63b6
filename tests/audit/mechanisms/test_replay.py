# SPDX-License-Identifier: Apache-2.0
"""A replay finds what reaches the noise, and what goes around it."""

import contextlib
import threading

import numpy as np
import pytest
import torch

from sfumato import mechanisms as m
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.mechanisms.neighbor_distances import WATCHED, LeakError, Watch
from sfumato.audit.mechanisms.replay import Tape, replay, watched
from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.mechanisms.random import words
from sfumato.statistics.noise import Kind, WholeNoise
from sfumato.testing import seeded

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


# --- what a release does to the record --------------------------------------------------------------------

WHOLE = WholeNoise(
    epsilon=1.0,
    delta=0.0,
    relation=ADD,
    kind=Kind.COUNTS,
    l1_sensitivity=1,
    l2_sensitivity=1.0,
    coordinates=1,
)


def test_what_is_added_in_place_to_what_a_mechanism_returned_is_found():
    def past_the_noise(values, generator):
        count = WHOLE.add([len(values)], generator=generator)
        count += int(sum(values))
        return count

    with pytest.raises(LeakError, match="answers differ"):
        replay(past_the_noise, [5], [5, 7000])


def test_what_is_cleared_after_a_mechanism_was_given_it_is_found():
    def cleared(values, generator):
        given = np.array([sum(values)])
        noisy = WHOLE.add(given, generator=generator)
        given[:] = 0
        return noisy

    with pytest.raises(LeakError, match="by 7000"):
        replay(cleared, [5], [5, 7000])


def test_the_returned_calls_are_those_of_the_first_run_whatever_happens_to_their_answers():
    answers = []

    def kept(values, generator):
        answers.append(WHOLE.add([len(values)], generator=generator))
        return answers[-1].tolist()

    (call,) = replay(kept, [5], [5, 7])
    before = call.returned.copy()
    for answer in answers:
        answer += 1
    assert np.array_equal(call.returned, before) and np.array_equal(answers[0], answers[1])


def test_rows_with_a_gradient_can_be_given_and_what_cannot_be_copied_is_refused():
    def with_gradient(rows, generator):
        return grid.release(rows.requires_grad_() * 1.0, generator=generator)

    assert len(replay(with_gradient, tensor((1, 0)), tensor((1, 0), (0, 1)))) == 1

    def of_a_lock(value, generator):
        return Own().add((threading.Lock(), value), generator)

    watch = (Watch(Own, "add", lambda mechanism, one, two: None),)
    with pytest.raises(InvalidParameterError, match="cannot be copied"):
        replay(of_a_lock, 0, 1, watch=watch)
    assert len(replay(lambda value, generator: Own().add(value, generator), 0, 1, watch=watch)) == 1


ASKED = {
    "AboveThreshold": lambda generator, **terms: m.AboveThreshold(**(ASKING | terms), generator=generator),
    "SparseVector": lambda generator, **terms: m.SparseVector(
        **(ASKING | terms), answer_epsilon=1.0, generator=generator
    ),
}
OF_THE_DATA = {
    "threshold": lambda values: {"threshold": 100.0 * sum(values)},
    "sensitivity": lambda values: {"sensitivity": sum(values)},
    "max_answers": lambda values: {"max_answers": len(values)},
    "monotonic": lambda values: {"monotonic": len(values) > 3},
}


@pytest.mark.parametrize("parameter", OF_THE_DATA)
@pytest.mark.parametrize("name", ASKED)
def test_a_sparse_vector_run_with_a_parameter_of_the_data_is_found(name, parameter):
    def asked(values, generator):
        return ASKED[name](generator, **OF_THE_DATA[parameter](values)).ask(0.0)

    with pytest.raises(LeakError, match="other parameters"):
        replay(asked, DATA, MORE)


@pytest.mark.parametrize("name", ASKED)
def test_a_sparse_vector_run_after_other_noise_or_begun_before_is_not_accused(name):
    def after_noise(values, generator):
        noisy = noisy_sum(values, generator)  # a replay does not draw it again: the threshold's noise differs
        return noisy, ASKED[name](generator).ask(sum(values))

    assert len(replay(after_noise, DATA, MORE)) == 2
    begun = ASKED[name](seeded(0), max_answers=100)
    assert len(replay(lambda values, generator: begun.ask(sum(values)), DATA, MORE)) == 1


def test_runs_begun_before_that_are_chosen_by_the_data_are_found():
    begun = [ASKED["AboveThreshold"](seeded(i), threshold=float(i)) for i in range(5)]
    with pytest.raises(LeakError, match="other parameters"):
        replay(lambda values, generator: begun[len(values)].ask(0.0), DATA, MORE)


def test_a_call_too_many_is_found_even_where_the_code_catches_everything():
    def quiet(values, generator):
        total = noisy_sum(values[:3], generator)
        if len(values) > 3:
            with contextlib.suppress(Exception):
                noisy_sum(values[3:], generator)
        return total

    with pytest.raises(LeakError, match="more mechanisms"):
        replay(quiet, DATA, MORE)


# --- errors -----------------------------------------------------------------------------------------------


def fails_for_many(values, generator):
    if len(values) > 3:
        raise ZeroDivisionError("too many")
    return noisy_sum(values, generator)


def test_an_error_that_only_the_neighbor_raises_is_a_leak():
    with pytest.raises(LeakError, match="raises ZeroDivisionError") as found:
        replay(fails_for_many, DATA, MORE)
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    with pytest.raises(LeakError, match="raises ZeroDivisionError"):
        check_sensitivity(fails_for_many, DATA, MORE, sensitivity=1.0)


def test_an_error_of_the_first_run_is_the_callers():
    for check in (replay, lambda *given: check_sensitivity(*given, sensitivity=1.0)):
        with pytest.raises(ZeroDivisionError):
            check(fails_for_many, MORE, MORE)


# --- the same randomness ----------------------------------------------------------------------------------

ROWS = np.array([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]])


def clipped_sum(rows, generator, scale=1.0):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    total = (rows / np.maximum(norms, 1.0)).sum(axis=0)
    return scale * total + m.gaussian((2,), stddev=3.0, generator=generator).numpy()


def shuffled(values, generator):
    """Return noise and what is drawn beside it, which is the same only with the same randomness."""
    return noisy_sum(values, generator.fork("noise", 0)), int(words(1, generator.fork("order", 0))[0])


@pytest.mark.parametrize("generator", [None, seeded(3), m.FastGenerator(3)], ids=["none", "seeded", "fast"])
def test_both_runs_have_the_same_randomness(generator):
    assert len(replay(shuffled, DATA, MORE, generator=generator)) == 1
    assert check_sensitivity(clipped_sum, ROWS, ROWS[1:], sensitivity=1.0, generator=generator) > 0.99


def test_another_generator_gives_other_noise():
    returned = [replay(noisy_sum, DATA, MORE, generator=seeded(n))[0].returned for n in (1, 1, 2)]
    assert returned[0] == returned[1] != returned[2]


@pytest.mark.parametrize("generator", [m.SecureGenerator(), m.FastGenerator()], ids=["secure", "fast"])
def test_a_generator_that_cannot_be_repeated_is_refused(generator):
    for check in (replay, lambda *given, **g: check_sensitivity(*given, sensitivity=1.0, **g)):
        with pytest.raises(InvalidParameterError, match=r"testing\.seeded"):
            check(noisy_sum, DATA, MORE, generator=generator)


# --- mechanisms of one's own ------------------------------------------------------------------------------


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
    methods = [(watch.kind, watch.method) for watch in WATCHED] + [(m.AboveThreshold, "__init__")]
    before = [getattr(kind, name) for kind, name in methods]
    with pytest.raises(LeakError):
        replay(LEAKS["answers differ"], DATA, MORE)
    assert [getattr(kind, name) for kind, name in methods] == before


def test_one_replay_at_a_time():
    with watched(Tape()), pytest.raises(InvalidParameterError, match="one at a time"):
        replay(noisy_sum, DATA, MORE)


def test_a_leak_is_an_error_of_ours_and_a_failed_assertion():
    assert issubclass(LeakError, SfumatoError)
    assert issubclass(LeakError, AssertionError)


def test_noise_from_elsewhere_is_not_judged():
    own = np.random.default_rng(0)
    with pytest.raises(InvalidParameterError, match="different answers on the same data"):
        replay(lambda rows, generator: noisy_sum(rows, generator) + own.normal(), DATA, MORE)
