# SPDX-License-Identifier: Apache-2.0
"""Less common routes from one row to another: errors that are caught, hooks, seeds, shapes that broadcast.

Each moved the clipped sum by the factor that is noted with it. Now one row moves it by one clip norm at most.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import UnsupportedUseError
from sfumato.testing import seeded
from sfumato.training.data.augmentation import Augmenter
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.isolation.isolated_rows import Isolated
from sfumato.training.models.transfer import _features
from sfumato.training.privacy.clipping import Clipping

from ..gradients import private_gradients

falls_back = pytest.mark.filterwarnings(
    "ignore:.*oing on with the functional engine", "ignore:torch.func.vmap cannot run"
)
ROWS, SLACK = 8, 1e-4


class Silent:
    """A noise source that adds nothing."""

    generator = seeded(0)

    def add_(self, sums, *, stddev, step):
        pass


class Model(nn.Module):
    """Two layers with something in between; the dropout makes the self-check look at evaluation mode."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last, self.drop = nn.Linear(5, 4), nn.Linear(4, 2), nn.Dropout(1e-6)
        self.between = between

    def forward(self, x):
        h = self.first(self.drop(x))
        return self.last(self.between(h, x) if self.training else h).square().sum(1)


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(ROWS, 5, generator=generator) + 0.1
    x[0] *= 50
    x[5, 0] = -1.0  # the row on which matrices are not positive, indices out of range, and so on
    return x


def clipped_sum(model, *batch, **options):
    torch.manual_seed(2)
    private = private_gradients(
        model,
        lambda model, *row: model(*row),
        clipping=Clipping(clip_norm=1.0),
        noise_multiplier=1.0,
        expected_batch_size=1.0,
        noise=Silent(),
        microbatch_size=2 * ROWS,
        **options,
    )
    private.backward(*batch)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def moved(make, *batch, **options):
    """By how many clip norms a row moves the sum: the most over all rows."""
    whole = clipped_sum(make(), *batch, **options)
    others = [[j for j in range(len(batch[0])) if j != i] for i in range(len(batch[0]))]
    without = [clipped_sum(make(), *(t[rest] for t in batch), **options) for rest in others]
    return max(float((whole - each).norm()) for each in without)


def negative(x):
    return (x[0, :1] < 0).long()


FAILING = {  # of the row whose first number is negative; by all of them a row moved the sum by 6.5
    "cholesky": lambda x: torch.linalg.cholesky(torch.eye(2) * x[0, 0]),
    "inverse": lambda x: torch.linalg.inv(torch.eye(2) * (1 - negative(x))),
    "gather": lambda x: torch.zeros(3).gather(0, 9 * negative(x)),
    "embedding": lambda x: F.embedding(9 * negative(x), torch.zeros(3, 2)),
    "index": lambda x: torch.zeros(3)[9 * negative(x)],
    "cross entropy": lambda x: F.cross_entropy(x, 9 * negative(x)),
    "multinomial": lambda x: torch.multinomial((1.0 - negative(x)).expand(3), 1),
    "repeats": lambda x: torch.repeat_interleave(torch.ones(1), 1 + negative(x)),
    "argwhere": lambda x: torch.argwhere(x > 0),
}


@pytest.mark.parametrize("engine", ["auto", "functional"])
@pytest.mark.parametrize("failing", FAILING)
@pytest.mark.filterwarnings(
    "ignore:.*oing on with the functional engine", "ignore:torch.func.vmap cannot run"
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_an_error_of_one_row_that_the_model_catches_does_not_reach_others(failing, engine):
    def between(h, x):
        try:
            FAILING[failing](x)
        except (RuntimeError, IndexError):
            return -3 * h - 3
        return h + 1

    assert moved(lambda: Model(between), data(), engine=engine) <= 1 + SLACK


class Inner(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, x):
        return x + x.sum(in_dims[0], keepdim=True), in_dims[0]


class Outer(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return Inner.apply(grad)


def _hooked(h, x):
    def unpacked(t):
        return t.sum(0, keepdim=True).expand_as(t) if t.dim() > 1 and len(t) > 1 else t

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpacked):
        return h * h.sigmoid()


def _seeded(h, x):
    return h * (torch.rand(h.shape, generator=torch.Generator().manual_seed(3)) - 0.5) * 10


def _set_seed(h, x):
    torch.manual_seed(3)
    return h * (torch.rand(h.shape) - 0.5) * 10


ROUTES = {
    "a fixed seed (4.1)": _set_seed,
    "hooks on saved tensors (2.8)": _hooked,
    "a generator with a fixed seed (4.1)": _seeded,
    "a vmap rule in a backward pass (2.4)": lambda h, x: Outer.apply(h),
}


@pytest.mark.parametrize("engine", ["auto", "functional"])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.filterwarnings(
    "ignore:.*oing on with the functional engine", "ignore:torch.func.vmap cannot run"
)
def test_what_sees_all_rows_or_the_place_of_one_runs_row_by_row(route, engine):
    assert moved(lambda: Model(ROUTES[route]), data(), engine=engine) <= 1 + SLACK


@falls_back
def test_a_seed_that_a_model_takes_from_a_row_does_not_stay_behind():
    seeds = []

    def from_row(h, x):
        seeds.append(int(1000 * float(x.sum().abs())))
        torch.manual_seed(seeds[-1])
        return h

    clipped_sum(Model(from_row), data())
    assert len(seeds) >= ROWS and torch.initial_seed() not in seeds


def test_memory_that_may_be_another_rows_is_refused():  # a row moved the sum by 2.9
    with pytest.raises(UnsupportedUseError, match="another row"), Isolated(3) as rows:
        rows.split(torch.ones(3, 4)).clone().resize_(6, 4)


class Attending(Model):
    """Attention whose keys and values have an axis less than the queries: all heads share them."""

    def __init__(self):
        super().__init__(None)
        self.queries = nn.Linear(5, 12)

    def forward(self, x):
        return torch.stack([self.one(self.drop(row)) for row in x.split(1)])

    def one(self, x):
        queries, keys = self.queries(x).reshape(1, 4, 1, 3), self.first(x)[:, :3].tanh().reshape(1, 1, 3)
        y = F.scaled_dot_product_attention(queries, keys, keys)
        return (y.reshape(-1, 12).sum() + self.last.weight.sum() + self.last.bias.sum()).square()


def test_attention_with_fewer_axes_in_keys_keeps_rows_apart(agrees):
    agrees(Attending().double().eval(), lambda model, x: model(x), data().double())


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.bag, self.last = nn.EmbeddingBag(10, 4, mode="sum"), nn.Linear(4, 2)

    def forward(self, tokens, offsets):
        return self.last(self.bag(tokens[0], offsets[0])).square().sum().reshape(1)


def test_tokens_before_the_first_offset_stay_in_their_row():
    # They were put into the last bag of the row before: a row moved the sum by 1.9.
    tokens = torch.randint(10, (8, 7), generator=torch.Generator().manual_seed(0))
    offsets = torch.tensor([[0, 3]] * 8)
    offsets[4], offsets[6] = torch.tensor([3, 5]), torch.tensor([6, 6])
    assert moved(Bags, tokens, offsets, engine="book-keeping", check=False) <= 1 + SLACK


def test_gradients_through_weights_of_samples_in_a_bag_are_not_lost(agrees):
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.bag, self.weigh = nn.EmbeddingBag(10, 4, mode="sum"), nn.Linear(5, 5)

        def forward(self, x):
            return self.bag(x.long().clamp(0, 9), per_sample_weights=self.weigh(x)).square().sum(1)

    agrees(Weighted().double(), lambda model, x: model(x), data().double())


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_trainable_first_state_of_a_frozen_recurrence_is_seen(agrees, layer):
    cell, pair = issubclass(layer, nn.RNNCellBase), layer in (nn.LSTM, nn.LSTMCell)

    class Started(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = layer(5, 4).requires_grad_(False)
            self.first = nn.Parameter(torch.randn(1, 4) if cell else torch.randn(1, 1, 4))

        def forward(self, x):
            found = self.layer(x if cell else x[None], (self.first, self.first) if pair else self.first)
            return (found[0] if isinstance(found, tuple) else found).reshape(1, -1).square().sum(1)

    agrees(Started().double(), lambda model, x: torch.cat([model(r) for r in x.split(1)]), data().double())


def _caught(x):
    try:
        torch.linalg.cholesky(torch.eye(2) * x[0, 0])
    except RuntimeError:
        return -x
    return x


def test_an_error_that_an_augmentation_catches_changes_no_other_row():
    x = data()
    (found,) = Augmenter(lambda batch, generator: (_caught(batch[0]),))((x,), rows_per_unit=1, seed=0)
    assert torch.equal(found, torch.cat([_caught(row) for row in x.split(1)]))


def test_an_error_that_a_frozen_network_catches_changes_no_other_features():
    class Network(nn.Module):
        def forward(self, x):
            return _caught(x)

    assert torch.equal(_features(Network(), data()), torch.cat([_caught(row) for row in data().split(1)]))


@pytest.mark.parametrize(
    "use",
    [
        lambda x: torch.argwhere(x > -1e9).to(x).sum(),
        lambda x: x.repeat_interleave((x[0] > -1e9).long(), 1),
        lambda x: torch.repeat_interleave((x[0] > -1e9).long()).to(x).sum(),
        lambda x: x.masked_select(x > -1e9),
        lambda x: x.unique().sum(),
        lambda x: (x[0] > 0).long().bincount(minlength=2).to(x).sum(),
    ],
)
def test_sizes_that_values_decide_are_refused_also_where_all_rows_agree(use):
    model = nn.Linear(5, 2)
    with pytest.raises(UnsupportedUseError):
        BookKeeping(model, lambda m, x: m(x).sum(1) * use(x).sum()).run((torch.ones(4, 5),))


def test_repetitions_that_are_the_same_for_all_rows_agree(agrees):
    def repeated(model, x):
        return model(x.repeat_interleave(2, 1)[:, :5]).square().sum(1)

    agrees(nn.Linear(5, 2).double(), repeated, data().double())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_module_is_run_row_by_row():
    model = nn.Sequential(nn.Linear(5, 4), torch.jit.script(nn.Tanh()))
    with pytest.raises(UnsupportedUseError, match="scripted"):
        BookKeeping(model, lambda m, x: m(x).sum(1)).run((data(),))
