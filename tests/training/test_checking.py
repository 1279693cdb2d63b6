# SPDX-License-Identifier: Apache-2.0
import random
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import UnsupportedModelError
from sfumato.testing import seeded
from sfumato.training import checking, cross_entropy
from sfumato.training.book_keeping import BookKeeping
from sfumato.training.checking import agree, self_check
from sfumato.training.projections import Projections
from sfumato.training.rules.linear import LinearOp


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


@engines
@pytest.mark.parametrize(
    "do",
    [
        lambda m, h: h - h.mean(0),
        lambda m, h: h / h.shape[0],
        lambda m, h: h + h.sum(0),
        lambda m, h: h.roll(1, 0) + h,
        lambda m, h: h[h.sum(1).argsort()],
        lambda m, h: F.softmax(h, 0),
        lambda m, h: F.batch_norm(h, None, None, training=True) if len(h) > 1 else h,
    ],
    ids=["centered", "over size", "plus sum", "rolled", "sorted", "softmax", "batch norm"],
)
def test_a_layer_that_mixes_examples_is_caught_and_parameters_are_named(engine, do):
    with pytest.raises(UnsupportedModelError, match=r"\['\d.weight'.*alone"):
        check(engine, mlp(do))


@engines
@pytest.mark.parametrize(
    "do",
    [
        lambda m, h: h - h.mean(0) if m.training else h,
        lambda m, h: h + h.sum(0) * 0.1 if m.training else h,
        lambda m, h: F.batch_norm(h, torch.zeros(4).double(), torch.ones(4).double(), training=m.training),
    ],
)
def test_a_layer_that_mixes_only_while_training_is_caught(engine, do):
    with pytest.raises(UnsupportedModelError, match=r"\['0.weight'.*examples beside it"):
        check(engine, mlp(do))
    assert check(engine, mlp(do).eval())


@engines
@pytest.mark.parametrize(
    "loss", [lambda m, x: squares(m, x) / len(x), lambda m, x: squares(m, x) * x.shape[0]]
)
def test_a_loss_divided_by_the_size_of_the_batch_is_caught(engine, loss):
    with pytest.raises(UnsupportedModelError, match=r"divided by the batch's size"):
        check(engine, mlp(), loss)


def test_an_average_given_to_every_row_is_harmless_where_only_its_sum_is_derived():
    assert check(book_keeping, mlp(), lambda m, x: squares(m, x).mean().expand(len(x)))
    with pytest.raises(UnsupportedModelError):  # a single direction shows that a row's loss is not its own
        check(projections, mlp(), lambda m, x: squares(m, x).mean().expand(len(x)))


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


@engines
def test_the_message_holds_no_number(engine):
    with pytest.raises(UnsupportedModelError) as error:
        check(engine, nn.Sequential(Doing(lambda m, h: h - h.mean(0)), nn.Linear(3, 2)).double()[0:2])
    assert not re.search(r"\d\.\d", str(error.value).replace("'1.", "'"))


@pytest.mark.parametrize("x", [X[:1], X[:1].expand(3, 3), X[:0]], ids=["one row", "equal rows", "no row"])
def test_rows_that_cannot_show_mixing_settle_nothing(x):
    assert not check(book_keeping, mlp(), x=x)
    assert not check(book_keeping, mlp(lambda m, h: h - h.mean(0) if len(h) > 3 else h), x=x)


@engines
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_left_out(engine, bad):
    x = X.clone()
    x[1] = bad
    assert check(engine, mlp(), x=x)
    x[2] = bad
    assert not check(engine, mlp(), x=x)  # one row is left
    with pytest.raises(UnsupportedModelError):
        check(engine, mlp(lambda m, h: h / len(h)), x=X[[0, 1, 3]])


@engines
def test_dropout_is_no_difference(engine):
    model = mlp(lambda m, h: F.dropout(h, 0.5, m.training))
    assert check(engine, model)
    assert check(engine, nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).double())


def test_randomness_that_cannot_be_repeated_is_refused():
    random.seed(0)
    with pytest.raises(UnsupportedModelError, match=r"randomness outside of torch's default generators"):
        check(book_keeping, mlp(lambda m, h: h * random.random() if m.training else h))


@engines
def test_a_parameter_that_the_loss_reaches_around_its_module_is_named(engine):
    model = mlp()
    kept = [model[0].weight]
    with pytest.raises(UnsupportedModelError, match=r"\['0.weight'\] around the modules.*weight decay"):
        check(engine, model, lambda m, x: squares(m, x) + sum(p.square().sum() for p in kept))


def test_another_trainable_model_in_the_loss_is_no_other_route():
    other = nn.Linear(2, 2).double()
    assert check(book_keeping, mlp(), lambda m, x: other(m(x)).square().sum(1))


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
    assert agree((wanted.double() * (1 + off)).to(dtype), wanted) == same


def test_gradients_must_be_finite_in_the_same_places():
    bad = torch.tensor([1.0, float("nan")])
    assert agree(bad, bad) and not agree(bad, torch.ones(2)) and not agree(torch.ones(2), bad)
    assert agree(torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize("in_double", [False, True])
def test_a_difference_counts_only_if_it_is_there_in_float64_too(monkeypatch, in_double):
    model, seen = nn.Linear(2, 2), []

    def different(engine, wanted, model, batch):
        seen.append(model.weight.dtype)
        return ["weight"] if model.weight.dtype == torch.float32 or in_double else []

    monkeypatch.setattr(checking, "_different", different)
    batch = torch.randn(3, 2), torch.tensor([0, 1, 0])
    if in_double:
        with pytest.raises(UnsupportedModelError, match="weight"):
            checking.self_check(BookKeeping(model, cross_entropy), model, cross_entropy, batch)
    else:
        assert checking.self_check(BookKeeping(model, cross_entropy), model, cross_entropy, batch)
    assert seen == [torch.float32, torch.float64] and model.weight.dtype == torch.float32


def test_a_model_that_cannot_run_in_float64_keeps_its_difference(monkeypatch):
    def only_single(model, x, y):
        return cross_entropy(model, x.float(), y)

    model = nn.Linear(2, 2)
    monkeypatch.setattr(checking, "_different", lambda *_: ["weight"])
    with pytest.raises(UnsupportedModelError, match="weight"):
        checking.self_check(
            BookKeeping(model, only_single), model, only_single, (torch.randn(3, 2), torch.tensor([0, 1, 0]))
        )
