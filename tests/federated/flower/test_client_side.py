# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.local_training import LocalTraining, local_update
from sfumato.federated.flower import GridClients, client_app
from sfumato.federated.flower.client_side import client_number, own_stream
from sfumato.mechanisms.random import words
from sfumato.testing import seeded
from tests.federated.flower.local_grid import LocalGrid, context, identify, served

TRAINING = LocalTraining(epochs=2, batch_size=4, learning_rate=0.5)


def model_of():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def rows_of(given):
    draws = torch.Generator().manual_seed(client_number(given))
    return torch.randn(10, 3, generator=draws), torch.randint(2, (10,), generator=draws)


def message_of(model, **config):
    identify()
    content = {"arrays": ArrayRecord(model.state_dict()), "config": ConfigRecord(config)}
    return Message(RecordDict(content), 1, "train")


def test_the_app_takes_the_steps_of_the_reference():
    model = model_of()
    app = client_app(nn.Linear(3, 2), rows_of, TRAINING)
    grid = LocalGrid({10: served(app, 10, partition=4), 20: served(app, 20, partition=5)})
    got = GridClients(grid, [10, 20]).contributions(model, (torch.tensor([1, 0]),), step=3)
    for place, client in enumerate((5, 4)):
        wanted = local_update(model, rows_of(context(partition=client)), TRAINING, client=client, step=3)
        for name, value in wanted.items():
            assert torch.allclose(got[name][place], value, atol=1e-6)


def test_a_reply_has_the_model_and_no_metrics():
    reply = client_app(nn.Linear(3, 2), rows_of)(message_of(model_of(), **{"server-round": 1}), context())
    assert list(reply.content) == ["arrays"] and set(reply.content["arrays"]) == {"weight", "bias"}


def test_mods_are_used():
    seen = []

    def mod(message, given, call_next):
        seen.append(1)
        return call_next(message, given)

    client_app(nn.Linear(3, 2), rows_of, mods=[mod])(message_of(model_of(), **{"server-round": 1}), context())
    assert seen == [1]


def test_a_client_is_its_partition_or_else_its_node():
    assert client_number(context(node=7, partition=3)) == 3
    assert client_number(context(node=7)) == 7


def test_a_message_without_a_round_or_with_two_models_is_refused():
    app = client_app(nn.Linear(3, 2), rows_of)
    with pytest.raises(InvalidParameterError, match="server-round"):
        app(message_of(model_of()), context())
    message = message_of(model_of(), **{"server-round": 1})
    message.content["more"] = message.content["arrays"]
    with pytest.raises(InvalidParameterError, match="2 records"):
        app(message, context())


def test_streams_for_study_differ_by_client_and_round():
    first, second = (message_of(model_of(), **{"server-round": number}) for number in (1, 2))
    assert own_stream(None, first, context()) is None
    keys = {
        int(words(1, own_stream(seeded(0), message, context(partition=client)))[0])
        for message in (first, second)
        for client in (1, 2)
    }
    assert len(keys) == 4


@pytest.mark.parametrize(("error", "name"), [(ValueError, "ValueError"), (SystemExit, "RuntimeError")])
def test_an_error_on_private_rows_leaves_without_its_text(error, name, caplog):
    def unreadable(_context):
        raise error("could not read 'born 1980'")

    reply = client_app(nn.Linear(3, 2), unreadable)(message_of(model_of(), **{"server-round": 1}), context())
    assert reply.has_error() and "1980" not in reply.error.reason
    assert name in caplog.text and "1980" not in caplog.text
