# SPDX-License-Identifier: Apache-2.0
"""Layers whose inputs are whitened by public features."""

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.labels.networks import published_cnn, tiny_cnn
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


TIED = nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("network", "features", "said"),
    [
        (nn.Sequential(), torch.ones(4, 3), "at least one layer"),
        (nn.Linear(3, 2), torch.ones(4, 3), "torch.nn.Sequential"),
        (nn.Sequential(TIED, nn.ReLU(), TIED), torch.ones(4, 3), "used twice"),
        (nn.Sequential(nn.Linear(3, 2)), torch.ones(0, 3), "at least one row"),
        (nn.Sequential(nn.Linear(3, 2)), [[1.0, 2.0, 3.0]], "a tensor"),
        (nn.Sequential(nn.Linear(3, 2)), torch.ones(4, 5), "layer 0, Linear"),
        (nn.Sequential(nn.Linear(3, 2)), torch.ones(4, 3, dtype=torch.int64), "layer 0, Linear"),
        (nn.Sequential(nn.Linear(3, 2)), torch.ones(4), "layer 0, Linear"),
        (nn.Sequential(nn.ReLU(), nn.LazyLinear(2)), torch.ones(4, 3), "layer 1, LazyLinear"),
        (nn.Sequential(nn.LSTM(3, 2), nn.Linear(2, 2)), torch.ones(4, 5, 3), "layer 1, Linear"),
    ],
    ids=["empty", "no-sequence", "tied", "no-rows", "list", "width", "whole", "one-axis", "lazy", "tuple"],
)
def test_what_cannot_be_mapped_is_refused_in_words(network, features, said):
    with pytest.raises(InvalidParameterError, match=said):
        whitened(network, features)


def test_float64_stays_float64_and_layers_without_weights_are_enough():
    torch.manual_seed(3)
    rows, network = torch.randn(50, 4).double() + 2, nn.Sequential(nn.Linear(4, 3)).double()
    mapped = whitened(network, rows, same_outputs=True)
    assert mapped(rows).dtype == torch.float64 and torch.allclose(mapped(rows), network(rows), atol=1e-12)
    assert torch.equal(whitened(nn.Sequential(nn.ReLU()), rows)(rows), rows.relu())


def test_running_averages_and_modes_stay_as_they_are():
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
    mapped = whitened(network.train(), torch.randn(50, 4))
    assert all(layer.training for layer in mapped)
    assert torch.equal(mapped[2].running_mean, torch.zeros(3))
    assert not any(layer.training for layer in whitened(network.eval(), torch.randn(50, 4)))


def test_statistics_come_from_rows_all_over():
    rows = torch.zeros(10_000, 1)
    rows[5_000:] = 2.0  # the first rows alone have mean zero
    centered = whitened(nn.Sequential(nn.Linear(1, 1)), rows)[0](rows)
    assert float(centered.mean()) == pytest.approx(0.0, abs=1e-2)
