# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sfumato.errors import InvalidParameterError, NotPrivateError, UnsupportedModelError
from sfumato.testing import seeded
from sfumato.training import cached_features, train

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


class Torn(torch.utils.data.Dataset):
    """Rows of which one cannot be read."""

    def __init__(self, *, torn):
        self._torn = torn

    def __len__(self):
        return 30

    def __getitem__(self, place):
        if place == 5 and self._torn:
            raise ValueError
        return X[place] if place != 5 else torch.full((4,), torch.nan), int(Y[place])


def test_a_row_that_cannot_be_read_adds_nothing_to_what_is_learned_from_features():
    backbone = nn.Linear(4, 3).requires_grad_(False)
    features, labels = cached_features(backbone, Torn(torn=True), batch_size=7)
    assert features.isnan().any(1).nonzero().tolist() == [[5]] and labels[5] == 0
    ends = []
    for given in (Torn(torn=True), Torn(torn=False)):  # the other one has a gradient that is not finite
        head = nn.Linear(3, 2)
        nn.init.zeros_(head.weight), nn.init.zeros_(head.bias)
        settings = {"noise_multiplier": 1.0, "delta": 1e-3, "public_size": 30, "expected_batch_size": 30}
        rows = cached_features(backbone, given, batch_size=7)
        train(head, rows, steps=2, clip_norm=1.0, generator=seeded(0), progress=False, **settings)
        ends.append(head.weight.detach().clone())
    assert ends[0].isfinite().all() and torch.equal(*ends)


def test_features_that_are_whole_numbers_have_the_same_type_whatever_can_be_read():
    class Codes(nn.Module):
        def forward(self, x):
            return (x > 0).long()

    kinds = [cached_features(Codes(), Torn(torn=torn))[0].dtype for torn in (True, False)]
    assert kinds == [torch.int64] * 2


class Blurred(torch.utils.data.Dataset):
    """Rows that are changed at random when they are read."""

    def __init__(self, rows):
        self._rows = rows

    def __len__(self):
        return self._rows

    def __getitem__(self, place):
        return torch.randn(8), place


def test_the_number_of_rows_is_not_left_in_the_random_state():
    backbone = nn.Linear(8, 3).requires_grad_(False)
    before = torch.get_rng_state()
    features, _ = cached_features(backbone, Blurred(7))
    assert torch.equal(torch.get_rng_state(), before) and len(features.unique(dim=0)) == 7
