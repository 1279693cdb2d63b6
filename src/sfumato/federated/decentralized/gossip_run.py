# SPDX-License-Identifier: Apache-2.0
"""A finished gossip run: the models of all nodes, their guarantee, and how it went.

Guarantee  Everything in it is public: states by the guarantee, the rest because it was public before.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.accounting.guarantee import Guarantee
from sfumato.accounting.price import Price
from sfumato.federated.decentralized.graph import Graph
from sfumato.federated.decentralized.protection import Protection, load_state_
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.record.metrics import correct_rows

__all__ = ["GossipRound", "GossipRun", "Observer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GossipRound:
    """The figures after one round.

    Attributes:
        step: The number of the round, from 0 on.
        nodes: The nodes that finished the round.
        consensus_distance: The root mean square distance of their models from the average of their models.
        accuracies: The accuracy of the model of each of these nodes, if there was evaluation data.
    """

    step: int
    nodes: tuple[int, ...]
    consensus_distance: float
    accuracies: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class GossipRun:
    """The models of all nodes with their guarantee; `print(run.statement())` says what was done.

    Attributes:
        models: The model of each node; None for a node that did not finish.
        protection: What protected the rows of each node.
        rounds: How many rounds there were.
        graph: Who talked to whom.
        price: What the run cost each node, as a certified interval.
        history: The figures of each round.
        study_note: Why the noise protects nobody, if it was seeded.
        accounts: The names of the accounts that were charged, by node.
        record_note: What must be said of a run that no ledger keeps.
    """

    models: tuple[nn.Module | None, ...]
    protection: Protection
    rounds: int
    graph: Graph
    price: Price
    history: tuple[GossipRound, ...]
    study_note: str | None = None
    accounts: tuple[str, ...] | None = None
    record_note: str | None = None

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for the rows of each node on its own, against whoever sees all messages."""
        return self.price.guarantee(self.protection.privacy_unit)

    @property
    def accuracy(self) -> float | None:
        """The mean accuracy of the models that finished the last round."""
        last = self.history[-1].accuracies if self.history else None
        return sum(last) / len(last) if last else None

    def statement(self) -> str:
        """Return a paragraph for people who must judge the claim.

        Returns:
            What was done, and the guarantee.
        """
        lost = sum(model is None for model in self.models)
        said = (
            f"{self.graph.nodes} nodes trained models together in {self.rounds} rounds, without a server.",
            self.protection.statement(),
            "Each node sent the same message to all of its neighbors, replaced its state by the weighted "
            f"average of the messages of the round, and kept nothing else ({len(self.graph.edges)} "
            "connections).",
            f"{lost} node(s) did not finish, and were left out of averages." if lost else None,
            f"For each node on its own, all messages of all nodes together satisfy {self.guarantee}.",
            f"Epsilon is an upper bound, by {self.price.theorem}.",
            "Whoever has rows at several nodes has a guarantee of several such runs.",
            None if self.study_note is None else f"This run is {self.study_note}.",
            None if self.record_note is None else f"It is {self.record_note}.",
        )
        return " ".join(sentence for sentence in said if sentence)


class Observer:
    """Collects the public states of nodes, and evaluates them when all nodes have reported a round.

    Args:
        model: The model, which is not changed.
        nodes: How many nodes there are.
        rounds: How many rounds there are.
        evaluation: Features and labels that are not protected, or None.
    """

    def __init__(
        self, model: nn.Module, *, nodes: int, rounds: int, evaluation: tuple[Tensor, Tensor] | None
    ) -> None:
        self._model, self._nodes, self._rounds = copy.deepcopy(model), nodes, rounds
        self._evaluation = evaluation
        self._waiting: dict[int, dict[int, Tensor]] = {}
        self._last: dict[int, Tensor] = {}
        self._history: dict[int, GossipRound] = {}

    def report(self, node: int, step: int, state: Tensor) -> None:
        """Take in the state of a node after a round.

        Args:
            node: The number of the node.
            step: The number of the round.
            state: The state, which is public.
        """
        self._waiting.setdefault(step, {})[node] = state.clone()
        if step == self._rounds - 1:
            self._last[node] = state.clone()
        if len(self._waiting[step]) == self._nodes:
            self._history[step] = self._seen(step, self._waiting.pop(step))

    def history(self) -> tuple[GossipRound, ...]:
        """Return the figures of all rounds; of those that some node did not finish, too.

        Returns:
            One entry for each round that a node finished.
        """
        while self._waiting:
            step, states = self._waiting.popitem()
            self._history[step] = self._seen(step, states)
        return tuple(self._history[step] for step in sorted(self._history))

    def models(self) -> tuple[nn.Module | None, ...]:
        """Return the model of each node that finished.

        Returns:
            Models of their own, and None for nodes that did not finish.
        """
        return tuple(
            self._loaded(self._last[node]) if node in self._last else None for node in range(self._nodes)
        )

    def _loaded(self, state: Tensor) -> nn.Module:
        model = copy.deepcopy(self._model)
        load_state_(model, state)
        return model

    def _seen(self, step: int, states: dict[int, Tensor]) -> GossipRound:
        nodes = tuple(sorted(states))
        each = torch.stack([states[node].double() for node in nodes])
        apart = (each - each.mean(0)).square().sum(1).mean().sqrt()
        return GossipRound(
            step=step,
            nodes=nodes,
            consensus_distance=float(apart),
            accuracies=self._accuracies([states[node] for node in nodes]),
        )

    @torch.no_grad()
    def _accuracies(self, states: Sequence[Tensor]) -> tuple[float, ...] | None:
        if self._evaluation is None:
            return None
        found: list[float] = []
        for state in states:
            load_state_(self._model, state)
            with evaluating(self._model):
                found.append(float(correct_rows(self._model, *self._evaluation).mean()))
        return tuple(found)
