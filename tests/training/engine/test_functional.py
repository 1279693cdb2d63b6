# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.training.engine.functional import Functional

both = pytest.mark.parametrize("vectorized", [True, False])
any_shape = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def mlp(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), *between, nn.Linear(4, 2)).double()


def squares(model, x):
    y = model(x).flatten(1)
    return y.square().sum(1) + y.sum(1)


class Doing(nn.Module):
    def __init__(self, do):
        super().__init__()
        self.do = do

    def forward(self, x):
        return self.do(x)


@both
@any_shape
@given(
    rows=st.sampled_from([2, 4]),
    steps=st.lists(st.integers(1, 3), max_size=2),
    per_unit=st.sampled_from([1, 2]),
)
def test_it_is_the_loop_over_units(pass_agrees, vectorized, rows, steps, per_unit):
    model = mlp()
    batch = (torch.randn(rows, *steps, 3).double(),)
    pass_agrees(Functional(model, squares, vectorized=vectorized), model, squares, batch, per_unit)


@both
def test_no_other_row_can_reach_a_gradient(loop, vectorized):
    model = mlp(Doing(lambda h: h - h.mean(0)))
    x = torch.randn(4, 3).double()
    found = Functional(model, squares, vectorized=vectorized).run((x,)).per_unit("0.weight")
    assert torch.allclose(found, loop(model, squares, (x,))["0.weight"])


@both
def test_parts_may_be_nested_or_missing(vectorized):
    model = mlp()

    def loss(m, weights, parts):
        assert weights is None and parts["more"][1] is None
        return squares(m, parts["x"]) + parts["more"][0]

    batch = (None, {"x": torch.randn(3, 3).double(), "more": [torch.zeros(3), None]})
    assert Functional(model, loss, vectorized=vectorized).run(batch).per_unit("0.bias").shape == (3, 4)


@both
def test_no_rows_have_no_gradients(vectorized):
    run = Functional(mlp(), squares, vectorized=vectorized).run((torch.zeros(0, 3).double(),))
    groups = [["0.weight", "0.bias", "2.weight", "2.bias"]]
    assert run.squared_norms(groups).shape == (1, 0)
    assert not run.weighted_sums(groups, torch.zeros(1, 0))["0.weight"].any()


@both
def test_dropout_draws_anew_for_each_row(vectorized):
    model = mlp(nn.Dropout(0.5))
    found = Functional(model, squares, vectorized=vectorized).run((torch.ones(20, 3).double(),))
    assert len({tuple(row) for row in found.per_unit("3.weight").flatten(1).tolist()}) > 3


@both
def test_parameters_that_no_loss_depends_on_have_zero_gradients(vectorized):
    model = mlp()
    found = Functional(model, lambda m, x: x.sum(1), vectorized=vectorized).run((torch.ones(2, 3).double(),))
    assert not found.per_unit("0.weight").any() and found.per_unit("0.weight").shape == (2, 4, 3)
    found = Functional(model, lambda m, x: m[0](x).sum(1), vectorized=vectorized).run(
        (torch.ones(2, 3).double(),)
    )
    assert not found.per_unit("2.weight").any() and found.per_unit("0.weight").any()


class Own(torch.autograd.Function):
    """A function with a derivative of its own, of the kind that vmap does not take."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize(
    "do",
    [lambda h: h if float(h.detach().sum()) > 0 else -h, Own.apply],
    ids=["values decide", "own derivative"],
)
def test_what_vmap_cannot_do_is_done_row_by_row_with_one_warning(loop, do):
    model = mlp(Doing(do))
    engine, x = Functional(model, squares), torch.randn(4, 3).double()
    with pytest.warns(UserWarning, match=r"row by row"):
        found = engine.run((x,)).per_unit("0.weight")
    assert torch.allclose(found, loop(model, squares, (x,))["0.weight"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.run((x,))


def test_an_error_of_the_model_is_passed_on():
    model = mlp(Doing(lambda h: h @ torch.ones(7, 7).double()))
    with pytest.raises(RuntimeError, match=r"shape"):
        Functional(model, squares).run((torch.ones(2, 3).double(),))


def test_out_of_memory_is_passed_on_at_once():
    calls = []

    def full(h):
        calls.append(1)
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        Functional(mlp(Doing(full)), squares).run((torch.ones(2, 3).double(),))
    assert len(calls) == 1


@both
def test_a_loss_already_averaged_is_refused(vectorized):
    with pytest.raises(InvalidParameterError, match=r"reduction='none'"):
        Functional(mlp(), lambda m, x: m(x).mean(), vectorized=vectorized).run((torch.ones(2, 3).double(),))


def test_sums_are_not_rounded_under_autocast():
    model = nn.Linear(1, 1, bias=False)
    with torch.autocast("cpu", torch.bfloat16):
        run = Functional(model, lambda m, x: F.linear(x, m.weight.float())[:, 0].float()).run(
            (torch.ones(3001, 1),)
        )
        assert float(run.weighted_sums([["weight"]], torch.ones(1, 3001))["weight"]) == 3001


@both
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(vectorized, fails):
    def end(h):
        if fails:
            raise ValueError
        return h

    model = mlp(Doing(end))
    before = {name: id(p) for name, p in model.named_parameters()}
    try:
        Functional(model, squares, vectorized=vectorized).run((torch.ones(2, 3).double(),))
    except ValueError:
        assert fails
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert all(p.grad is None for p in model.parameters())
