# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.federated.clients.local_training import LocalTraining, local_update
from sfumato.federated.clients.stacked_training import PIECE, stacked_updates


def held(sizes):
    draws = torch.Generator().manual_seed(0)
    return [
        {"x": torch.randn(n, 3, generator=draws), "y": torch.randint(0, 2, (n,), generator=draws)}
        for n in sizes
    ]


def named_loss(model, rows, extra):
    return nn.functional.cross_entropy(model(rows["x"]), rows["y"], reduction="none") * extra


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("sizes", [[4], [1, 2, 3, 4, 5, 9], [9, 0, 5, 0], [2, 2, 2]])
def test_stacked_steps_are_those_of_each_client(sizes, epochs):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    training = LocalTraining(
        epochs=epochs, batch_size=4, learning_rate=0.5, momentum=0.5, proximal=0.2, loss=named_loss
    )
    rows = [(each, torch.rand(len(each["y"]))) for each in held(sizes)]  # nested rows
    clients = [10 + place for place in range(len(sizes))]
    found = stacked_updates(model, rows, training, clients=clients, step=2)
    for place, client in enumerate(clients):
        wanted = local_update(model, rows[place], training, client=client, step=2)
        assert list(found) == list(wanted) == ["0.weight", "2.weight", "2.bias"]
        assert all(torch.allclose(found[n][place], wanted[n], atol=1e-6) for n in wanted)


def test_filled_batches_of_a_row_that_is_nowhere_finite_touch_that_client_alone():
    rows = [tuple(each.values()) for each in held([5, 4])]
    rows[0][0][:] = torch.inf
    model, training = nn.Linear(3, 2), LocalTraining(batch_size=4)
    found = stacked_updates(model, rows, training, clients=[0, 1], step=0)
    assert not found["weight"][0].isfinite().all()
    wanted = local_update(model, rows[1], training, client=1, step=0)
    assert torch.allclose(found["weight"][1], wanted["weight"], atol=1e-6)


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
    model[2].weight = model[0].weight
    rows = [tuple(each.values()) for each in held([5, 4])]
    training = LocalTraining(batch_size=4)
    found = stacked_updates(model, rows, training, clients=[0, 1], step=0)
    wanted = local_update(model, rows[1], training, client=1, step=0)
    assert list(found) == ["0.weight"]
    assert torch.allclose(found["0.weight"][1], wanted["0.weight"], atol=1e-6)


@pytest.mark.parametrize("sizes", [[7, 300, 0, 129], [10, 10]])
def test_a_step_over_all_rows_is_taken_in_pieces(sizes):
    shapes = []

    def seen(model, x, y):
        shapes.append(tuple(x.shape))
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    model = nn.Linear(3, 2)
    rows = [tuple(each.values()) for each in held(sizes)]
    training = LocalTraining(epochs=2, batch_size=10**6, learning_rate=0.5, loss=seen)
    found = stacked_updates(model, rows, training, clients=range(len(sizes)), step=0)
    assert set(shapes) == {(PIECE, 3)}  # whoever takes part
    for place in range(len(sizes)):
        wanted = local_update(model, rows[place], training, client=place, step=0)
        assert all(torch.allclose(found[n][place], wanted[n], atol=1e-6) for n in wanted)


def test_a_client_with_more_pieces_changes_no_bit_of_another():
    rows = [tuple(each.values()) for each in held([10, 600])]
    rows[1][0][:] = torch.inf
    model, training = nn.Linear(3, 2), LocalTraining(epochs=3, batch_size=10**6, learning_rate=2.0)
    alone = stacked_updates(model, rows[:1], training, clients=[0], step=0, slots=2)
    beside = stacked_updates(model, rows, training, clients=[0, 1], step=0, slots=2)
    assert torch.equal(alone["weight"][0], beside["weight"][0]) and alone["weight"].any()
