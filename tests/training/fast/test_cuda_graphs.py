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
from sfumato.training.privacy.clipping import AdaptiveClip, Clipper, Clipping

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
CLIPPING = Clipping(clip_norm=0.5, adaptive=AdaptiveClip(count_noise_multiplier=1.0))


def test_batches_on_the_cpu_are_not_for_graphs():
    assert not CudaGraphs().takes((None, torch.zeros(2)))


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
