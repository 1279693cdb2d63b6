# SPDX-License-Identifier: Apache-2.0
import math
import warnings

import pytest
import torch
from torch import nn

from sfumato.testing import seeded
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.step.settings import PassSettings
from sfumato.training.fast.compilation import Compiling
from sfumato.training.fast.cuda_graphs import CudaGraphs
from sfumato.training.fast.pass_cache import Recordings
from sfumato.training.privacy.clipping import AdaptiveClip, ClippedSums, Clipper, Clipping

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
CLIPPING = Clipping(clip_norm=0.5, adaptive=AdaptiveClip(count_noise_multiplier=1.0))


def test_batches_on_the_cpu_are_not_for_graphs():
    assert not CudaGraphs().takes((None, torch.zeros(2)))


class Graph:
    """Something like a graph: it computes into the same places again."""

    def __init__(self, run, static, factor):
        self.run, self.static, self.factor, self.found = run, static, factor, run(static)

    def replay(self):
        total, sums = self.run(self.static)
        self.found[0].copy_(total * self.factor)
        for name, part in sums.sums.items():
            self.found[1].sums[name].copy_(part * self.factor)


def without_a_gpu(monkeypatch, *, factor=1.0, error=None):
    def captured(self, run, static):
        if error is not None:
            raise error
        graph = Graph(run, static, factor)
        return graph, graph.found

    monkeypatch.setattr(CudaGraphs, "_captured", captured)
    monkeypatch.setattr(CudaGraphs, "takes", lambda self, batch: True)


def replayed(told):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    clipper = Clipper(CLIPPING, dict(model.named_parameters()))
    recorder = CudaGraphs(tell=told.append)
    graphs = Recordings(BookKeeping(model, whole_squares), clipper, model, recorder)
    found = graphs.replay((None, x), 1, record=lambda count: (None, torch.ones(count, 3)))
    wanted = clipper.sums(graphs._engine.run((None, x), per_unit=1))
    torch.testing.assert_close(found.sums.sums, wanted.sums)
    return graphs.replay((None, x), 1)  # without leave to record: None if nothing is recorded


def test_a_graph_that_agrees_is_used(monkeypatch):
    told = []
    without_a_gpu(monkeypatch)
    assert replayed(told) is not None and told == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"factor": 1.1}, "does not agree"),
        ({"error": RuntimeError("operation not permitted when stream is capturing: 4711")}, "RuntimeError"),
    ],
)
def test_a_graph_that_is_wrong_or_cannot_be_recorded_is_not_used_and_not_quoted(monkeypatch, options, says):
    told = []
    without_a_gpu(monkeypatch, **options)
    assert replayed(told) is None
    (line,) = told
    assert says in line and "4711" not in line


def test_what_was_asked_for_and_cannot_be_recorded_is_a_warning(monkeypatch):
    without_a_gpu(monkeypatch, error=RuntimeError())
    batch = (None, torch.ones(2, 3))
    with pytest.warns(UserWarning, match="could not be recorded.*without cuda_graphs=True"):
        CudaGraphs().record(lambda given: (torch.ones(()), ClippedSums({"w": torch.ones(1)})), batch)


def whole_squares(model, weights, x):
    return model(x).float().square().flatten(1).sum(1) * (1 if weights is None else weights)


def graphs_of(model, inside=None):
    clipper = Clipper(CLIPPING, dict(model.named_parameters()))
    return Recordings(BookKeeping(model, whole_squares), clipper, model, CudaGraphs(inside))


@needs_gpu
@pytest.mark.parametrize("per_unit", [1, 2])
def test_a_replay_is_what_the_engine_computes_with_the_parameters_of_now(per_unit):
    model = nn.Linear(3, 2).cuda()
    graphs = graphs_of(model)
    for _ in range(3):
        x = torch.randn(4, 3, device="cuda")
        with torch.no_grad():
            model.weight.add_(0.1)
        found = graphs.replay((None, x), per_unit, record=lambda count, x=x: (None, x[:count]))
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


@needs_gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize(
    ("make", "batch"),
    [(Attending, lambda: torch.randint(0, 50, (6, 40))), (convolutional, lambda: torch.randn(6, 3, 9, 9))],
    ids=["transformer", "convolutions"],
)
def test_replays_follow_the_weights_also_where_autocast_keeps_casts_of_them(make, batch, cast, compiled):
    torch.manual_seed(0)
    model = make().cuda()
    graphs = graphs_of(model, Compiling() if compiled else None)
    for _ in range(4):
        x = batch().cuda()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        with torch.autocast("cuda", torch.bfloat16, enabled=cast), warnings.catch_warnings():
            warnings.filterwarnings("error", message="the pass")  # that it could not be compiled
            found = graphs.replay((None, x), 1, record=lambda count, x=x: (None, x[:count]))
            wanted = graphs._clipper.sums(graphs._engine.run((None, x), per_unit=1))
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
def test_a_training_loop_runs_in_graphs_as_without():
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
            passes=PassSettings(cuda_graphs=graphs),
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
        x = torch.randn(rows, 3, device="cuda")
        graphs.replay((None, x), 1, record=lambda count, x=x: (None, x[:count]))
    assert len(graphs._recorded) == 6


@needs_gpu
def test_without_a_flag_a_run_ends_in_graphs_with_the_same_weights():
    found = []
    for graphs in (None, False):
        torch.manual_seed(0)
        model = convolutional().cuda()
        passes = PassSettings(cuda_graphs=graphs, compile=False, planned_steps=100)
        private = PrivateGradients(
            model,
            clip_norm=1.0,
            noise_multiplier=1e-6,
            expected_batch_size=64,
            passes=passes,
            generator=seeded(0),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(20):
            draws = torch.Generator().manual_seed(step)
            x = torch.randn(56 + step, 3, 9, 9, generator=draws).cuda()
            private.backward(x, torch.randint(0, 5, (56 + step,), generator=draws).cuda())
            optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert ("as CUDA graphs" in private.way) is (graphs is None)
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-3)


@needs_gpu
def test_a_model_that_waits_for_the_gpu_runs_eagerly_and_the_process_goes_on():
    class Waiting(nn.Linear):
        def forward(self, x):
            torch.zeros(1, device="cuda").item()  # a value that is no row's
            return super().forward(x)

    model = Waiting(3, 2).cuda()
    passes = PassSettings(compile=False, planned_steps=100)
    private = PrivateGradients(
        model, clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=8, passes=passes
    )
    for _ in range(6):
        private.backward(torch.randn(8, 3).cuda(), torch.zeros(8, dtype=torch.int64).cuda())
    assert "could not be recorded" in private.way and model.weight.grad.isfinite().all()
    assert nn.Dropout(0.5)(torch.ones(8, device="cuda")).isfinite().all()
