# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.errors import UnsupportedUseError
from sfumato.training.engine.book_keeping import BookKeeping

sizes = st.integers(1, 7)
# The fixture is a pure function, so that it may be shared by all examples.
any_shape = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def squares(model, x):
    y = model(x).flatten(1)
    return y.square().sum(1) + y.sum(1)


class Calling(nn.Module):
    """A model that applies its two parameters as told."""

    def __init__(self, apply, *shape):
        super().__init__()
        self.w = nn.Parameter(torch.randn(*shape, dtype=torch.float64))
        self.b = nn.Parameter(torch.randn(shape[-1], dtype=torch.float64))
        self.apply_to = apply

    def forward(self, x):
        return self.apply_to(x, self.w, self.b)


@any_shape
@given(n_in=sizes, n_out=sizes, steps=st.lists(sizes, max_size=2), bias=st.booleans())
def test_linear_agrees_with_the_loop_for_any_shape(agrees, n_in, n_out, steps, bias):
    torch.manual_seed(0)
    model = nn.Linear(n_in, n_out, bias=bias).double()
    agrees(model, squares, torch.randn(4, *steps, n_in).double())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(self.a(x)).relu_())


@pytest.mark.parametrize("steps", [(), (2,), (9,)])
def test_a_weight_that_is_tied_and_used_three_times_agrees(agrees, steps):
    torch.manual_seed(0)
    agrees(Tied().double(), squares, torch.randn(4, *steps, 3).double())


def test_a_frozen_weight_with_a_trainable_bias_agrees(agrees):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model[0].weight.requires_grad_(False)
    agrees(model, squares, torch.randn(4, 5, 3).double())


@pytest.mark.parametrize("steps", [2, 3, 4, 6])
def test_rows_on_the_second_axis_are_found_even_where_steps_are_as_many(agrees, steps):
    model = Calling(lambda x, w, b: F.linear(x.transpose(0, 1), w).transpose(0, 1), 3, 3)
    model.b.requires_grad_(False)
    agrees(model, squares, torch.randn(4, steps, 3).double())


def test_rows_flattened_with_the_steps_are_found(agrees):
    model = Calling(lambda x, w, b: torch.addmm(b, x.reshape(-1, 3), w).reshape(*x.shape[:-1], 4), 3, 4)
    agrees(model, squares, torch.randn(4, 5, 3).double())


@pytest.mark.parametrize("steps", [(), (5,)])
def test_matrix_products_by_hand_agree(agrees, steps):
    agrees(Calling(lambda x, w, b: x @ w + b, 3, 4), squares, torch.randn(4, *steps, 3).double())


def test_an_input_changed_in_place_afterwards_is_refused():
    def careless(x, w, b):
        h = x * 1
        y = h @ w
        h.add_(1)
        return y + b

    with pytest.raises(UnsupportedUseError, match="changed in place"):
        BookKeeping(Calling(careless, 3, 4), squares).run((torch.randn(4, 3).double(),))


def test_an_operation_without_a_rule_agrees_by_copies(agrees):
    agrees(
        Calling(lambda x, w, b: F.normalize(w, dim=0).sum() * x, 3, 4), squares, torch.randn(4, 3).double()
    )
