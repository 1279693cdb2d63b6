# SPDX-License-Identifier: Apache-2.0
"""A grid of Flower whose nodes run a ClientApp in this process, one after another."""

from collections.abc import Iterable
from typing import Any, NoReturn

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class OneProcess(Grid):
    """Nodes with the partitions 0, 1, ... of a ClientApp.

    Args:
        app: The ClientApp.
        nodes: How many nodes there are.
    """

    def __init__(self, app: Any, nodes: int) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # messages name their run
        self._app = app
        self._contexts = {
            node + 1: Context(1, node + 1, {"partition-id": node}, RecordDict(), {}) for node in range(nodes)
        }

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Let each node answer its message."""
        return [self._app(message, self._contexts[message.metadata.dst_node_id]) for message in messages]

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> NoReturn:
        """There is no record of the run."""
        raise NotImplementedError

    def create_message(self, *given: Any, **more: Any) -> NoReturn:
        """Refuse: strategies of today do not call it."""
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> NoReturn:
        """Refuse: replies are there at once."""
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> NoReturn:
        """Refuse: replies are there at once."""
        raise NotImplementedError
