# SPDX-License-Identifier: Apache-2.0
import random
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import UnsupportedModelError
from sfumato.testing import seeded
from sfumato.training import cross_entropy
from sfumato.training.engine import self_check as checks
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.projections import Projections
from sfumato.training.engine.rules.linear import LinearOp
from sfumato.training.engine.self_check import agree, refuse_other_routes, self_check


class Doing(nn.Module):
    def __init__(self, do):
        super().__init__()
        self.do = do

    def forward(self, x):
        return self.do(self, x)


def squares(model, x):
    y = model(x).flatten(1)
    return y.square().sum(1) + y.sum(1)


def mlp(do=lambda m, h: h):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), Doing(do), nn.Tanh(), nn.Linear(4, 2)).double()


X = torch.tensor([[1.0, 0, 2], [0, 1, -1], [3, 1, 0], [5, 5, 5]], dtype=torch.float64)


def book_keeping(model, loss):
    return BookKeeping(model, loss)


def projections(model, loss):
    return Projections(model, loss, projections=3, generator=seeded(0))


engines = pytest.mark.parametrize("engine", [book_keeping, projections])


def check(engine, model, loss=squares, x=X):
    return self_check(engine(model, loss), model, loss, (x,))


@engines
def test_a_right_model_passes_and_is_left_as_it_was(engine):
    model = mlp()
    model[2].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    assert check(engine, model)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state) and all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("per_unit", lambda right: lambda self, slot: right(self, slot) * 1.5),
        ("weighted_sum", lambda right: lambda self, slot, weights: right(self, slot, weights) * 1.5),
        ("squared_norm", lambda right: lambda self, slot: right(self, slot) * 0.5),
        ("squared_norm", lambda right: lambda self, slot: right(self, slot) * float("nan")),
    ],
)
def test_a_rule_with_a_bug_is_caught_wherever_it_is(monkeypatch, method, wrong):
    monkeypatch.setattr(LinearOp, method, wrong(getattr(LinearOp, method)))
    with pytest.raises(UnsupportedModelError, match=r"'3.weight'.*rule of the fast engine is wrong"):
        check(book_keeping, mlp())


def test_only_the_parameters_that_differ_are_named(monkeypatch):
    right = LinearOp.per_unit
    monkeypatch.setattr(LinearOp, "per_unit", lambda op, slot: right(op, slot) * (2 if slot == "bias" else 1))
    with pytest.raises(UnsupportedModelError, match=re.escape("['0.bias', '3.bias']")):
        check(book_keeping, mlp())


def test_the_message_holds_no_number(monkeypatch):
    monkeypatch.setattr(LinearOp, "per_unit", lambda op, slot: torch.full((3, 2, 3), 3.25).double())
    with pytest.raises(UnsupportedModelError) as error:
        check(book_keeping, nn.Linear(3, 2, bias=False).double())
    assert not re.search(r"\d\.\d", str(error.value).replace("'1.", "'"))


@engines
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_left_out(engine, bad):
    x = X.clone()
    x[1] = bad
    assert check(engine, mlp(), x=x)
    x[:3] = bad
    assert not check(engine, mlp(), x=x)  # none is left, so the next batch is looked at


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_that_is_zero_but_for_rounding_is_no_difference(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 6, 1), nn.GroupNorm(6, 6), nn.Tanh(), nn.Flatten(), nn.Linear(24, 2))
    x = torch.randn(3, 2, 4, dtype=dtype)
    assert check(book_keeping, model.to(dtype), x=x)  # the bias of the convolution moves nothing
    attention = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True).to(dtype)  # nor does that of keys
    assert check(book_keeping, attention, x=torch.randn(3, 5, 8, dtype=dtype))


def test_a_wrong_gradient_of_a_small_parameter_is_caught_all_the_same(monkeypatch):
    right = LinearOp.per_unit
    monkeypatch.setattr(LinearOp, "per_unit", lambda op, slot: right(op, slot) * (2 if slot == "bias" else 1))
    with pytest.raises(UnsupportedModelError, match="bias"):
        check(book_keeping, nn.Linear(3, 2).double(), x=1e4 * X)


@engines
def test_dropout_is_no_difference(engine):
    model = mlp(lambda m, h: F.dropout(h, 0.5, m.training))
    assert check(engine, model)
    assert check(engine, nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).double())


def test_randomness_that_cannot_be_repeated_is_refused():
    random.seed(0)
    with pytest.raises(UnsupportedModelError, match=r"random beyond dropout"):
        check(book_keeping, mlp(lambda m, h: h * random.random()))


def test_a_model_that_runs_only_in_training_mode_is_checked_in_it():
    def only(m, h):
        if not m.training:
            raise RuntimeError("no evaluation here")
        return h

    assert check(book_keeping, mlp(only))


@pytest.mark.parametrize("only_in_training", [False, True])
def test_a_parameter_that_the_loss_reaches_around_its_module_is_named(only_in_training):
    model = mlp()
    kept = [model[0].weight]

    def decayed(m, x):
        decay = sum(p.square().sum() for p in kept) if m.training or not only_in_training else 0
        return squares(m, x) + decay

    with pytest.raises(UnsupportedModelError, match=r"\['0.weight'\] around the modules.*weight decay"):
        refuse_other_routes(model, decayed, (X,))


def test_another_trainable_model_in_the_loss_is_no_other_route():
    other = nn.Linear(2, 2).double()
    refuse_other_routes(mlp(), lambda m, x: other(m(x)).square().sum(1), (X,))


@pytest.mark.parametrize(
    ("dtype", "off", "same"),
    [
        (torch.float64, 1e-8, True),
        (torch.float64, 1e-4, False),
        (torch.float32, 1e-3, True),
        (torch.float32, 0.1, False),
        (torch.bfloat16, 0.05, True),
        (torch.bfloat16, 0.5, False),
    ],
)
def test_gradients_agree_up_to_the_rounding_of_their_type(dtype, off, same):
    wanted = torch.ones(10, dtype=dtype)
    assert agree((wanted.double() * (1 + off)).to(dtype), wanted, 0.0) == same


@pytest.mark.parametrize(
    ("dtype", "off", "same"), [(torch.float64, 1e-11, True), (torch.float64, 1e-8, False)]
)
def test_a_gradient_of_zero_may_be_off_by_the_rounding_of_the_whole(dtype, off, same):
    zero = torch.zeros(10, dtype=dtype)
    assert agree(zero + off / 10**0.5, zero, 1.0) == same


def test_gradients_must_be_finite_in_the_same_places():
    bad = torch.tensor([1.0, float("nan")])
    assert agree(bad, bad, 0.0) and not agree(bad, torch.ones(2), 0.0) and not agree(torch.ones(2), bad, 0.0)
    assert agree(torch.zeros(2), torch.zeros(2), 0.0)


@pytest.mark.parametrize("in_double", [False, True])
def test_a_difference_counts_only_if_it_is_there_in_float64_too(monkeypatch, in_double):
    model, seen = nn.Linear(2, 2), []

    def different(engine, model, loss, batch, norms, parts):
        seen.append(model.weight.dtype)
        return ["weight"] if model.weight.dtype == torch.float32 or in_double else []

    monkeypatch.setattr(checks, "_different_in", different)
    batch = torch.randn(3, 2), torch.tensor([0, 1, 0])
    if in_double:
        with pytest.raises(UnsupportedModelError, match="weight"):
            self_check(BookKeeping(model, cross_entropy), model, cross_entropy, batch)
    else:
        assert self_check(BookKeeping(model, cross_entropy), model, cross_entropy, batch)
    assert seen == [torch.float32, torch.float64] and model.weight.dtype == torch.float32


def test_a_model_that_cannot_run_in_float64_keeps_its_difference(monkeypatch):
    def only_single(model, x, y):
        return cross_entropy(model, x.float(), y)

    model = nn.Linear(2, 2)
    monkeypatch.setattr(checks, "_different", lambda *_: ["weight"])
    with pytest.raises(UnsupportedModelError, match="weight"):
        self_check(
            BookKeeping(model, only_single), model, only_single, (torch.randn(3, 2), torch.tensor([0, 1, 0]))
        )
