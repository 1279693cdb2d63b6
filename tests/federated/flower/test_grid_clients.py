# SPDX-License-Identifier: Apache-2.0
import logging

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Error, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.federated.flower import GridClients
from sfumato.testing import seeded
from sfumato.training import Clipping, Contributor, PassSettings, PrivateGradients
from tests.federated.flower.local_grid import Clock, LocalGrid, answer, array, moved

NODES = (10, 20, 30)


def model_of():
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0]]))
    return model


def asked(grid, clients=(0, 1, 2), *, step=0, timeout=60.0, **options):
    clock = Clock()
    contributor = GridClients(grid, NODES, timeout=timeout, clock=clock, sleep=clock.sleep, **options)
    return contributor.contributions(model_of(), (torch.tensor(clients),), step=step)["weight"]


def grid_with(node):
    """Return a grid in which one node of three does something, and the others move by 1 and by 2."""
    return LocalGrid({10: moved(1.0), 20: node, 30: moved(2.0)})


def test_a_client_contributes_what_it_was_sent_minus_what_it_replied():
    updates = asked(grid_with(moved(-0.5)))
    assert updates.tolist() == [[[-1.0, -1.0]], [[0.5, 0.5]], [[-2.0, -2.0]]]


def test_clients_are_asked_by_their_numbers_with_model_config_and_round():
    grid = grid_with(moved(0.0))
    asked(grid, [2, 1], step=4, config={"lr": 0.1})
    assert grid.asked == [(5, 30), (5, 20)]
    content = grid.sent[0].content
    assert dict(content["config"]) == {"lr": 0.1, "server-round": 5}
    assert content["arrays"]["weight"].numpy().tolist() == [[1.0, 2.0]]
    assert grid.sent[0].metadata.ttl == 60.0 and grid.sent[0].metadata.message_type == "train"


def broken(*values, dtype=np.float32, **more):
    def reply(message):
        arrays = {"weight": array(values, dtype)} if values else {}
        return [answer(message, ArrayRecord({**arrays, **more}))]

    return reply


def failed(message):
    return [Message(Error(2, "what a client says"), reply_to=message)]


def silent(message):
    return None


def undecodable(message):
    raise ValueError("bytes that are no message")


def empty(message):
    return [Message(RecordDict(), reply_to=message)]


def forged(message):
    """Reply in the name of another node."""
    (reply,) = moved(100.0)(message)
    reply.metadata.__dict__["_src_node_id"] = 10
    return [reply]


def late(message):
    """Reply to a message of another round."""
    (reply,) = moved(100.0)(message)
    reply.metadata.__dict__["_reply_to_message_id"] = "m-of-an-earlier-round"
    return [reply]


HOSTILE = {
    "shape": broken([1.0, 2.0, 3.0]),
    "dtype": broken([1.0, 2.0], dtype=np.float64),
    "integers": broken([1, 2], dtype=np.int64),
    "missing": broken(),
    "extra": broken([1.0, 2.0], more=array([1.0])),
    "zero": moved(0.0),
    "error": failed,
    "silent": silent,
    "undecodable": undecodable,
    "empty": empty,
    "forged": forged,
    "late": late,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_bad_client_contributes_zeros_and_changes_no_other(kind):
    updates = asked(grid_with(HOSTILE[kind]))
    assert updates.tolist() == [[[-1.0, -1.0]], [[0.0, 0.0]], [[-2.0, -2.0]]]


def test_a_client_that_replies_twice_counts_once():
    updates = asked(grid_with(lambda message: moved(1.0)(message) + moved(5.0)(message)))
    assert updates[1].tolist() == [[-1.0, -1.0]]


def test_replies_of_nodes_that_were_not_asked_do_not_count():
    grid = grid_with(moved(0.5))
    grid.extra = moved(9.0)(
        Message(RecordDict({"arrays": ArrayRecord(model_of().state_dict())}), 99, "train")
    )
    assert asked(grid)[1].tolist() == [[-0.5, -0.5]]


def test_a_node_that_is_gone_contributes_zeros():
    class Full(LocalGrid):
        def push_messages(self, messages):
            return [None if m.metadata.dst_node_id == 20 else i
                    for m, i in zip(messages, super().push_messages(messages), strict=True)]  # fmt: skip

    updates = asked(Full({10: moved(1.0), 20: moved(1.0), 30: moved(1.0)}))
    assert updates[1].tolist() == [[0.0, 0.0]] and updates[0].tolist() == [[-1.0, -1.0]]


def test_a_round_in_which_nobody_replies_ends_after_the_timeout():
    grid = LocalGrid(dict.fromkeys(NODES, silent))
    assert asked(grid, timeout=5.0).abs().sum() == 0


def test_a_slow_client_counts_if_it_replies_in_time():
    calls = []

    def slow(message):
        calls.append(1)
        return moved(1.0)(message) if len(calls) > 3 else None

    assert asked(grid_with(slow))[1].tolist() == [[-1.0, -1.0]]


def test_an_error_of_the_grid_stops_the_run():
    class Gone(LocalGrid):
        def get_node_ids(self):
            raise ConnectionError("no route")

        pull_messages = undecodable

    with pytest.raises(ConnectionError):
        asked(Gone({n: moved(1.0) for n in NODES}))


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_about_a_client_is_logged(kind, caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        asked(grid_with(HOSTILE[kind]))
    assert caplog.text == "" and capfd.readouterr() == ("", "")


any_float = st.floats(width=32)


@settings(max_examples=40)
@given(st.tuples(any_float, any_float), st.sampled_from(sorted(HOSTILE)))
def test_one_client_moves_the_sum_by_at_most_the_clip_norm(values, kind):
    def summed(grid, clients):
        clock = Clock()
        model = model_of()
        private = PrivateGradients(
            model,
            noise_multiplier=1e-9,
            expected_batch_size=1.0,
            passes=PassSettings(engine=GridClients(grid, NODES, timeout=5.0, clock=clock, sleep=clock.sleep)),
            clipping=Clipping(clip_norm=1.0),
            generator=seeded(0),
        )
        private.backward(torch.tensor(clients))
        return model.weight.grad

    for node in (broken(values), HOSTILE[kind]):
        grid = LocalGrid({10: moved(0.3), 20: node, 30: moved(-0.1)})
        assert (summed(grid, [0, 1, 2]) - summed(grid, [0, 2])).norm() <= 1 + 1e-4


def test_a_node_that_is_listed_twice_is_refused():
    with pytest.raises(InvalidParameterError, match="twice"):
        GridClients(LocalGrid({}), [1, 1])
    with pytest.raises(InvalidParameterError, match="timeout"):
        GridClients(LocalGrid({}), [1], timeout=0)


def test_a_grid_is_a_contributor_that_names_its_nodes_only_where_numbers_matter():
    clients = GridClients(LocalGrid({}), NODES)
    assert isinstance(clients, Contributor) and repr(clients) == "GridClients"
    assert repr(GridClients(LocalGrid({}), NODES, numbered=True)) == "GridClients((10, 20, 30))"


def test_float64_parameters_keep_their_type():
    clock, model = Clock(), nn.Linear(2, 1, bias=False).double()
    clients = GridClients(LocalGrid({10: moved(1.0)}), [10], clock=clock, sleep=clock.sleep)
    update = clients.contributions(model, (torch.tensor([0]),), step=0)["weight"]
    assert update.dtype == torch.float64 and update.tolist() == [[[-1.0, -1.0]]]
