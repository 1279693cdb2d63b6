# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.experiments.r1.published_code import PublishedSettings, train_as_published


def settings(**changed):
    usual = {
        "noise": 0.0,
        "steps": 1,
        "batch": 64,
        "clip_norm": 0.1,
        "learning_rate": 1.0,
        "project": False,
        "classes": 3,
        "seed": 0,
    }
    return PublishedSettings(**(usual | changed))


def trained(scale=1.0, **changed):
    torch.manual_seed(0)
    x = scale * torch.randn(64, 4)
    y = x[:, :3].argmax(1)
    model = nn.Linear(4, 3)
    before = [p.detach().clone() for p in model.parameters()]
    train_as_published(model, x, y, settings(**changed))
    return [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)], model, x, y


def test_each_tensor_moves_by_at_most_the_clip_norm():
    moved, *_ = trained(scale=100.0)
    assert moved[0].norm() == pytest.approx(0.1, rel=1e-4)
    assert max(part.norm() for part in moved) <= 0.1 * (1 + 1e-4)


def test_noise_is_that_of_one_row_in_a_batch():
    quiet, *_ = trained()
    noisy, *_ = trained(noise=64.0)
    size = torch.cat([(a - b).flatten() for a, b in zip(noisy, quiet, strict=True)]).std()
    assert 0.04 < size < 0.25  # noise 64 times clip norm 0.1 over 64 rows: a deviation of 0.1, of 15 draws


def test_it_learns_with_and_without_the_projection():
    for project in (False, True):
        _, model, x, y = trained(steps=20, project=project)
        assert (model(x).argmax(1) == y).float().mean() > 0.6


def test_a_projected_gradient_is_a_tenth_of_one_at_most():
    """The average over rows and classes divides a mean of rows by the number of classes."""
    whole, *_ = trained(clip_norm=1e6)
    projected, *_ = trained(clip_norm=1e6, project=True)
    assert projected[0].norm() < whole[0].norm()
