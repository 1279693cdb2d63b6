# SPDX-License-Identifier: Apache-2.0
"""Layers whose inputs are whitened by public features."""

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.labels.recipes import published_cnn, tiny_cnn
from sfumato.labels.whitening import whitened


@pytest.fixture
def images():
    torch.manual_seed(0)
    base = torch.randn(200, 1, 16, 16)
    return (base + base.roll(1, -1)).relu() + 3.0  # correlated, and far from mean zero


def inputs_of(network, layer, rows):
    """Return what a layer of a network is given."""
    for one in network:
        if one is layer:
            return rows
        rows = one(rows)
    raise AssertionError("no such layer")


def learning(network):
    return [layer for layer in network if any(p.requires_grad for p in layer.parameters())]


@pytest.mark.parametrize("make", [tiny_cnn, published_cnn])
def test_outputs_can_stay_the_same(images, make):
    network = make(tuple(images.shape[1:]), 7)
    mapped = whitened(network, images, same_outputs=True)
    assert torch.allclose(mapped(images), network(images), atol=1e-4)
    fresh = torch.randn(5, *images.shape[1:])  # also where no statistic was computed
    assert torch.allclose(mapped(fresh), network(fresh), atol=1e-4)


def test_only_the_layers_themselves_learn(images):
    network = published_cnn(tuple(images.shape[1:]), 7)
    mapped = whitened(network, images)
    own = [p.numel() for p in network.parameters()]
    assert [p.numel() for p in mapped.parameters() if p.requires_grad] == own
    before = [p.clone() for p in mapped.parameters() if not p.requires_grad]
    torch.optim.SGD([p for p in mapped.parameters() if p.requires_grad], lr=1.0).zero_grad()
    mapped(images).sum().backward()
    assert all(p.grad is None for p in mapped.parameters() if not p.requires_grad)
    after = [p for p in mapped.parameters() if not p.requires_grad]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_inputs_have_mean_zero_and_mean_variance_one(images, power):
    mapped = whitened(tiny_cnn(tuple(images.shape[1:]), 7), images, power=power)
    for layer in learning(mapped):
        inputs = inputs_of(mapped, layer, images).detach()
        flat = inputs.transpose(0, 1).flatten(1).T if inputs.dim() == 4 else inputs
        assert flat.mean(0).abs().max() < 1e-3
        assert float(flat.var(0, correction=0).mean()) == pytest.approx(1.0, abs=1e-3)


def test_a_larger_power_makes_variances_more_even():
    torch.manual_seed(1)
    rows = torch.randn(1000, 6) * torch.tensor([10.0, 5.0, 2.0, 1.0, 0.5, 0.2]) + 4.0
    spreads = []
    for power in (0.0, 0.5, 1.0):
        values = torch.linalg.eigvalsh(
            whitened(nn.Sequential(nn.Linear(6, 2)), rows, power=power)[0](rows).T.cov()
        )
        spreads.append(float(values.max() / values.min()))
    assert spreads[0] == pytest.approx(2500, rel=0.3)
    assert spreads[0] > 10 * spreads[1] > 10 * spreads[2]


def test_other_layers_and_the_given_network_stay_as_they_are():
    layers = [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
    ]
    network = nn.Sequential(*layers)
    before = [p.clone() for p in network.parameters()]
    mapped = whitened(network, torch.randn(10, 4, 8, 8))
    assert [type(layer) for layer in mapped] == [type(layer) for layer in layers]
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), before, strict=True))
    assert all(a is not b for a, b in zip(mapped.parameters(), network.parameters(), strict=True))


@pytest.mark.parametrize("rows", [torch.full((20, 3), 7.0), torch.tensor([[1.0, 2.0, 3.0]])])
def test_inputs_without_variance_are_only_centered(rows):
    network = nn.Sequential(nn.Linear(3, 2))
    mapped = whitened(network, rows)
    assert torch.allclose(mapped[0](rows), torch.zeros_like(rows))
    assert torch.equal(mapped[0].weight, torch.eye(3))


def test_a_layer_without_bias_gets_one_that_makes_up_for_the_mean():
    torch.manual_seed(2)
    rows, network = torch.randn(50, 4) + 2, nn.Sequential(nn.Linear(4, 3, bias=False))
    assert torch.allclose(whitened(network, rows, same_outputs=True)(rows), network(rows), atol=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_features_that_are_not_finite_are_refused(bad):
    rows = torch.ones(4, 3)
    rows[1, 2] = bad
    with pytest.raises(InvalidParameterError, match="not finite"):
        whitened(nn.Sequential(nn.Linear(3, 2)), rows)


def test_a_power_outside_of_zero_to_one_is_refused():
    with pytest.raises(InvalidParameterError, match="power"):
        whitened(nn.Sequential(nn.Linear(3, 2)), torch.ones(4, 3), power=1.5)


def test_statistics_come_from_rows_all_over():
    rows = torch.zeros(10_000, 1)
    rows[5_000:] = 2.0  # the first rows alone have mean zero
    centered = whitened(nn.Sequential(nn.Linear(1, 1)), rows)[0](rows)
    assert float(centered.mean()) == pytest.approx(0.0, abs=1e-2)
