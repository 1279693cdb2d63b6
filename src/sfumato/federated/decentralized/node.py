# SPDX-License-Identifier: Apache-2.0
"""One node: what it sends in a round, and how it averages what it received.

Let x be the state of a node at the beginning of a round. The node sends m = x + v, where v is what it learned
from its rows, clipped and with noise (`protection`). Then its state becomes the weighted average of the
messages of the round, its own included. The model that it trained without noise is dropped.

Guarantee  All messages of all nodes together satisfy the guarantee of `protection.event(rounds)` for the rows
           of each node. Proof, by induction over rounds: the first state is public, and each later state is a
           function of messages of the round before. So, given all earlier messages, the state x of node i is
           fixed, and its message depends on its rows through v alone, which is one release of the mechanism
           with fresh noise. Messages of other nodes depend on the rows of node i through its messages only.
           The messages are therefore an adaptive composition of `rounds` releases, and the models of all
           nodes are computed from messages.
           A node that kept the model without noise instead of x would break this: the next message would
           contain the exact update of this round, and the one after it two of them.
Failure    What a node does not receive contributes nothing: the weights of the messages that are there are
           divided by their sum. A message of another shape, or with a number that is not finite, counts as
           not received; so does the node's own. If none is left, the state stays. Losing a message changes
           what is computed from messages, so it costs no privacy.
Not here   Nodes that lie. A neighbor that sends wrong finite numbers can spoil the models of others, and
           learns nothing more about their rows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from sfumato.federated.decentralized.protection import Speak

__all__ = ["Node"]


class Node:
    """The state of one node. It is public at all times.

    Args:
        number: The number of the node.
        weights: The weight of each message by its sender, the node itself included.
        start: The first state, the same public vector for all nodes.
        speak: What makes messages from states: the only access to rows.
    """

    def __init__(self, number: int, weights: Mapping[int, float], start: Tensor, speak: Speak) -> None:
        self.number, self.state = number, start.clone()
        self._weights, self._speak = dict(weights), speak

    def message(self, step: int) -> Tensor:
        """Return the message of a round, the same for all neighbors. Call it once a round.

        Args:
            step: The number of the round, from 0 on.

        Returns:
            A vector like the state.
        """
        return self._speak(self.state, step)

    def mix(self, messages: Mapping[int, Tensor]) -> None:
        """Replace the state by the average of the messages of a round.

        Args:
            messages: The messages that are there, by sender, the node's own included.
        """
        there = [n for n in sorted(self._weights) if n in messages and self._valid(messages[n])]
        total = sum(self._weights[n] for n in there)
        if not there:
            return
        mixed = torch.zeros_like(self.state, dtype=torch.float64)
        for n in there:
            mixed += messages[n].double() * (self._weights[n] / total)
        self.state = mixed.to(self.state.dtype)

    def _valid(self, message: Tensor) -> bool:
        alike = message.shape == self.state.shape and message.dtype == self.state.dtype
        return alike and bool(message.isfinite().all())
