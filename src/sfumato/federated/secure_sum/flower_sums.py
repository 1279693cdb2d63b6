# SPDX-License-Identifier: Apache-2.0
"""Secure sums of the clients behind a Flower grid, for a training run: a step of the run is a round.

Guarantee  In each round the same number of clients is invited and adds noise: the clients of the drawn batch,
           and others that add noise alone. Neither the noise nor whether a round is skipped depends on who
           contributes, as long as clients drop out for reasons that have nothing to do with the batch.
           Those who see models alone do not learn the batch, so the sampling of the run amplifies for them.
           The server knows the batch and sees every decoded sum: against the server a round costs
           `SecureSum.event()`, without sampling, each time it is run.
Edge cases A batch is never larger than the cohort: a run whose sampler may draw a larger one is refused
           before it is charged (`largest_batch`). Either the cohort is all nodes, which any batch fits, and
           clients outside of the batch add noise alone; or batches have a largest size, such as those of
           `TruncatedPoissonSampling`, whose event counts that a larger batch was cut.
Failure    A round with fewer survivors than `least_survivors` gives no sum; the step counts, and is charged
           like any other. The log and the statement say so: the models show it, too, as they do not move.
           A run that is resumed repeats the rounds since its last checkpoint, which the server has seen: use
           `checkpoint_every=1`.
"""

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor, nn

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.flower_round import secure_round
from sfumato.federated.secure_sum.secure_sum import SecureSum
from sfumato.federated.secure_sum.simulated import round_seed, split_sum
from sfumato.training.engine import parameter_values
from sfumato.training.engine.contributions import Federation

__all__ = ["GridSums"]

_ROUND = "server-round"  # the name that Flower's own strategies use

_log = logging.getLogger(__name__)


class GridSums:
    """Noisy sums over the clients of a grid: a `NoisySummer` for `Runtime(engine=...)`.

    Args:
        grid: The grid of a ServerApp. Its clients have `secure_sum_mod`.
        nodes: The ids of the nodes that are the clients 0, 1, 2 ... of the run.
        mechanism: The mechanism; each step has its own noise multiplier.
        neighbors: As for `secure_round`.
        timeout: How many seconds each of the four exchanges of a round waits.
        config: What clients are told beside the model; the number of the round is added.

    Raises:
        InvalidParameterError: If a node is listed twice, or the nodes are fewer than the cohort.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Sequence[int],
        mechanism: SecureSum,
        *,
        neighbors: int | None = None,
        timeout: float = 3600.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        _check.positive(timeout=timeout)
        self._grid, self._nodes, self._mechanism = grid, tuple(nodes), mechanism
        if len(set(self._nodes)) != len(self._nodes) or len(self._nodes) < mechanism.cohort:
            raise InvalidParameterError(
                f"nodes must be different ones, at least as many as the cohort={mechanism.cohort}, which is "
                "invited to each round."
            )
        self._neighbors, self._timeout, self._config = neighbors, timeout, dict(config or {})
        self._rounds: dict[
            int, bool
        ] = {}  # the rounds that were asked for here, and which of them have a sum

    def __repr__(self) -> str:
        """Return what must be the same when a run is resumed."""
        return f"GridSums({self._mechanism!r})"

    @property
    def federation(self) -> Federation:
        """That units are clients."""
        return Federation()

    @property
    def summation(self) -> SecureSum:
        """What the sums are, with their event."""
        return self._mechanism

    @property
    def generator(self) -> None:
        """None: the clients draw the noise, with secure generators of their own."""
        return

    @property
    def largest_batch(self) -> int | None:
        """The cohort, for which modulus and noise were chosen; None if it has room for all nodes."""
        cohort = self._mechanism.cohort
        return None if len(self._nodes) <= cohort else cohort

    def statement(self) -> str:
        """Return what is summed, in a sentence.

        Returns:
            The sentence.
        """
        return (
            "The update of a client is the model that the server sent to it, minus the model that it "
            "learned. The server saw the sum of a round alone, and knows whom it asked: where the guarantee "
            "counts on sampling, it is one against those who see models, and not against the server. The "
            f"server follows the protocol, and has not made up clients.{self._without_sum()}"
        )

    def _without_sum(self) -> str:
        """Return how many rounds had no sum, as the models show: they do not move in such a round."""
        without = sum(not has_sum for has_sum in self._rounds.values())
        if not without:
            return ""
        which = "" if 0 in self._rounds else "last "
        return (
            f" {without} of the {which}{len(self._rounds)} rounds had no sum, because fewer than "
            f"{self._mechanism.least_survivors} clients took part to the end: nothing was learned in them."
        )

    def noisy_sum(
        self, model: nn.Module, batch: Sequence[Any], *, step: int, noise_multiplier: float
    ) -> dict[str, Tensor] | None:
        """Ask the clients of a cohort for the sum of their updates.

        Args:
            model: The model of the server.
            batch: The numbers of the clients that contribute, as one tensor; empty if nobody does.
            step: The number of the round, from 0 on.
            noise_multiplier: The noise of the round.

        Returns:
            For each trainable parameter, by name, the sum; None if too few clients were left in the round.

        Raises:
            InvalidParameterError: If there are more contributors than the cohort. Nobody is asked.
        """
        parameters = parameter_values.find(model).parameters
        contributors = [self._nodes[i] for i in (batch[0].tolist() if batch else ())]
        if len(contributors) > self._mechanism.cohort:
            raise InvalidParameterError(
                f"a batch has more clients than cohort={self._mechanism.cohort}. Draw batches that have a "
                "largest size, or let the cohort be all nodes."
            )
        config = ConfigRecord({**self._config, _ROUND: step + 1})
        found = secure_round(
            self._grid,
            self._invited(contributors),
            self._mechanism.scaled(noise_multiplier),
            content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "config": config}),
            seed=round_seed(None, step),
            contributors=contributors,
            parameters=list(parameters),
            neighbors=self._neighbors,
            timeout=self._timeout,
        )
        self._rounds[step] = not found.skipped
        if found.total is None:
            _log.warning(
                "round %d has no sum: fewer than %d of the %d invited clients took part to the end. Nothing "
                "is learned in it, and it is charged. Clients that refuse say why in their own logs.",
                step + 1,
                self._mechanism.least_survivors,
                self._mechanism.cohort,
            )
            return None
        return split_sum(found.total, parameters)

    def _invited(self, contributors: Sequence[int]) -> list[int]:
        """Return the contributors, and as many others as fill the cohort up."""
        chosen = set(contributors)
        others = [node for node in self._nodes if node not in chosen]
        missing = self._mechanism.cohort - len(contributors)
        invited = [*contributors, *secrets.SystemRandom().sample(others, missing)]
        secrets.SystemRandom().shuffle(invited)
        return invited
