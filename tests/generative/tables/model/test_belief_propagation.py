# SPDX-License-Identifier: Apache-2.0
"""Beliefs are the marginals of the joint distribution, whatever the potentials are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.generative.tables.model.belief_propagation import (
    ImpossibleError,
    Propagation,
    aligned,
    summed_to,
)
from sfumato.generative.tables.model.junction_tree import junction_tree
from tests.generative.tables.model.joint import joint_of, models


@given(models(scale=30.0))
def test_beliefs_are_the_marginals_of_the_joint_distribution(model):
    sizes, potentials = model
    joint, log_total = joint_of(sizes, potentials)
    tree = junction_tree(sizes, potentials)
    found = Propagation(tree, sizes, tuple(potentials)).run(potentials)
    assert found.log_total == pytest.approx(log_total, abs=1e-9)
    for axes, table in zip(found.axes, found.tables, strict=True):
        np.testing.assert_allclose(table, summed_to(joint, tuple(range(len(sizes))), axes), atol=1e-12)


@given(models(scale=1e4))
def test_no_finite_potential_makes_a_belief_nan(model):
    sizes, potentials = model
    found = Propagation(junction_tree(sizes, potentials), sizes, tuple(potentials)).run(potentials)
    for table in found.tables:
        assert np.isfinite(table).all() and table.sum() == pytest.approx(1.0)


def test_potentials_far_beyond_the_range_of_floats_keep_their_ratio():
    potentials = {(0, 1): np.array([[-5000.0, -5001.0], [0.0, 3000.0]]), (1,): np.array([5000.0, -5000.0])}
    sizes = (2, 2)
    found = Propagation(junction_tree(sizes, potentials), sizes, tuple(potentials)).run(potentials)
    assert found.tables[0][1, 0] == 1.0 and found.log_total == 5000.0


def test_a_forbidden_cell_has_no_probability():
    potentials = {(0,): np.array([0.0, -np.inf]), (0, 1): np.zeros((2, 3))}
    found = Propagation(junction_tree((2, 3), potentials), (2, 3), tuple(potentials)).run(potentials)
    np.testing.assert_allclose(summed_to(found.tables[0], found.axes[0], (0,)), [1.0, 0.0])


def test_a_row_of_forbidden_cells_keeps_probability_zero():
    potentials = {(0, 1): np.zeros((2, 2)), (1, 2): np.array([[0.0, 0.0], [-np.inf, -np.inf]])}
    found = Propagation(junction_tree((2, 2, 2), potentials), (2, 2, 2), tuple(potentials)).run(potentials)
    for axes, table in zip(found.axes, found.tables, strict=True):
        np.testing.assert_allclose(summed_to(table, axes, (1,)), [1.0, 0.0])


def test_forbidding_everything_is_an_error():
    potentials = {(0,): np.full(2, -np.inf)}
    with pytest.raises(ImpossibleError):
        Propagation(junction_tree((2,), potentials), (2,), ((0,),)).run(potentials)


def test_a_potential_outside_the_tree_is_refused():
    with pytest.raises(ValueError, match="no clique"):
        Propagation(junction_tree((2, 2), [(0,), (1,)]), (2, 2), ((0, 1),))


@given(st.permutations([0, 1, 2]))
def test_alignment_and_sums_follow_the_order_of_columns(order):
    values = np.arange(24.0).reshape(2, 3, 4)
    turned = aligned(values, (0, 1, 2), tuple(order))
    np.testing.assert_array_equal(summed_to(turned, tuple(order), (0, 1, 2)), values)
    np.testing.assert_array_equal(summed_to(turned, tuple(order), (2,)), values.sum(axis=(0, 1)))
