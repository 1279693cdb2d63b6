# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.federated.clients.client_rows import AssignedRows, LazyRows
from sfumato.federated.clients.local_training import LocalTraining, local_update
from sfumato.federated.clients.vectorized import VectorizedClients
from sfumato.training.models import networks

SIZES = [7, 0, 3, 16, 1, 5]


def images(sizes, shape=(1, 8, 8)):
    draws = torch.Generator().manual_seed(0)
    rows = sum(sizes)
    data = torch.randn(rows, *shape, generator=draws), torch.randint(0, 10, (rows,), generator=draws)
    return AssignedRows(data, torch.repeat_interleave(torch.tensor(sizes)), clients=len(sizes))


def by_loop(model, rows, training, clients, step):
    each = [local_update(model, rows.rows(c), training, client=c, step=step) for c in clients]
    return {name: torch.stack([update[name] for update in each]) for name in each[0]}


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(batch_size=4),
        LocalTraining(epochs=2, batch_size=3, momentum=0.9, learning_rate=0.05),
        LocalTraining(epochs=2, batch_size=5, proximal=0.5),
    ],
)
def test_updates_are_those_of_one_client_after_another(name, training):
    model = networks.for_shape((1, 8, 8), 10, name)
    rows = images(SIZES)
    clients = torch.tensor([4, 0, 1, 3, 5, 2])
    found = VectorizedClients(rows, training, clients_at_once=4).contributions(model, (clients,), step=3)
    wanted = by_loop(model, rows, training, clients.tolist(), 3)
    assert list(found) == list(wanted)
    assert all(torch.allclose(found[n], wanted[n], atol=1e-5) for n in wanted)
