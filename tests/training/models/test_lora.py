# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.testing import seeded
from sfumato.training import PrivateGradients, add_lora, train

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(30) % 2


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
