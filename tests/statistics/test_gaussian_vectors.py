# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from sfumato.accounting import zcdp
from sfumato.accounting.events import compose
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import ArrayRows
from sfumato.statistics.gaussian_vectors import (
    Concentrated,
    VectorGaussian,
    ball_reach,
    for_each_column,
    in_ball,
    row_products,
    whole_rows,
)
from sfumato.testing import seeded

ALPHA = 1e-6
ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
any_float = st.floats(allow_nan=False)
three = st.lists(st.tuples(any_float, any_float, any_float), min_size=1, max_size=6)


@given(rows=three, radius=st.floats(1e-6, 1e6), center=st.tuples(*[st.floats(-1e3, 1e3)] * 3))
@settings(max_examples=150, deadline=None)
def test_a_row_is_never_longer_than_the_ball(rows, radius, center):
    inside = in_ball(np.array(rows), np.array(center), radius)
    assert np.isfinite(inside).all()
    whole = whole_rows(inside, steps=2**20)
    reach = ball_reach(3, 2**20, rows=1, relation=ADD)
    assert (np.linalg.norm(whole, axis=1) <= reach).all()


@given(rows=st.lists(st.tuples(*[st.floats(-2, 2)] * 3), min_size=1, max_size=6), radius=st.floats(1e-6, 1e6))
@settings(max_examples=150, deadline=None)
def test_a_row_near_the_ball_is_never_longer_either(rows, radius):
    inside = in_ball(np.array([*rows, (0.9, 0.9, 0.9)]) * radius, np.zeros(3), radius)
    assert (np.linalg.norm(inside, axis=1) <= 1 + 1e-12).all()


def test_rows_inside_the_ball_stay_and_others_keep_their_direction():
    rows = np.array([[1.0, 1.0], [30.0, 40.0], [0.0, 0.0], [math.inf, 0.0]])
    assert in_ball(rows, np.zeros(2), 10.0).tolist() == [[0.1, 0.1], [0.6, 0.8], [0, 0], [1, 0]]


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_a_row_is_computed_alike_whoever_is_beside_it(size, seed):
    numbers = np.random.default_rng(seed)
    rows, matrix = numbers.normal(size=(size, 7)), numbers.normal(size=(5, 7))
    together = row_products(rows, matrix)
    assert together.tobytes() == np.vstack([row_products(row[None], matrix) for row in rows]).tobytes()
    assert np.allclose(together, rows @ matrix.T)
    assert in_ball(rows, rows[0], 1.5)[1:].tobytes() == in_ball(rows[1:], rows[0], 1.5).tobytes()


def test_noise_has_the_stated_stddev_in_every_coordinate():
    noise = VectorGaussian(stddev=2.0, sensitivity=1.0, relation=ADD)
    drawn = noise.add(np.full((20, 50), 7), generator=seeded(1)) - 7
    assert kstest(drawn.ravel(), norm(scale=2.0).cdf).pvalue > ALPHA
    assert kstest(drawn.ravel(), norm(scale=2.8).cdf).pvalue < ALPHA


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("rho", [1e-4, 0.5, 20.0])
def test_noise_of_a_rho_costs_that_rho(relation, rho):
    noise = VectorGaussian.of_rho(rho=rho, sensitivity=3.0, relation=relation)
    assert rho * (1 - 1e-9) < zcdp.rho(noise.event(), relation) <= rho * (1 + 1e-12)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
def test_shares_of_an_epsilon_add_up_to_it(relation, epsilon):
    terms = Concentrated(epsilon=epsilon, delta=1e-6, relation=relation, public_size=10)
    event = compose(*(terms.noise(share, 5.0).event() for share in (0.08, 0.23, 0.69)))
    cost = price(event, delta=1e-6, relation=relation).epsilon
    assert epsilon * (1 - 1e-6) < cost <= epsilon


def test_secure_noise_is_the_default():
    noise = VectorGaussian(stddev=2.0, sensitivity=1.0, relation=ADD)
    assert noise.add(np.zeros(3, dtype=np.int64)).tolist() != noise.add(np.zeros(3, dtype=np.int64)).tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": None},
        {"rho": 0.5},
        {"epsilon": 0.0},
        {"delta": 0.0},
        {"epsilon": None, "rho": math.nan},
        {"relation": "replace-one"},
        {"relation": "zero-out"},
        {"public_size": 0},
        {"contribution_bound": 0},
    ],
)
def test_bad_terms_are_refused(changes):
    with pytest.raises(InvalidParameterError):
        Concentrated(**({"epsilon": 1.0, "delta": 1e-6} | changes))


def test_bounds_are_one_for_all_columns_or_one_for_each():
    rows = ArrayRows(np.zeros((1, 2)), ("a", "b"))
    assert for_each_column((0, 1), rows) == ((0, 1), (0, 1))
    assert for_each_column([(0, 1), (2, 3)], rows) == ((0, 1), (2, 3))
    with pytest.raises(InvalidParameterError, match="3 bounds"):
        for_each_column([(0, 1)] * 3, rows)
