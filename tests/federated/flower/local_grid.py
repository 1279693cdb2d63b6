# SPDX-License-Identifier: Apache-2.0
"""A grid in one process whose nodes do what a test wants, also what no honest node does."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RUN = 7


def identify():
    """Be a ServerApp of some run: Flower's messages need to know which."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1


class Clock:
    """A time that passes only when somebody waits."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += max(seconds, 1e-3)


class LocalGrid(Grid):
    """Nodes are functions from a message to a list of replies; a reply of None never comes.

    What a function raises is raised where the grid would decode the reply.
    """

    def __init__(self, nodes):
        self.nodes = dict(nodes)
        self.asked = []  # (round, node)
        self._waiting = {}
        self.sent = []
        self.extra = []  # replies that every pull returns beside the asked ones
        identify()

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **options):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{len(self.sent)}"
            self.sent.append(message)
            self.asked.append((int(message.metadata.group_id), message.metadata.dst_node_id))
            self._waiting[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids):
        found = list(self.extra)
        for message_id in message_ids:
            message = self._waiting.pop(message_id, None)
            if message is not None:
                replies = self.nodes[message.metadata.dst_node_id](message)
                if replies is None:
                    self._waiting[message_id] = message
                else:
                    found += replies
        return found

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def context(node=1, partition=None, state=None):
    config = {} if partition is None else {"partition-id": partition}
    return Context(RUN, node, config, RecordDict() if state is None else state, {})


def served(app, node, partition=None):
    """Return a node that runs an app, with a context that lasts."""
    own = context(node, partition)

    def reply(message):
        try:
            return [app(message, own)]
        except Exception as error:  # as Flower does
            return [Message(Error(2, str(error)), reply_to=message)]

    return reply


def moved(by, *, metrics=None):
    """Return a node that adds a number to every array."""

    def reply(message):
        arrays = message.content["arrays"].to_torch_state_dict()
        arrays = {name: value + torch.as_tensor(by).to(value.dtype) for name, value in arrays.items()}
        return [answer(message, ArrayRecord(arrays), metrics=metrics)]

    return reply


def answer(message, record, *, metrics=None):
    content = RecordDict({"arrays": record})
    if metrics:
        content["metrics"] = MetricRecord(metrics)
    return Message(content, reply_to=message)


def array(values, dtype=np.float32):
    return Array(np.asarray(values, dtype=dtype))
