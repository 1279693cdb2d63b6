# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import Tensor

from sfumato.errors import InvalidParameterError
from sfumato.labels.projection.simplex import onto_simplex

SLACK = 1e-9
entries = st.floats(-1e3, 1e3)
rows = st.integers(1, 7).flatmap(
    lambda n: st.lists(st.lists(entries, min_size=n, max_size=n), min_size=1, max_size=4)
)
totals = st.floats(1e-3, 1e3)


def by_root(row: Tensor, total: float) -> Tensor:
    """The threshold at which what is above it sums to the total, by root finding."""
    low, high = float(row.min()) - 2 * total, float(row.max())
    cut = brentq(lambda c: float((row - c).clamp(min=0).sum()) - total, low, high, xtol=1e-14)
    return (row - cut).clamp(min=0)


@given(rows, totals)
def test_it_is_the_thresholded_row_that_sums_to_the_total(values, total):
    tensor = torch.tensor(values, dtype=torch.float64)
    wanted = torch.stack([by_root(row, total) for row in tensor])
    assert torch.allclose(onto_simplex(tensor, total=total), wanted, rtol=1e-8, atol=1e-9)


@given(rows, totals)
def test_the_result_lies_in_the_simplex_and_is_left_alone(values, total):
    found = onto_simplex(torch.tensor(values, dtype=torch.float64), total=total)
    assert bool((found >= 0).all())
    assert torch.allclose(found.sum(-1), torch.full_like(found.sum(-1), total), rtol=1e-10)
    assert torch.allclose(onto_simplex(found, total=total), found, rtol=SLACK, atol=SLACK)


@given(rows, st.integers(0, 2**31 - 1))
def test_no_two_rows_are_taken_apart(values, seed):
    one = torch.tensor(values, dtype=torch.float64)
    other = one + torch.randn(one.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    moved = (onto_simplex(one) - onto_simplex(other)).norm(dim=-1)
    assert bool((moved <= (one - other).norm(dim=-1) + SLACK).all())


@given(rows)
def test_no_vertex_is_nearer_in_the_direction_of_the_row(values):
    tensor = torch.tensor(values, dtype=torch.float64)
    found = onto_simplex(tensor)
    rest = tensor - found
    assert bool((rest.amax(-1) <= (rest * found).sum(-1) + 1e-9).all())  # <v - w, e_j - w> <= 0 for all j


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_huge_equal_and_infinite_entries(dtype):
    inf = torch.inf
    values = torch.tensor(
        [[1e30, 1e30, -1e30], [1e8, 1e8, 1e8], [inf, 1.0, inf], [-inf, 2.0, 2.0], [-inf, -inf, -5.0]],
        dtype=dtype,
    )
    third = 1 / 3
    wanted = [[0.5, 0.5, 0.0], [third, third, third], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    found = onto_simplex(values)
    assert found.dtype is dtype
    assert torch.allclose(found, torch.tensor(wanted, dtype=dtype))


def test_a_small_difference_between_huge_entries_is_kept():
    values = torch.tensor([1e6, 1e6 - 0.5], dtype=torch.float32)
    assert onto_simplex(values).tolist() == [0.75, 0.25]


def test_any_number_of_axes_and_no_rows():
    assert onto_simplex(torch.tensor([5.0])).tolist() == [1.0]
    assert onto_simplex(torch.zeros(2, 3, 4)).shape == (2, 3, 4)
    assert onto_simplex(torch.zeros(0, 4)).shape == (0, 4)


@pytest.mark.parametrize(
    "values",
    [torch.zeros(3, 0), torch.tensor(1.0), torch.zeros(2, dtype=torch.long), torch.tensor([0.0, torch.nan])],
    ids=["no entries", "scalar", "integers", "nan"],
)
def test_what_has_no_nearest_point_is_refused(values):
    with pytest.raises(InvalidParameterError, match="values"):
        onto_simplex(values)


def test_a_row_of_minus_infinity_and_a_total_of_zero_are_refused():
    with pytest.raises(InvalidParameterError, match="minus infinity"):
        onto_simplex(torch.full((2, 3), -torch.inf))
    with pytest.raises(InvalidParameterError, match="total"):
        onto_simplex(torch.zeros(3), total=0.0)
