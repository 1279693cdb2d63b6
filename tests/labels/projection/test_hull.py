# SPDX-License-Identifier: Apache-2.0
"""The gap bounds the distance to the nearest point of a hull, whatever the weights are."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.labels.projection.hull import Problem, check_stop, dot


class Corners:
    """The corners of a simplex of three rows with two classes: the hull whose projection is known."""

    rows, classes = 3, 2

    def neutral(self):
        return torch.full((3, 2), 0.5, dtype=torch.float64)

    def combine(self, weights):
        return {"w": weights.flatten()}

    def against(self, direction):
        return direction["w"].reshape(3, 2)

    def columns(self, rows, classes):
        return {"w": torch.eye(6, dtype=torch.float64)[rows * 2 + classes]}


def problem(target, *, each=False):
    return Problem(Corners(), {"w": torch.tensor(target, dtype=torch.float64)}, each, 1e-3)


numbers = st.lists(st.floats(-5, 5), min_size=6, max_size=6)


@settings(max_examples=60, deadline=None)
@given(target=numbers, weights=numbers)
def test_the_gap_bounds_the_squared_distance_to_the_nearest_point(target, weights):
    one = problem(target)
    state = one.at(one.nearest(one.blocks(torch.tensor(weights, dtype=torch.float64))))
    nearest = one.nearest(one.flat.unsqueeze(0))  # of the simplex itself
    away = float((state.point - nearest.flatten()).square().sum())
    assert away <= one.gap(state) + 1e-9
    result = one.result(state, 0)
    assert math.sqrt(away) <= result.distance_bound + 1e-6


def test_the_nearest_point_has_no_gap_and_another_has_one():
    one = problem([2.0, 0, 0, 0, 0, 0])
    corner = torch.tensor([[1.0, 0, 0, 0, 0, 0]], dtype=torch.float64)
    assert one.gap(one.at(corner)) == 0 and one.done(one.at(corner))
    other = one.at(corner.roll(1, 1))
    assert one.gap(other) > 0 and not one.done(other)


def test_weights_of_each_row_have_the_same_total():
    one = problem([9.0, 0, 0, 0, 0, 0], each=True)
    assert one.start(None).weights.sum(1).tolist() == pytest.approx([1 / 3] * 3)
    assert problem([9.0, 0, 0, 0, 0, 0]).start(None).weights.sum() == pytest.approx(1.0)


def test_states_between_two_states_are_affine():
    one = problem([1.0, -2, 3, 0, 0, 0])
    first, second = (one.at(torch.eye(6, dtype=torch.float64)[i : i + 1]) for i in (0, 1))
    middle = first.toward(second, 0.25)
    direct = one.at(middle.weights)
    assert torch.allclose(middle.point, direct.point) and torch.allclose(middle.slopes, direct.slopes)


def test_what_has_no_projection_is_refused():
    for wrong in (math.nan, math.inf):
        with pytest.raises(InvalidParameterError, match="NaN or an infinity"):
            problem([wrong, 0, 0, 0, 0, 0])
    with pytest.raises(InvalidParameterError, match="start must be"):
        problem([0.0] * 6).start(torch.zeros(2, 2))
    for tolerance, most in ((0.0, 5), (math.nan, 5), (1e-3, 0)):
        with pytest.raises(InvalidParameterError):
            check_stop(tolerance, most)


def test_inner_products_are_summed_in_float64():
    large, small = torch.tensor([1e7, 1.0, -1e7]), torch.tensor([1e7, 1.0, 1e7])
    assert dot(large, small) == 1.0
