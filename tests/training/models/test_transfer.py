# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sfumato.errors import InvalidParameterError, NotPrivateError, UnsupportedModelError
from sfumato.testing import seeded
from sfumato.training import PrivateGradients, add_lora, cached_features, train

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(30) % 2


class Whitened(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def test_features_are_those_of_each_row_in_evaluation_mode_and_the_rest_stays():
    backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).requires_grad_(False)
    features, labels = cached_features(backbone, TensorDataset(X, Y), batch_size=7)
    assert all(module.training for module in backbone.modules())
    backbone.eval()
    assert torch.allclose(features, backbone(X), atol=1e-6)
    assert torch.equal(labels, Y) and not features.requires_grad
    nested = cached_features(backbone, ({"a": X}["a"], {"y": [Y]}), batch_size=7)
    assert torch.equal(nested[1]["y"][0], Y)


class ByValue(nn.Module):
    def forward(self, x):
        return x * 2 if float(x.sum()) > 0 else x - x.mean(0)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total += x.sum(0)
        return x + self.total


@pytest.mark.parametrize("network", [Whitened, ByValue])
def test_features_of_a_row_are_those_that_it_has_alone(network):
    features, _ = cached_features(network(), (X, Y), batch_size=7)
    assert torch.allclose(features, torch.cat([network()(row[None]) for row in X]))


def test_a_network_that_keeps_rows_has_no_cached_features():
    with pytest.raises(NotPrivateError, match="total"):
        cached_features(Counting(), (X, Y), batch_size=7)


def test_a_network_that_is_trainable_or_returns_no_rows_has_no_cached_features():
    with pytest.raises(UnsupportedModelError, match="requires_grad_"):
        cached_features(nn.Linear(4, 2), (X, Y))
    no_statistics = nn.BatchNorm1d(4, affine=False, track_running_stats=False)
    with pytest.raises((UnsupportedModelError, ValueError)):
        cached_features(no_statistics, (X, Y))
    with pytest.raises(UnsupportedModelError, match="one row for each row"):
        cached_features(nn.Flatten(0), (X, Y))
    with pytest.raises(InvalidParameterError, match="no rows"):
        cached_features(Whitened(), (X[:0], Y[:0]))


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.Tanh(), nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 2)
    )


def test_adapters_change_nothing_at_first_and_keep_the_keys_of_the_network():
    model, plain = network(), network()
    assert add_lora(model, rank=2, layers=["0"]) == ["0", "2.0"]
    assert torch.equal(model(X), plain(X))
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert unexpected == [] and all("lora_" in name for name in missing)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trainable == {"0.lora_down", "0.lora_up", "2.0.lora_down", "2.0.lora_up"}


def test_an_adapted_layer_computes_the_low_rank_change():
    model, plain = network(), network()
    add_lora(model, rank=2, alpha=6.0)
    with torch.no_grad():
        model[0].lora_up.normal_()
    change = model[0].lora_up @ model[0].lora_down * 3.0
    wanted = nn.functional.linear(X, plain[0].weight + change, plain[0].bias)
    assert torch.allclose(model[0](X), wanted, atol=1e-5)


def test_adapters_train_privately_on_the_fast_path_and_nothing_else_moves():
    model, plain = network(), network()
    add_lora(model, rank=2)
    private = PrivateGradients(model, clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=30)
    private.backward(X, Y)
    assert private.engine == "BookKeeping"
    sizes = {"public_size": 30, "expected_batch_size": 10, "steps": 3, "noise_multiplier": 1.0, "delta": 1e-5}
    train(model, (X, Y), **sizes, learning_rate=1.0, generator=seeded(0))
    assert all(torch.equal(model.state_dict()[name], value) for name, value in plain.state_dict().items())
    assert not torch.equal(model(X), plain(X))


def test_a_shared_layer_is_adapted_once_everywhere():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    assert add_lora(model, rank=1) == ["0"]
    assert model[0] is model[2]


def test_layers_that_cannot_be_adapted_are_refused_and_nothing_is_frozen():
    model = network()
    with pytest.raises(InvalidParameterError, match="no linear layer"):
        add_lora(model, rank=2, layers=["q_proj"])
    with pytest.raises(InvalidParameterError, match="no linear layer"):
        add_lora(nn.Linear(4, 2), rank=2)
    encoder = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
    with pytest.raises(UnsupportedModelError, match="fast path"):
        add_lora(encoder, rank=2)
    assert all(p.requires_grad for m in (model, encoder) for p in m.parameters())
