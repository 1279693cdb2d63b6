# SPDX-License-Identifier: Apache-2.0
"""Nothing of one client reaches another: not its rows, not their number, not a failure."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.federated.clients import vectorized
from sfumato.federated.clients.client_rows import LazyRows
from sfumato.federated.clients.local_training import LocalTraining, local_update
from sfumato.federated.clients.vectorized import VectorizedClients
from sfumato.training.models import networks

CHAOTIC = LocalTraining(epochs=4, batch_size=5, learning_rate=0.5, momentum=0.9)  # amplifies roundings
MATES = [12, 3, 9, 16]


def strict_loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")  # raises at labels out of range


def own_rows(rows, seed):
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 1, 8, 8, generator=draws), torch.randint(0, 10, (rows,), generator=draws)


def clients_with(sizes):
    return LazyRows(lambda client: own_rows(sizes[client], client), clients=len(sizes), like=own_rows(1, 0))


def out_of_range():
    x, y = own_rows(8, 0)
    return x, y.index_fill(0, torch.tensor([2]), 99)


def not_finite():
    x, y = own_rows(8, 0)
    return x * torch.nan, y


def unreadable():
    raise OSError


@pytest.mark.parametrize(
    ("network", "at_once"), [("cnn", 8), ("tanh", 2), ("tanh", 8), ("columns", 8), ("odd", 8)]
)
def test_no_client_changes_how_the_update_of_another_is_rounded(network, at_once):
    """Chaotic local training amplifies a rounding to the size of an update."""
    torch.manual_seed(0)
    small = {
        "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 33), nn.Tanh(), nn.Linear(33, 10)),
        "columns": lambda: nn.Sequential(nn.Conv2d(1, 16, 3), nn.Tanh(), nn.Flatten(), nn.Linear(576, 10)),
        "odd": lambda: nn.Sequential(nn.Conv2d(1, 7, 3), nn.Tanh(), nn.Flatten(), nn.Linear(252, 10)),
    }
    model = small[network]() if network in small else networks.for_shape((1, 8, 8), 10, network)

    def mates(first, clients):
        def read(client):
            return first() if client == 0 else own_rows(MATES[client - 1], client)

        rows = LazyRows(read, clients=5, like=own_rows(1, 0))
        training = replace(CHAOTIC, loss=strict_loss)
        found = VectorizedClients(rows, training, clients_at_once=at_once)
        updates = found.contributions(model, (torch.tensor(clients),), step=0)
        others = [place for place, client in enumerate(clients) if client]
        return torch.cat([update[others].flatten(1) for update in updates.values()], 1)

    wanted = mates(unreadable, [1, 2, 3, 4])
    assert wanted.isfinite().all() and (wanted != 0).any(1).all()
    for first in (lambda: own_rows(8, 0), lambda: own_rows(30, 0), out_of_range, not_finite, unreadable):
        assert torch.equal(mates(first, [0, 1, 2, 3, 4]), wanted)
        assert torch.equal(mates(first, [1, 2, 0, 3, 4]), wanted)


def test_a_client_that_needs_too_much_memory_stops_nobody(monkeypatch):
    def update(model, rows, *arguments, **keywords):
        if len(rows[0]) > 100:
            raise torch.OutOfMemoryError
        return local_update(model, rows, *arguments, **keywords)

    monkeypatch.setattr(vectorized, "local_update", update)
    dropping = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    with pytest.warns(UserWarning, match="one after another"):
        found = VectorizedClients(clients_with([200, 3]), LocalTraining()).contributions(
            dropping, (torch.tensor([0, 1]),), step=0
        )
    assert not found["2.weight"][0].any() and found["2.weight"][1].any()


def test_a_model_is_rehearsed_again_in_another_mode():
    """Dropout does nothing in evaluation mode: then it can be trained at once, and later it cannot."""
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)).eval()
    clients = VectorizedClients(clients_with([4, 3]), LocalTraining())
    clients.rehearse(model)
    with pytest.warns(UserWarning, match="one after another"):
        clients.rehearse(model.train())
