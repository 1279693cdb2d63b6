# SPDX-License-Identifier: Apache-2.0
"""A grid in one process: real `ClientApp`s with the mod, and messages that a test may lose or change."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from sfumato.federated.secure_sum.flower_mod import RECORD, secure_sum_mod
from sfumato.federated.secure_sum.secure_sum import SecureSum
from sfumato.testing import seeded

SEED = 11  # of the clients' noise, where a test compares bits


class NodeGrid:
    """Sends messages to apps. `lost` names the nodes whose answer to a stage never comes."""

    def __init__(self, apps, lost=None, change=None):
        self.apps, self.lost, self.change = apps, lost or {}, change or (lambda stage, replies: replies)
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in apps}
        self.received = []  # every message that the server gets

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            stage = message.content.config_records[RECORD]["stage"]
            if node in self.lost.get(stage, ()):
                continue
            try:
                reply = self.apps[node](message, self.contexts[node])
            except Exception as error:  # as Flower does
                reply = Message(Error(2, str(error)), reply_to=message)
            replies += self.change(stage, [reply])
        self.received += replies
        return replies

    def forms(self):
        """Return what the messages that came are made of: types and lengths, which no random bytes change."""
        return sorted(str(form_of(message)) for message in self.received)


def form_of(message):
    """Return the form of a message: its error, or types and lengths of all that is in it."""
    if message.has_error():
        return message.error.reason
    records = {name: dict(record) for name, record in message.content.items()}
    return {
        (name, key): (type(value), len(value) if hasattr(value, "__len__") else None)
        for name, record in records.items()
        for key, value in record.items()
    }


MECHANISM = SecureSum(dimension=8, clip_norm=1.0, noise_multiplier=0.5, cohort=4, least_survivors=3)


def trained_by(update, *, mechanism=MECHANISM, **options):
    """Return an app whose training moves the model against `update`, and tells metrics."""
    options = {"rounds": 100, "generator": seeded(SEED), **options}
    app = ClientApp(mods=[secure_sum_mod(mechanism, **options)])

    @app.train()
    def train(message, context):
        if isinstance(update, Exception):
            raise update
        (given,) = message.content["arrays"].to_numpy_ndarrays()
        content = RecordDict({"arrays": ArrayRecord([given - np.asarray(update).reshape(given.shape)])})
        content["metrics"] = MetricRecord({"loss": 123.0, "num-examples": 77})
        return Message(content, reply_to=message)

    return app


@pytest.fixture
def grid() -> Iterator[Callable]:
    """Return a function from updates (by node) to a grid."""
    before = TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

    def make(updates, *, lost=None, change=None, **options):
        apps = {node: trained_by(update, **options) for node, update in updates.items()}
        return NodeGrid(apps, lost, change)

    yield make
    TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


@pytest.fixture
def model() -> Callable[[int], RecordDict]:
    """Return a function that makes the content of a round: a model of so many ones."""
    return lambda dimension: RecordDict({"arrays": ArrayRecord([np.ones(dimension)])})
