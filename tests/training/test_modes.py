# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.labels import AltConv
from sfumato.testing import seeded
from sfumato.training.modes import evaluating


def parts():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[1].eval()  # frozen on purpose, in a model that trains
    return model


def test_each_part_goes_back_to_its_own_mode_whatever_happens():
    model = parts()
    with pytest.raises(ZeroDivisionError), evaluating(model):
        assert not any(part.training for part in model.modules())
        _ = 1 / 0
    assert [part.training for part in model] == [True, False, True] and model.training


def test_a_denoiser_leaves_a_frozen_part_frozen():
    model = parts()
    noisy = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    AltConv(features=torch.randn(8, 3), classes=2, batch_size=4).denoise(
        model, noisy, rows=None, generator=seeded(0)
    )
    assert [part.training for part in model] == [True, False, True]
