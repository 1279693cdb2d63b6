# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.local_training import LocalTraining, batch_order, local_update

ROWS = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 2


def by_hand(model, training, client, step):
    """Train a copy with torch's own optimizer."""
    own = copy.deepcopy(model)
    optimizer = torch.optim.SGD(own.parameters(), lr=training.learning_rate, momentum=training.momentum)
    for chosen in batch_order(7, training, client=client, step=step):
        loss = nn.functional.cross_entropy(own(ROWS[0][chosen]), ROWS[1][chosen])
        far = sum(
            (a - b.detach()).square().sum() for a, b in zip(own.parameters(), model.parameters(), strict=True)
        )
        optimizer.zero_grad()
        (loss + training.proximal / 2 * far).backward()
        optimizer.step()
    return {
        name: (a - b).detach()
        for (name, a), b in zip(model.named_parameters(), own.parameters(), strict=True)
    }


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(),
        LocalTraining(epochs=3, batch_size=2, learning_rate=0.5),
        LocalTraining(epochs=2, batch_size=3, momentum=0.9),
        LocalTraining(epochs=4, batch_size=3, proximal=1.5),
    ],
)
def test_an_update_is_that_of_torch_s_optimizer(training):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    before = copy.deepcopy(model.state_dict())
    found = local_update(model, ROWS, training, client=3, step=5)
    wanted = by_hand(model, training, 3, 5)
    assert list(found) == list(wanted)
    assert all(torch.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("full", "weight"), [(None, 1.0), (7, 1.0), (3, 1.0), (14, 0.5), (70, 0.1)])
def test_a_client_with_fewer_rows_counts_less_and_none_counts_more(full, weight):
    model = nn.Linear(3, 2)
    plain = local_update(model, ROWS, LocalTraining(), client=3, step=5)
    found = local_update(model, ROWS, LocalTraining(full_weight_rows=full), client=3, step=5)
    assert all(torch.allclose(found[name], weight * plain[name], atol=1e-9) for name in plain)
    said = LocalTraining(full_weight_rows=full).statement()
    assert ("at most 1" in said) == (full is not None)


class Counting(nn.Linear):
    """A layer with a buffer, which its passes write to."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return super().forward(x)


@pytest.mark.parametrize("layer", [nn.Linear, Counting])
def test_a_layer_that_has_two_places_in_a_model_is_trained_once_and_put_back(layer):
    twice = layer(3, 3)
    model = nn.Sequential(twice, nn.Tanh(), twice, nn.Linear(3, 2))
    held, before = [*model.parameters(), *model.buffers()], copy.deepcopy(model.state_dict())
    found = local_update(model, ROWS, LocalTraining(epochs=2, batch_size=3), client=3, step=5)
    wanted = by_hand(model, LocalTraining(epochs=2, batch_size=3), 3, 5)
    assert list(found) == list(wanted)
    assert all(torch.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)
    assert all(a is b for a, b in zip(held, [*model.parameters(), *model.buffers()], strict=True))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_recurrent_model_is_left_as_it_was():
    model = nn.LSTM(3, 4)
    flat, refs = model._flat_weights, model._flat_weight_refs
    weights, seen = list(flat), list(refs)

    def loss(called, x):
        return called(x[:, None])[0].sum((1, 2))

    training = LocalTraining(loss=loss, batch_size=2, epochs=2)
    update = local_update(model, (ROWS[0],), training, client=0, step=0)
    assert all(value.any() for value in update.values())
    assert model._flat_weights is flat and model._flat_weight_refs is refs
    assert all(a is b for a, b in zip(flat + refs, weights + seen, strict=True))


def test_a_client_without_rows_has_an_update_of_zeros():
    none = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    found = local_update(nn.Linear(3, 2), none, LocalTraining(), client=0, step=0)
    assert all(not value.any() for value in found.values())


def test_the_order_of_rows_depends_on_client_and_round_alone():
    training = LocalTraining(epochs=2, batch_size=7)
    orders = {(c, s): list(batch_order(7, training, client=c, step=s)) for c in range(2) for s in range(2)}
    again = list(batch_order(7, training, client=1, step=1))
    assert all(torch.equal(a, b) for a, b in zip(orders[1, 1], again, strict=True))
    flat = [tuple(batch.tolist()) for order in orders.values() for batch in order]
    assert len(set(flat)) == len(flat) and all(sorted(batch) == list(range(7)) for batch in flat)


def test_frozen_parameters_have_no_update():
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert list(local_update(model, ROWS, LocalTraining(), client=0, step=0)) == ["weight"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"proximal": -1.0},
        {"momentum": -1.0},
        {"full_weight_rows": 0},
    ],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        LocalTraining(**wrong)
