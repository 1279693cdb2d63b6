# SPDX-License-Identifier: Apache-2.0
"""Clients behind a Flower grid, as the contributor of a training run: a step of the run is a round.

Guarantee  A client of the cohort contributes the model it was sent minus the model it replied with, once. It
           contributes zeros if it replies with an error, with anything that does not fit the model, or not
           at all within `timeout` seconds. What one client sends changes no other client's contribution:
           replies are fetched one by one. Replies to other messages, of earlier rounds or of nodes that were
           not asked are not counted, and neither is a second reply. Nothing about a single client is logged.
Failure    An error of the grid itself (the SuperLink is gone) stops the run, which can be resumed.
Not here   Clipping, noise and cohorts (`sfumato.training`).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor, nn

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.federated.flower.replies import update_in
from sfumato.training.engine import parameter_values
from sfumato.training.engine.contributions import Federation

__all__ = ["GridClients"]

ROUND = "server-round"  # the name that Flower's own strategies use
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0  # seconds between two sweeps over open messages


class GridClients:
    """The clients of a run, as a `Contributor` for `Runtime(engine=...)`.

    Args:
        grid: The grid of a ServerApp.
        nodes: The ids of the nodes that are the clients 0, 1, 2 ... of the run.
        timeout: How many seconds a round waits for replies.
        config: What clients are told beside the model; the number of the round is added.
        counted: Whether the number of nodes sets the sampling rate, and is public.
        numbered: Whether the numbers of clients matter, as they do for batches in a fixed order. Then a run
            is resumed with the same nodes only.
        clock: Tells the time in seconds.
        sleep: Waits for some seconds.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Sequence[int],
        *,
        timeout: float = 3600.0,
        config: Mapping[str, Any] | None = None,
        counted: bool = False,
        numbered: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        _check.positive(timeout=timeout)
        self._grid, self._nodes, self._timeout = grid, tuple(nodes), timeout
        if len(set(self._nodes)) < len(self._nodes):
            raise InvalidParameterError("a node is listed twice: its update would count twice.")
        self._config, self._numbered = dict(config or {}), numbered
        self._counted, self._clock, self._sleep = counted, clock, sleep

    def __repr__(self) -> str:
        """Return what must be the same when a run is resumed."""
        return f"GridClients({self._nodes})" if self._numbered else "GridClients"

    @property
    def federation(self) -> Federation:
        """That units are clients."""
        return Federation(public_clients=len(self._nodes) if self._counted else None)

    def statement(self) -> str:
        """Return what a contribution is, in a sentence.

        Returns:
            The sentence.
        """
        return (
            "The update of a client is the model that the server sent to it, minus the model that it replied "
            "with."
        )

    def contributions(self, model: nn.Module, batch: Sequence[Any], *, step: int) -> dict[str, Tensor]:
        """Ask the clients of a cohort for their updates.

        Args:
            model: The model of the server.
            batch: The numbers of the clients, as one tensor.
            step: The number of the round, from 0 on.

        Returns:
            For each trainable parameter, by name, the update of each client: [clients, *shape].
        """
        clients = batch[0].tolist()
        sent = ArrayRecord(model.state_dict())
        given = {name: p.detach().cpu() for name, p in parameter_values.find(model).parameters.items()}
        count = len(clients)
        updates = {name: value.new_zeros(count, *value.shape) for name, value in given.items()}
        for place, update in self._updates([self._nodes[i] for i in clients], sent, given, step):
            for name, value in update.items():
                updates[name][place] = value
        return {name: value.to(model.get_parameter(name)) for name, value in updates.items()}

    def _updates(
        self, nodes: Sequence[int], sent: ArrayRecord, given: Mapping[str, Tensor], step: int
    ) -> Iterable[tuple[int, dict[str, Tensor]]]:
        """Yield the usable updates with their place in the cohort, each node's at most once."""
        places = {node: place for place, node in enumerate(nodes)}
        for node, reply in self._replies(self._messages(nodes, sent, step)):
            update = update_in(reply, sent, given) if reply.metadata.src_node_id == node else None
            if update is not None:
                yield places[node], update

    def _messages(self, nodes: Iterable[int], sent: ArrayRecord, step: int) -> list[Message]:
        config = ConfigRecord({**self._config, ROUND: step + 1})
        content = RecordDict({"arrays": sent, "config": config})
        kind, group = MessageType.TRAIN, str(step + 1)
        # A reply that comes later than this is dropped by the SuperLink itself.
        return [Message(content, node, kind, ttl=self._timeout, group_id=group) for node in nodes]

    def _replies(self, messages: list[Message]) -> Iterable[tuple[int, Message]]:
        """Send messages; yield each node with its reply, until all have replied or time is over."""
        known = {message_id for message_id in self._grid.push_messages(messages) if message_id}
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        open_ids = [message_id for message_id in asked if message_id in known]
        end, pause = self._clock() + self._timeout, _FIRST_PAUSE
        while open_ids:
            waiting: list[str] = []
            for message_id in open_ids:
                come, reply = self._reply_to(message_id)
                if reply is not None:
                    yield asked[message_id], reply
                elif not come:
                    waiting.append(message_id)
            pause = _FIRST_PAUSE if len(waiting) < len(open_ids) else min(2 * pause, _LONGEST_PAUSE)
            open_ids = waiting
            if not open_ids or self._clock() >= end:
                return
            self._sleep(min(pause, max(end - self._clock(), 0.0)))

    def _reply_to(self, message_id: str) -> tuple[bool, Message | None]:
        """Return whether a reply to one message has come, and the reply if it can be read."""
        try:  # one by one: a reply that cannot be decoded raises, and would take others with it
            replies = list(self._grid.pull_messages([message_id]))
        except Exception:
            replies = None
        if replies is None:
            list(self._grid.get_node_ids())  # raises if the grid is gone; else it was the reply
            return True, None
        own = [reply for reply in replies if reply.metadata.reply_to_message_id == message_id]
        return bool(own), own[0] if own else None
