# SPDX-License-Identifier: Apache-2.0
"""A ClientApp that learns as `LocalTraining` states, in a few lines of a user's project.

Guarantee  None: the reply is private until the server has clipped it and added noise (`PrivateStrategy`), or
           until a mod of the client did (`LocalNoise`). The reply has the model alone, and no metrics.
Failure    An error while learning is replied with a fixed text: its own may quote a row. The client's log
           names its kind.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from torch import nn

from sfumato._failures import ordinary
from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.local_training import LocalTraining, local_update
from sfumato.federated.flower.grid_clients import ROUND
from sfumato.federated.messages.planned_rounds import refusal
from sfumato.mechanisms.random import Generator

__all__ = ["client_app", "client_number", "loaded", "own_stream", "record_in", "round_number"]

_log = logging.getLogger(__name__)


def client_app(
    model: nn.Module,
    rows: Callable[[Context], Sequence[Any]],
    training: LocalTraining | None = None,
    *,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Return an app that trains a model on the rows of its client.

    The order of local batches follows from the number of the client and of the round, as in every other way
    to run the same round.

    Args:
        model: A model of the architecture of the server. Its own weights do not matter.
        rows: Returns the rows of the client: tensors with one row an example. It is called in each round
            with Flower's context, which knows "partition-id" in `node_config`.
        training: How the client learns.
        mods: Mods for messages of training, such as `LocalNoise`.

    Returns:
        The app.

    >>> import torch
    >>> def rows(context):
    ...     return torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    >>> app = client_app(nn.Linear(2, 2), rows, LocalTraining(epochs=2))
    """
    how = LocalTraining() if training is None else training
    app = ClientApp()

    @app.train(mods=list(mods))
    def learn(message: Message, context: Context) -> Message:
        own = loaded(model, message)
        step, client = round_number(message) - 1, client_number(context)
        try:
            update = ordinary(lambda: local_update(own, rows(context), how, client=client, step=step))
        except Exception as failure:  # on private data: Flower would send its text
            _log.warning("learning failed with %s.", type(failure).__name__)
            return refusal(message, "The client could not learn in this round.")
        state = own.state_dict()
        state.update({name: state[name] - value for name, value in update.items()})
        return Message(RecordDict({"arrays": ArrayRecord(state)}), reply_to=message)

    assert learn is not None  # registered
    return app


def client_number(context: Context) -> int:
    """Return the number of a client: its partition, or else the id of its node."""
    return int(context.node_config.get("partition-id", context.node_id))


def round_number(message: Message) -> int:
    """Return the number of the round that a message belongs to, from 1 on."""
    for record in message.content.config_records.values():
        if isinstance(number := record.get(ROUND), int):
            return number
    raise InvalidParameterError(f"the message of the server has no {ROUND!r} in its config.")


def own_stream(generator: Generator | None, message: Message, context: Context) -> Generator | None:
    """Return the stream of a client in a round, of a generator for study; None is secure already."""
    if generator is None:
        return None
    return generator.fork("client", client_number(context)).fork("round", round_number(message))


def loaded(model: nn.Module, message: Message) -> nn.Module:
    """Return a copy of a model with the weights of a message."""
    own = copy.deepcopy(model)
    own.load_state_dict(record_in(message).to_torch_state_dict())
    return own


def record_in(message: Message) -> ArrayRecord:
    """Return the one record of arrays of a message."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise InvalidParameterError(f"the message has {len(records)} records of arrays; one is expected.")
    return records[0]
