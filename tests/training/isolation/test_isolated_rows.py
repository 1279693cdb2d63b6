# SPDX-License-Identifier: Apache-2.0
"""Models that mix, sort, route and gather rows: what one row adds to the sum must be its own, clipped.

Most of these passed a self-check on three rows for some data sets, and then moved a clipped sum by up to
92 clip norms. Here each is either computed as a loop over examples computes it, or refused.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.errors import UnsupportedUseError
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.functional import Functional
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.projections import Projections
from sfumato.training.isolation.isolated_rows import Isolated, is_row
from sfumato.training.privacy.clipping import Clipper, Clipping


class Mixing(nn.Module):
    def __init__(self, do):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.other = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.do = do

    def forward(self, x):
        return self.do(self, x)


def squares(model, x):
    y = model(x).flatten(1)
    return y.square().sum(1) + y.sum(1)


def _sorted(m, x):
    order = x.sum(1).argsort()
    return m.head(m.first(x[order])[order.argsort()].tanh())


def _routed(m, x):
    h = m.first(x)
    return m.head(torch.where((x.sum(1) > 0)[:, None], h.relu(), h.tanh()))


def _gathered(m, x):
    top = x.sum(1).topk(1).indices
    return m.head(m.first(x).index_select(0, top))


def _gathered_tokens(m, x):
    """Picks two tokens a row, the largest of all: as many as there are, whosever they are."""
    tokens = m.first(x).unflatten(1, (2, 3)).flatten(0, 1)
    return m.head(tokens[tokens.sum(1).topk(2 * len(x)).indices].view(len(x), 6))


def _layer_drop(m, x):
    h = m.first(x)
    return m.head(h if torch.rand([]) < 0.5 else h.tanh())


COMPUTED = {
    "sorted": _sorted,
    "routed by where": _routed,
    "gathered by topk": _gathered,
    "tokens gathered by topk": _gathered_tokens,
    "plus a little of the sum": lambda m, x: m.head(m.first(x + 0.005 * x.sum(0)).tanh()),
    "plus a little of the sum later": lambda m, x: m.head(m.first(x).tanh() + 0.005 * m.first(x).sum(0)),
    "rolled": lambda m, x: m.head(m.first(x.roll(1, 0) + x).tanh()),
    "flipped": lambda m, x: m.head(m.first(0.5 * x + 0.5 * x.flip(0)).tanh()),
    "centered": lambda m, x: m.head(m.first(x).tanh() - m.first(x).tanh().mean(0)),
    "over size": lambda m, x: m.head(m.first(x).tanh() / len(x)),
    "softmax over the batch": lambda m, x: m.head(F.softmax(m.first(x), 0) * x.sum(1, keepdim=True)),
    "batch norm": lambda m, x: m.head(
        F.batch_norm(
            m.first(x)[..., None].expand(-1, -1, 2) * torch.tensor([1.0, 2.0]).to(x),
            None,
            None,
            training=True,
        ).sum(-1)
    ),
    "products of all pairs": lambda m, x: m.head(m.first(x).tanh()) * (x @ x.T).sum(1, keepdim=True),
    "cumulated": lambda m, x: m.head(m.first(x).tanh().cumsum(0)),
    "padded and cut": lambda m, x: m.head(F.pad(m.first(x), (0, 0, 1, 0))[: len(x)] + m.first(x)),
    "drawn once for all": _layer_drop,
}
REFUSED = {
    "picked by a mask": lambda m, x: m.head(m.first(x)[x.sum(1) > -1e9]),
    "picked by nonzero": lambda m, x: m.head(m.first(x)[(x.sum(1) > -1e9).nonzero()[:, 0]]),
    "a branch on a value": lambda m, x: m.head(m.first(x)) if x.sum() > 0 else m.head(-m.first(x)),
    "by numpy": lambda m, x: m.head(m.first(x)) * float(x.detach().numpy().sum()),
    "by a list": lambda m, x: m.head(m.first(x)) * sum(x.sum(1).tolist()),
    "an item": lambda m, x: m.head(m.first(x)) * x.sum().item(),
    "a gradient of its own": lambda m, x: _penalized(m, x),
    "a gradient of its own in training": lambda m, x: _penalized(m, x) if m.training else m.head(m.first(x)),
}


def _penalized(m, x):
    x = x.requires_grad_()
    y = m.head(m.first(x).tanh())
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return torch.cat([y, slope], 1)


def data(seed, rows=16):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([0.1, 1.0, 30.0], dtype=torch.float64)[
        torch.randint(3, (rows, 1), generator=generator)
    ]
    return scale * torch.randn(rows, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", [name for name in COMPUTED if name != "drawn once for all"])
def test_each_row_gets_the_gradient_that_it_has_alone(pass_agrees, name):
    model = Mixing(COMPUTED[name]).double()
    for seed in range(8):
        x = data(seed)
        pass_agrees(BookKeeping(model, squares), model, squares, (x,), tolerance=1e-8)


@pytest.mark.parametrize("name", COMPUTED)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), row=st.integers(0, 15))
def test_one_row_moves_the_clipped_sum_by_at_most_its_bound(name, seed, row):
    model = Mixing(COMPUTED[name]).double()
    names = [n for n, _ in model.named_parameters()]
    clipper = Clipper(Clipping(clip_norm=1.0), dict(model.named_parameters()))
    x = data(seed)

    def total(x):
        torch.manual_seed(0)
        sums = clipper.sums(BookKeeping(model, squares).run((x,))).sums
        return torch.cat([sums[n].flatten() for n in names])

    without = torch.cat([x[:row], x[row + 1 :]])
    replaced = torch.cat([without[:row], 100 * data(seed + 1, 1), without[row:]])
    assert (total(x) - total(without)).norm() <= 1 + 1e-9
    assert (total(x) - total(replaced)).norm() <= 2 + 1e-9


def test_mixing_that_is_weak_for_one_row_and_large_in_sum_moves_nothing():
    model, x = Mixing(COMPUTED["plus a little of the sum"]).double(), data(0, 2000)
    clipper = Clipper(Clipping(clip_norm=1.0), dict(model.named_parameters()))

    def total(x):
        sums = clipper.sums(BookKeeping(model, squares).run((x,))).sums
        return torch.cat([part.flatten() for part in sums.values()])

    mixed = x + 0.005 * x.sum(0)
    assert (mixed - x).norm(dim=1).min() > 1  # far for all rows, though each adds little
    large = torch.cat([x[:-1], torch.full((1, 4), 1e4, dtype=torch.float64)])
    assert (total(x) - total(large)).norm() <= 2 + 1e-9
    wanted = clipped_loop(model, x[:100])
    assert torch.allclose(total(x[:100]), torch.cat([part.flatten() for part in wanted.values()]))


@pytest.mark.parametrize("name", REFUSED)
def test_what_looks_at_values_is_refused_and_left_to_the_reference(name):
    model = Mixing(REFUSED[name]).double()
    with pytest.raises(UnsupportedUseError):
        BookKeeping(model, squares).run((data(0),))
    private = PrivateGradients(model, squares, clip_norm=1.0, noise_multiplier=1e-9, expected_batch_size=1)
    with pytest.warns(UserWarning, match="functional engine"):
        private.backward(data(0))
    assert private.engine == "Functional"
    wanted = clipped_loop(model, data(0))
    for name, p in model.named_parameters():
        assert torch.allclose(p.grad, wanted[name], atol=1e-6)


def alone_of(model, x):
    return torch.autograd.grad(squares(model, x).sum(), list(model.parameters()), materialize_grads=True)


def clipped_loop(model, x):
    totals = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for row in x:
        grads = alone_of(model, row[None])
        norm = torch.cat([g.flatten() for g in grads]).norm()
        for name, g in zip(totals, grads, strict=True):
            totals[name] += g * min(1.0, 1 / max(float(norm), 1e-30))
    return totals


# --- tokens that are picked by values -----------------------------------------------------------------------


def _picked_tokens(m, x):
    h, picked = m.first(torch.stack([x, 2 * x], 1)).tanh(), x[:, :2] > 0
    out = h.new_zeros(len(x), 2, 3)
    out[picked] = m.head(h[picked])
    return out.sum(1)


def _experts(m, x):
    """Sends each token to one of two layers, as a mixture of experts that is written by hand."""
    h, first = m.first(torch.stack([x, 2 * x], 1)).tanh(), x[:, :2] > 0
    out = h.new_zeros(len(x), 3)
    for layer, chosen in ((m.head, first), (m.other, ~first)):
        out = out.index_add(0, chosen.nonzero()[:, 0], layer(h[chosen]))
    return out


def _one_token_a_row_on_average():
    """Return rows of which each of the first three has one token picked, and the others two or none."""
    x = data(0, 15).abs()
    x[:, :2] *= torch.tensor([[1, -1]] * 3 + [[1, 1], [-1, -1]] * 6)
    return x


@pytest.mark.parametrize("do", [_picked_tokens, _experts])
def test_as_many_tokens_as_rows_are_not_taken_for_one_of_each_row(do):
    model, x = Mixing(do).double(), _one_token_a_row_on_average()
    private = PrivateGradients(model, squares, clip_norm=1.0, noise_multiplier=1e-9, expected_batch_size=1)
    with pytest.warns(UserWarning, match="functional engine"):
        private.backward(x)
    wanted = clipped_loop(model, x)
    assert all(torch.allclose(p.grad, wanted[name], atol=1e-6) for name, p in model.named_parameters())


@pytest.mark.parametrize("engine", [BookKeeping, Functional])
def test_the_same_model_is_refused_or_run_whatever_the_values(engine):
    outcomes = set()
    for x in (
        data(0),
        torch.zeros(16, 4).double(),
        -data(1).abs(),
        data(2).abs() * 1e300,
        data(3) * torch.nan,
    ):
        try:
            BookKeeping(Mixing(REFUSED["a branch on a value"]).double(), squares).run((x,))
            outcomes.add("run")
        except UnsupportedUseError:
            outcomes.add("refused")
    assert outcomes == {"refused"}


# --- functions of the user's own ----------------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    """A function that torch.func can transform: its rule for batches is generated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(tuple(range(x.dim() - w.dim())))


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


class OwnRule(Scaled):
    """Its rule sees all rows, and adds them up."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x, w):
        return x.sum(0, keepdim=True) * w + x * 0, 0


class Custom(nn.Module):
    def __init__(self, function, only_in_training=False):
        super().__init__()
        torch.manual_seed(0)
        self.w, self.head = nn.Parameter(torch.randn(4)), nn.Linear(4, 3)
        self.function, self.only = function, only_in_training

    def forward(self, x):
        return self.head(self.function.apply(x, self.w) if self.training or not self.only else x * self.w)


@pytest.mark.parametrize("only_in_training", [False, True])
def test_a_function_of_the_users_keeps_the_gradient_of_its_parameter(agrees, only_in_training):
    agrees(Custom(Scaled, only_in_training).double(), squares, data(0))


@pytest.mark.parametrize("only_in_training", [False, True])
@pytest.mark.parametrize("function", [OldStyle, OwnRule])
@pytest.mark.filterwarnings("ignore:torch.func.vmap cannot run")
def test_a_function_that_cannot_be_isolated_is_run_row_by_row(pass_agrees, function, only_in_training):
    model = Custom(function, only_in_training).double()
    with pytest.raises(UnsupportedUseError):
        BookKeeping(model, squares).run((data(0),))
    pass_agrees(Functional(model, squares), model, squares, (data(0),))


# --- the context itself -------------------------------------------------------------------------------------


def test_rows_go_in_and_come_out_in_order():
    x = torch.arange(12.0).reshape(4, 3)
    with Isolated(4) as rows:
        row = rows.split(x)
        assert row.shape == (1, 3) and is_row(row)
        assert not is_row(torch.zeros(3))
        joined, shared = rows.join(row * 2), rows.join(torch.ones(2))
    assert torch.equal(joined[:, 0], 2 * x) and shared.tolist() == [[1.0, 1.0]] * 4


def test_no_value_of_a_row_is_printed():
    secret = torch.tensor([[31337.0], [4242.0]])
    with Isolated(2) as rows:
        row = rows.split(secret)
        texts = [repr(row), str(row), f"{row}", f"{row.sum()}", f"{[row]}"]
    assert not any("31337" in text or "4242" in text for text in texts)
    assert all("row of shape" in text for text in texts)


@pytest.mark.parametrize("way", ["split", "inside"])
def test_everything_is_put_back_after_an_error(way):
    with pytest.raises(ZeroDivisionError), Isolated(2) as rows:
        row = rows.split(torch.ones(2, 3))
        if way == "inside":
            rows.on_batch(lambda: 1 / 0)
        raise ZeroDivisionError(row.dim())
    assert torch._C._functorch.maybe_current_level() is None
    assert not torch.compiler.is_compiling()
    assert torch.overrides._get_current_function_mode_stack() == []


def test_draws_are_independent_for_each_row_and_single_numbers_are_shared():
    torch.manual_seed(0)
    with Isolated(1000) as rows:
        row = rows.split(torch.ones(1000, 50))
        dropped = rows.join(F.dropout(row, 0.5))[:, 0]
        own = rows.join(torch.rand(3))
        single = torch.rand([])
        assert not is_row(single) and float(single) >= 0  # it may decide what is computed
    assert len({tuple(d) for d in dropped.tolist()}) > 990
    assert own.unique(dim=0).shape[0] == 1000


@pytest.mark.parametrize("do", ["sorted", "plus a little of the sum", "over size"])
def test_projections_see_one_row_at_a_time(do):
    model = Mixing(COMPUTED[do]).double()
    names = [n for n, _ in model.named_parameters()]
    run = Projections(model, squares, projections=2).run((data(0),))
    one = torch.zeros(1, 16, dtype=torch.float64)
    run.squared_norms([names])
    for row in (0, 7):
        sums = run.weighted_sums([names], one.index_fill(1, torch.tensor([row]), 1.0))
        alone = alone_of(model, data(0)[row : row + 1])
        assert all(torch.allclose(sums[n], g) for n, g in zip(names, alone, strict=True))
