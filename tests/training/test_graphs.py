# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from torch import nn

from sfumato.testing import seeded
from sfumato.training.book_keeping import BookKeeping
from sfumato.training.clipping import AdaptiveClip, ClippedSums, Clipper, Clipping
from sfumato.training.gradients import PrivateGradients
from sfumato.training.graphs import Graphs, Replay

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
CLIPPING = Clipping(clip_norm=0.5, adaptive=AdaptiveClip(count_noise_multiplier=1.0))


def squares(model, x):
    return model(x).square().sum(1)


def weighted_squares(model, weights, x):
    return squares(model, x) * (1 if weights is None else weights)


def graphs_of(model):
    parameters = dict(model.named_parameters())
    return Graphs(BookKeeping(model, weighted_squares), Clipper(CLIPPING, parameters), model)


X, Y = torch.zeros(4, 3), torch.zeros(4, 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (((None, X), 1), ((None, X), 2)),
        (((None, X), 1), ((None, X[:2]), 1)),
        (((None, X), 1), ((None, X.double()), 1)),
        (((None, X), 1), ((X, None), 1)),
        (((None, X), 1), ((X[:, 0], X), 1)),
        # Tensors are copied in order: the same shapes under other names are another batch.
        (((None, {"a": X, "b": X}), 1), ((None, {"b": X, "a": X}), 1)),
        (((None, [X], X), 1), ((None, [X, X]), 1)),
    ],
    ids=["units", "rows", "type", "weights", "no weights", "names", "nesting"],
)
def test_batches_that_need_a_recording_of_their_own_have_a_key_of_their_own(one, other):
    graphs = graphs_of(nn.Linear(3, 2))
    assert graphs._key(*one) == graphs._key(*one)
    assert graphs._key(*one) != graphs._key(*other)


def test_a_key_does_not_depend_on_values():
    graphs = graphs_of(nn.Linear(3, 2))
    assert graphs._key((None, X), 1) == graphs._key((None, X + 1), 1)


def test_autocast_has_a_key_of_its_own():
    graphs = graphs_of(nn.Linear(3, 2))
    plain = graphs._key((None, X), 1)
    with torch.autocast("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16):
        cast = graphs._key((None, X), 1)
    assert (plain != cast) == torch.cuda.is_available()


def test_parameters_that_moved_in_memory_are_noticed():
    model = nn.Linear(3, 2)
    graphs = graphs_of(model)
    before = graphs._pointers()
    with torch.no_grad():
        model.weight.add_(1)
    assert graphs._pointers() == before
    model.weight.data = model.weight.data.clone()
    assert graphs._pointers() != before


@pytest.mark.parametrize(("total", "finite"), [(3.0, True), (math.inf, False), (math.nan, False)])
def test_a_replay_tells_whether_all_norms_are_finite(total, finite):
    assert Replay(sums=ClippedSums({}), total=torch.tensor(total)).finite() == finite


class Pretended(Graphs):
    """Computes at once what a graph would compute, on any device."""

    def takes(self, batch):
        return True

    def replay(self, batch, per_unit):
        total, sums = self._pass(batch, per_unit)
        return Replay(sums=sums, total=total)


class Counting:
    def __init__(self):
        self.generator = seeded(0)
        self.added = 0

    def add_(self, sums, *, stddev, step):
        self.added += 1
        for total in sums:
            total.add_(1000.0)


def private_of(model, *, graphs, **options):
    options = {
        "noise_multiplier": 1.0,
        "expected_batch_size": 1.0,
        "noise": Counting(),
        "check": False,
        **options,
    }
    private = PrivateGradients(model, squares, clipping=CLIPPING, **options)
    if graphs:
        private._graphs = Pretended(private._engine, private.clipper, private._model)
    return private


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 0.0])])
def test_sums_that_were_not_finite_are_thrown_away_with_their_noise_and_computed_anew(
    bad, microbatch_size, weights
):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(6, 3)
    if bad is not None:
        x[1, 1] = bad
    found = []
    for graphs in (True, False):
        private = private_of(model, graphs=graphs, microbatch_size=microbatch_size)
        private.accumulate(x, row_weights=weights)
        below = []
        adapt = private.clipper.adapt
        private.clipper.adapt = lambda count, below=below, adapt=adapt, **options: (
            below.append(float(count)) or adapt(count, **options)
        )
        private.finish()
        found.append((model.weight.grad.clone(), below, private.bound, private.steps))
        assert private._pieces == []
    assert torch.allclose(found[0][0], found[1][0]) and found[0][1:] == found[1][1:]
    assert 500 < float(found[0][0].mean()) < 1500  # noise was added once to what is released


def test_without_a_gpu_batches_are_run_as_ever():
    model = nn.Linear(3, 2)
    private = PrivateGradients(
        model, squares, clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=4, cuda_graphs=True
    )
    private.backward(torch.randn(4, 3))
    assert model.weight.grad.isfinite().all() and private._pieces == []


@needs_gpu
@pytest.mark.parametrize("per_unit", [1, 2])
def test_a_replay_is_what_the_engine_computes_with_the_parameters_of_now(per_unit):
    model = nn.Linear(3, 2).cuda()
    graphs = graphs_of(model)
    for _ in range(3):
        x = torch.randn(4, 3, device="cuda")
        with torch.no_grad():
            model.weight.add_(0.1)
        found = graphs.replay((None, x), per_unit)
        wanted = graphs._clipper.sums(graphs._engine.run((None, x), per_unit=per_unit))
        assert found.finite() and torch.allclose(found.sums.sums["weight"], wanted.sums["weight"], rtol=1e-3)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        x = self.tokens(x)
        return self.head(self.norm(x + self.attention(x, x, x, need_weights=False)[0]))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, 2),
        nn.Flatten(),
        nn.Linear(72, 5),
    )


def whole_squares(model, weights, x):
    return model(x).float().square().flatten(1).sum(1) * (1 if weights is None else weights)


@needs_gpu
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize(
    ("make", "batch"),
    [(Attending, lambda: torch.randint(0, 50, (6, 40))), (convolutional, lambda: torch.randn(6, 3, 9, 9))],
    ids=["transformer", "convolutions"],
)
def test_replays_follow_the_weights_also_where_autocast_keeps_casts_of_them(make, batch, cast):
    torch.manual_seed(0)
    model = make().cuda()
    clipper = Clipper(CLIPPING, dict(model.named_parameters()))
    graphs = Graphs(BookKeeping(model, whole_squares), clipper, model)
    for _ in range(4):
        x = batch().cuda()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        with torch.autocast("cuda", torch.bfloat16, enabled=cast):
            found = graphs.replay((None, x), 1)
            wanted = clipper.sums(graphs._engine.run((None, x), per_unit=1))
        assert found.finite()
        for name, total in wanted.sums.items():
            torch.testing.assert_close(found.sums.sums[name], total, rtol=1e-2, atol=1e-3 * 0.5 * 6)


@needs_gpu
@pytest.mark.parametrize("cast", [False, True])
def test_no_unit_contributes_more_than_its_bound_on_a_gpu(cast):
    torch.manual_seed(0)
    model = Attending().cuda()
    clipper = Clipper(Clipping(clip_norm=0.5), dict(model.named_parameters()))
    engine = BookKeeping(model, whole_squares)
    for _ in range(20):
        with torch.autocast("cuda", torch.bfloat16, enabled=cast):
            run = engine.run((None, torch.randint(0, 50, (1, 40), device="cuda")), per_unit=1)
            sums = clipper.sums(run).sums
        assert math.hypot(*(float(total.double().norm()) for total in sums.values())) <= 0.5 * (1 + 1e-5)


@needs_gpu
def test_a_trainer_runs_in_graphs_as_without():
    found = []
    for graphs in (True, False):
        torch.manual_seed(0)
        model = convolutional().cuda()
        x, y = torch.randn(64, 3, 9, 9).cuda(), torch.randint(0, 5, (64,)).cuda()
        private = PrivateGradients(
            model,
            clip_norm=1.0,
            noise_multiplier=1e-6,
            expected_batch_size=64,
            cuda_graphs=graphs,
            generator=seeded(0),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(5):
            private.backward(x, y)
            optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-3)


@needs_gpu
def test_at_most_a_few_shapes_are_kept():
    graphs = graphs_of(nn.Linear(3, 2).cuda())
    for rows in range(1, 8):
        graphs.replay((None, torch.randn(rows, 3, device="cuda")), 1)
    assert len(graphs._recorded) == 4


def test_a_graph_is_recorded_anew_when_dropout_is_switched():
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    made = Graphs(
        BookKeeping(model, weighted_squares), Clipper(CLIPPING, dict(model.named_parameters())), model
    )
    batch = (None, torch.zeros(4, 3))
    training = made._key(batch, 1)
    model[1].eval()
    assert made._key(batch, 1) != training


def test_a_piece_that_no_graph_took_is_not_lost_when_another_is_computed_anew():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(6, 3)
    x[5, 0] = math.nan
    found = []
    for graphs in (True, False):
        private = private_of(model, graphs=graphs, microbatch_size=2)
        if graphs:
            taken = iter([False, True, True])
            private._graphs.takes = lambda batch, taken=taken: next(taken)
        private.backward(x)
        found.append(model.weight.grad.clone())
    assert torch.allclose(*found)
