# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

sizes = st.integers(1, 4)
any_shape = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
OPERATIONS = {
    "x + w": lambda x, w: x + w,
    "w + x": lambda x, w: w + x,
    "x * w": lambda x, w: x * w,
    "w * x": lambda x, w: w * x,
    "x - w": lambda x, w: x - w,
    "w - x": lambda x, w: w - x,
    "x / w": lambda x, w: x / w,
    "w / x": lambda x, w: w / (x.square() + 1),
    "add_": lambda x, w: (x * 1).add_(w),
    "mul_": lambda x, w: (x * 1).mul_(w),
    "sub_": lambda x, w: (x * 1).sub_(w),
    "div_": lambda x, w: (x * 1).div_(w),
    "torch.add": lambda x, w: torch.add(x, w, alpha=3),
    "torch.sub": lambda x, w: torch.sub(w, x, alpha=3),
    "torch.mul": torch.mul,
    "torch.div": torch.div,
}


class Bare(nn.Module):
    def __init__(self, use, *shape):
        super().__init__()
        self.w = nn.Parameter(1 + torch.rand(shape, dtype=torch.float64))
        self.use = use

    def forward(self, x):
        return self.use(x, self.w)


def squares(model, x):
    y = model(x).reshape(len(x), -1)
    return y.square().sum(1) + y.sum(1)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", [(), (3,), (1,), (2, 3), (2, 1), (1, 2, 3), (1, 1, 3), (1, 2, 1)])
def test_a_parameter_that_is_broadcast_over_rows_agrees_with_the_loop(agrees, operation, shape):
    torch.manual_seed(0)
    agrees(Bare(OPERATIONS[operation], *shape), squares, torch.randn(4, 2, 3).double())


@any_shape
@given(
    rows=st.sampled_from([2, 4, 6]), steps=sizes, features=sizes, cut=st.integers(0, 2), leading=st.booleans()
)
def test_any_shape_agrees_even_where_sizes_are_alike(agrees, rows, steps, features, cut, leading):
    shape = (steps, features)[cut:]
    shape = (*[1] * (3 - len(shape)), *shape) if leading else shape
    agrees(Bare(lambda x, w: x * w + w, *shape), squares, torch.randn(rows, steps, features).double())


@pytest.mark.parametrize("size", [(-1, 1, 3), (-1, -1, -1)])
def test_a_class_token_that_is_expanded_and_put_before_the_rest_agrees(agrees, size):
    def use(x, w):
        return torch.cat([w.expand(len(x), *size[1:]), x], 1)

    agrees(Bare(use, 1, 1, 3), squares, torch.randn(4, 2, 3).double())


def test_a_parameter_expanded_like_a_sequence_agrees(agrees):
    agrees(Bare(lambda x, w: x * w.expand(x.shape), 3), squares, torch.randn(4, 2, 3).double())
    agrees(Bare(lambda x, w: x * w.expand(*x.shape), 2, 3), squares, torch.randn(4, 2, 3).double())


def test_a_detached_parameter_has_no_gradient(agrees):
    agrees(Bare(lambda x, w: x * w.detach() + w, 3), squares, torch.randn(4, 2, 3).double())


@pytest.mark.parametrize(
    "use",
    [
        lambda x, w: x.transpose(0, 1) * w,  # rows are not on the first axis
        lambda x, w: x[0] * w + x,  # meets something without rows
        lambda x, w: w + 1.0,
        lambda x, w: w * w + x,
        lambda x, w: 1.0 - w,
        lambda x, w: w.expand(2, len(x), 3).transpose(0, 1) + x,
    ],
)
def test_any_other_use_of_a_bare_parameter_agrees_with_the_loop(agrees, use):
    agrees(Bare(use, 3), lambda model, x: squares(model, x)[:1], torch.randn(4, 2, 3).double())
