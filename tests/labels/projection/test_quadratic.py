# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.labels.projection.quadratic import minimize_on_simplex
from sfumato.labels.projection.simplex import onto_simplex


def points(seed: int, count: int, size: int) -> torch.Tensor:
    return torch.randn(count, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**31 - 1), st.integers(1, 12), st.integers(1, 8), st.floats(0.01, 100))
def test_the_minimum_meets_the_optimality_condition(seed, count, size, scale):
    columns = points(seed, count, size)
    columns[count // 2] = columns[0]  # equal columns: the minimum is not one point alone
    gram, linear = scale * columns @ columns.T, scale * columns @ points(seed + 1, 1, size)[0]
    found = minimize_on_simplex(gram, linear)
    slopes = gram @ found - linear
    assert bool((found >= 0).all())
    assert float(found.sum()) == pytest.approx(1)
    assert float(found @ slopes - slopes.amin()) <= 1e-8 * float(gram.diagonal().amax())


def test_with_a_unit_matrix_it_is_the_projection_on_the_simplex():
    linear = points(0, 1, 20)[0]
    found = minimize_on_simplex(torch.eye(20, dtype=torch.float64), linear)
    assert torch.allclose(found, onto_simplex(linear), atol=1e-9)


def test_a_start_is_improved_and_left_as_it_was():
    gram, start = torch.eye(3, dtype=torch.float64), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    found = minimize_on_simplex(gram, torch.tensor([0.0, 5.0, 0.0], dtype=torch.float64), start=start)
    assert found.tolist() == pytest.approx([0, 1, 0])
    assert start.tolist() == [1, 0, 0]


def test_the_first_face_decides_the_way_and_not_the_minimum():
    columns = points(7, 20, 30)
    gram, linear = columns @ columns.T, columns @ points(8, 1, 30)[0]
    start = torch.full((20,), 0.05, dtype=torch.float64)
    for free in (torch.arange(20) < 3, torch.arange(20) >= 3):
        found = minimize_on_simplex(gram, linear, start=start, free=free)
        assert torch.allclose(found, minimize_on_simplex(gram, linear), atol=1e-8)


def test_at_the_limit_of_solves_a_point_of_the_simplex_is_returned():
    columns = points(3, 30, 10)
    found = minimize_on_simplex(columns @ columns.T, columns @ points(4, 1, 10)[0], most_solves=2)
    assert bool((found >= 0).all())
    assert float(found.sum()) == pytest.approx(1)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(InvalidParameterError, match="square"):
        minimize_on_simplex(torch.eye(2), torch.zeros(3))


@pytest.mark.parametrize("count, size", [(223, 1), (112, 26), (279, 8)])
def test_many_columns_in_few_dimensions_are_solved_too(count, size):
    """Where Q has a low rank, pivoting goes round in circles."""
    columns = points(count, count, size)
    gram, linear = columns @ columns.T, columns @ points(1, 1, size)[0]
    slopes = gram @ (found := minimize_on_simplex(gram, linear)) - linear
    assert bool((found >= 0).all()) and float(found.sum()) == pytest.approx(1)
    assert float(found @ slopes - slopes.amin()) <= 1e-8 * float(gram.diagonal().amax())
