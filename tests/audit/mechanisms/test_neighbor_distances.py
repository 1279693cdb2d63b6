# SPDX-License-Identifier: Apache-2.0
"""What each mechanism allows neighbors to differ by: up to its sensitivity, and not beyond."""

import numpy as np
import pytest
import torch

from sfumato import mechanisms as m
from sfumato.accounting.guarantee import Relation
from sfumato.audit.mechanisms.neighbor_distances import WATCHED, LeakError, comparison_of, score_at
from sfumato.statistics.gaussian_vectors import VectorGaussian
from sfumato.statistics.noise import Kind, WholeNoise

ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
SCORES = {"epsilon": 1.0, "sensitivity": 2.0}
ASKING = {"threshold": 1.0, "threshold_epsilon": 1.0, "comparison_epsilon": 1.0, "sensitivity": 2.0}
ASKING |= {"max_answers": 1, "relation": ADD}
LINE = m.IntervalExponential(**SCORES, relation=REPLACE, bounds=(0.0, 1.0))
TESTED = m.ProposeTestRelease(proposed_sensitivity=0.5, test_epsilon=1.0, release_epsilon=1.0, delta=0.1)


def whole(delta):
    return WholeNoise(
        epsilon=1.0,
        delta=delta,
        relation=ADD,
        kind=Kind.COUNTS,
        l1_sensitivity=4,
        l2_sensitivity=3.0,
        coordinates=2,
    )


def units(relation):
    return m.GridGaussian(clip_norm=1.0, granularity=2.0**-10, stddev=1.0, dimension=1, relation=relation)


def rows(*values):
    return (torch.tensor(values, dtype=torch.float64).reshape(-1, 1),)


def array(*values):
    return (np.array(values, dtype=np.float64),)


# For each mechanism: what it is given, what neighbors may give it, what they may not, and what is then said.
CHECKS = {
    "a number": (
        m.Laplace(scale=1.0, sensitivity=2.0, relation=ADD),
        (1.0,),
        [(3.0,), (-1.0,)],
        [((3.1,), "a number by 2.1"), ((float("nan"),), "nan")],
    ),
    "a whole number": (
        m.DiscreteGaussian(stddev=1.0, sensitivity=2, relation=ADD),
        (1,),
        [(3,)],
        [((4,), "a number by 3")],
    ),
    "a value": (m.AboveThreshold(**ASKING), (0.0,), [(2.0,)], [((2.5,), r"a value by 2\.5")]),
    "an answered value": (
        m.SparseVector(**ASKING, answer_epsilon=1.0),
        (0.0,),
        [(2.0,)],
        [((2.5,), r"a value by 2\.5")],
    ),
    "numbers, added up": (
        whole(0.0),
        ([1, 1, 1],),
        [([5, 1, 1],), ([2, 2, 3],)],
        [(([6, 1, 1],), "added up, by 5"), (([1, 1],), "how many numbers")],
    ),
    "numbers, in Euclidean norm": (
        whole(0.1),
        ([1, 1, 1],),
        [([4, 1, 1],), ([3, 3, 1],)],
        [(([5, 1, 1],), "Euclidean norm, by 4"), (([2, 2, 2],), "so many by 3"), (([1],), "how many")],
    ),
    "a vector": (
        VectorGaussian(stddev=1.0, sensitivity=5.0, relation=ADD),
        array(0.0, 0.0),
        [array(3.0, 4.0)],
        [(array(3.0, 4.1), "a vector, in Euclidean norm"), (array(3.0), "how many numbers")],
    ),
    "scores": (
        m.Exponential(**SCORES, relation=REPLACE),
        ([0.0, 1.0],),
        [([2.0, -1.0],)],
        [(([2.1, 1.0],), r"a score by 2\.1"), (([0.0],), "how many candidates")],
    ),
    "monotonic scores": (
        m.NoisyMax(**SCORES, relation=ADD, monotonic=True),
        ([0.0, 1.0],),
        [([2.0, 1.5],), ([-1.0, 0.0],)],
        [(([1.0, 0.0],), "both directions")],
    ),
    "scores of intervals": (
        LINE,
        ([0.0, 0.5, 1.0], [0.0, 1.0]),
        [([0.0, 0.25, 1.0], [1.0, 2.0])],
        [(([0.0, 0.25, 1.0], [1.0, 2.1]), r"a score by 2\.1")],
    ),
    "a test": (
        TESTED,
        (0.0, 5),
        [(0.5, 4), (0.5, 6)],
        [((0.0, 3), "a distance by 2"), ((0.6, 4), r"a number by 0\.6")],
    ),
    "a failed test": (TESTED, (0.0, 0), [(9.0, 0)], [((9.0, 1), "a number by 9")]),
    "units": (
        units(ADD),
        rows(1, 2),
        [rows(2, 1), rows(2), rows(2, 3, 1)],
        [(rows(1, 3), "takes 1 units and brings 1"), (rows(), "takes 2")],
    ),
    "replaced units": (
        units(REPLACE),
        rows(1, 2),
        [rows(3, 1)],
        [(rows(1), "takes 1 units and brings 0"), (rows(3, 4), "takes 2")],
    ),
    "answers": (
        m.RandomizedResponse(noise_parameter=0.5),
        ([0, 1, 1],),
        [([1, 1, 1],)],
        [(([1, 0, 1],), "so many by 2"), (([0, 1],), "how many people")],
    ),
}


def check_of(mechanism):
    (found,) = (watch.check for watch in WATCHED if isinstance(mechanism, watch.kind))
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_neighbors_may_differ_by_the_sensitivity(name):
    mechanism, given, neighbors, _ = CHECKS[name]
    for neighbor in (given, *neighbors):
        check_of(mechanism)(mechanism, given, neighbor)
        check_of(mechanism)(mechanism, neighbor, given)


@pytest.mark.parametrize("name", CHECKS)
def test_neighbors_may_not_differ_by_more(name):
    mechanism, given, _, strangers = CHECKS[name]
    for stranger, says in strangers:
        with pytest.raises(LeakError, match=says):
            check_of(mechanism)(mechanism, given, stranger)


def test_every_mechanism_that_releases_is_watched_once():
    kinds = [watch.kind for watch in WATCHED]
    assert len(set(kinds)) == len(kinds)
    public = {getattr(m, name) for name in m.__all__}
    noisy = {kind for kind in public if isinstance(kind, type) and hasattr(kind, "event")}
    assert noisy <= set(kinds)
    assert all(callable(getattr(watch.kind, watch.method)) for watch in WATCHED)


def test_the_score_of_a_point_is_that_of_its_interval():
    points = np.array([0.1, 0.5, 0.9])
    assert score_at(points, [0.0, 0.5, 1.0], [3.0, 7.0]).tolist() == [3.0, 7.0, 7.0]


def test_the_comparison_of_a_sparse_vector_run_is_the_one_inside():
    above, sparse = m.AboveThreshold(**ASKING), m.SparseVector(**ASKING, answer_epsilon=1.0)
    assert comparison_of(above) is above
    assert isinstance(comparison_of(sparse), m.AboveThreshold)
