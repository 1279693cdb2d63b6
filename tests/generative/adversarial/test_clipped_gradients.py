# SPDX-License-Identifier: Apache-2.0
import torch
from torch import nn

from sfumato.generative.adversarial.clipped_gradients import ClippedGradients


def loss(model, x, y):
    return (model(x)[:, 0] - y).square()


def test_means_are_those_of_gradients_clipped_one_by_one():
    torch.manual_seed(0)
    model, x, y = nn.Linear(5, 1), torch.randn(7, 5), 3 * torch.randn(7)
    found = ClippedGradients(model, loss, clip_norm=1.0, rows=7, cuda_graphs=False).mean(x, y)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for i in range(7):
        parts = torch.autograd.grad(loss(model, x[i : i + 1], y[i : i + 1]).sum(), list(model.parameters()))
        norm = torch.cat([part.flatten() for part in parts]).norm()
        for (name, _), part in zip(model.named_parameters(), parts, strict=True):
            expected[name] += part * min(1.0, 1.0 / float(norm)) / 7
    for name in expected:
        assert torch.allclose(found[name], expected[name], atol=1e-6)
    assert all(p.grad is None for p in model.parameters())


def test_it_follows_the_weights():
    model = nn.Linear(2, 1)
    clipped = ClippedGradients(model, loss, clip_norm=1e6, rows=3, cuda_graphs=False)
    x, y = torch.ones(3, 2), torch.zeros(3)
    first = clipped.mean(x, y)["weight"].clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    assert torch.allclose(clipped.mean(x, y)["weight"] - first, torch.full((1, 2), 4.0), atol=1e-5)
