# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.training.engine.tape import operation
from sfumato.training.engine.tape.operation import Memory


@given(st.integers(0, 100), st.integers(0, 100))
def test_memory_is_given_while_it_lasts(limit, asked):
    memory = Memory(limit)
    assert memory.admits(asked) == (asked <= limit) == memory.take(asked)
    assert memory.left == limit - (asked if asked <= limit else 0)


@pytest.mark.parametrize("size", [1, 1000, operation._LONG + 1, 4_000_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_long_gradients_are_not_rounded_down(size, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, size, generator=generator).to(dtype)
    wanted = x.double().square().sum(1)
    assert torch.allclose(operation.squared_norm(x).double(), wanted, rtol=5e-5)


def test_norms_and_sums_of_no_units_are_empty_and_zero():
    x = torch.zeros(0, 3, 2)
    assert operation.squared_norm(x).shape == (0,)
    assert operation.weighted_sum(x, torch.zeros(0)).tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_sum_over_a_batch_is_not_rounded_to_a_coarse_type(dtype, autocast):
    x = torch.ones(
        3001, 1, dtype=dtype
    )  # bfloat16 has no number between 3001 and its neighbors 2992 and 3008
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = operation.weighted_sum(x, torch.ones(3001))
    assert float(found) == 3001 and found.dtype is operation.norm_dtype(x)
