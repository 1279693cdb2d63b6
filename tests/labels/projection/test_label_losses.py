# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import UnsupportedModelError
from sfumato.labels.projection.label_losses import LossGraph, label_losses, twice_differentiable

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def graph(model):
    return LossGraph(label_losses(model, X, classes=3), list(model.parameters()))


def test_losses_are_the_cross_entropies_of_all_labels():
    model = nn.Linear(4, 3)
    found = label_losses(model, X, classes=3)
    for label in range(3):
        wanted = nn.functional.cross_entropy(model(X), torch.full((5,), label), reduction="none")
        assert torch.allclose(found[:, label], wanted)


def test_backward_weighs_losses_and_twice_is_its_transpose():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    losses = label_losses(model, X.double(), classes=3)
    found = LossGraph(losses, list(model.parameters()))
    weights = torch.randn(5, 3, dtype=torch.float64)
    direction = [torch.randn_like(p) for p in model.parameters()]
    first = sum(float((g * v).sum()) for g, v in zip(found.backward(weights), direction, strict=True))
    assert float((found.twice(direction) * weights).sum()) == pytest.approx(first, rel=1e-9)


def test_a_frozen_model_has_zero_gradients():
    model = nn.Linear(4, 3).requires_grad_(False)
    found = graph(model)
    assert not any(part.any() for part in found.backward(torch.ones(5, 3)))
    assert not found.twice([torch.ones_like(p) for p in model.parameters()]).any()


@pytest.mark.parametrize(
    "model", [nn.Linear(4, 2), nn.Flatten(0), nn.LSTM(4, 3)], ids=["few", "flat", "lstm"]
)
def test_outputs_that_are_not_scores_of_classes_are_refused(model):
    with pytest.raises(UnsupportedModelError, match="score"):
        label_losses(model, X, classes=3)


def test_randomness_in_the_forward_pass_is_refused():
    with pytest.raises(UnsupportedModelError, match="randomness"):
        label_losses(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), X, classes=3)


def test_buffers_written_in_a_pass_are_dropped():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x):
            self.passes += 1
            return self.layer(x)

    model = Counting()
    label_losses(model, X, classes=3)
    assert model.passes == 0


def test_kernels_are_given_back_after_a_recurrent_model():
    before = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
    with pytest.raises(KeyError), twice_differentiable(nn.LSTM(2, 2)):
        assert not torch.backends.mkldnn.enabled
        raise KeyError
    assert (torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled) == before
