# SPDX-License-Identifier: Apache-2.0
"""Privacy for each example of a client: the client trains by DP-SGD, and sends what it has learned.

Each round is some steps of DP-SGD from the model of the server, over the client's own examples. All steps of
all planned rounds are one release of the client's own account. The server averages the models with any
strategy of Flower and adds no noise. It is not trusted: it sees replies that are private already.

Guarantee  All replies of a client together, at most `rounds` of them, are (epsilon, delta)-private for one
           example of one client, whoever sees them. Examples of other clients have the guarantees of theirs.
Neighbors  Add-remove by default: one example of the client more or less. What all examples of a client have
           in common is not protected: use `LocalNoise` or `PrivateStrategy` for that.
Edge cases Batches are drawn anew in each round, so sampling without memory is needed, such as Poisson.
Failure    A client that has answered `rounds` rounds replies with an error. An error while learning is
           replied with a fixed text. Whether there is one does not depend on the model of the server: passes
           are compared on rows of zeros, from the client's own weights, and a model without a finite gradient
           learns nothing. Model and loss must not fail because of a row, as for `training.train`.
"""

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Unpack

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from sfumato import _check
from sfumato._failures import ordinary
from sfumato.accounting.guarantee import Guarantee
from sfumato.accounting.plan import Plan
from sfumato.errors import InvalidParameterError
from sfumato.federated.flower.client_side import loaded, own_stream
from sfumato.federated.flower.local_noise import WEIGHT
from sfumato.federated.messages.planned_rounds import AccountOf, PlannedRounds, refusal
from sfumato.ledger.recorded import record_note
from sfumato.mechanisms.random import Generator, study_note
from sfumato.training import (
    DpSgd,
    FixedSizeSampling,
    Optimization,
    PoissonSampling,
    Privacy,
    Runtime,
    TruncatedPoissonSampling,
    train,
)
from sfumato.training.budget import delta_for, dp_sgd_for
from sfumato.training.data import rows as row_trees
from sfumato.training.description import RunKeywords, describe
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.run import sentence

__all__ = ["ExampleLevel"]

_NAMES = {each.name for kind in (Privacy, Optimization) for each in fields(kind)} | {"purpose"}
_MEMORYLESS = (PoissonSampling, TruncatedPoissonSampling, FixedSizeSampling)


class ExampleLevel:
    """The training function of a ClientApp whose replies protect each example.

    Register it: `app = ClientApp()`, then `app.train()(ExampleLevel(...))`.

    Args:
        model: A model of the architecture of the server. Its own weights do not matter.
        rows: Returns the rows of the client, from Flower's context.
        rounds: How many rounds the client answers at most.
        local_steps: How many steps of DP-SGD a round takes.
        privacy: What is claimed for all rounds together, without `steps`.
        optimization: How the client learns.
        account_of: Returns the account of the client from Flower's context. It keeps the count of rounds,
            too. Without it the count is kept for one run of Flower, and nothing is recorded.
        runtime: Device, engine and memory. If it has `check`, the engine is compared with the reference on
            rows of zeros, and never on private ones, if rows are tensors.
        generator: The source of randomness. Default: secure. A seeded one protects nobody.
        **keywords: Fields of `Privacy` and `Optimization`, such as `epsilon`, `delta`, `public_size` (of the
            client's examples), `expected_batch_size`, `clip_norm`, `learning_rate`; and `purpose`, which the
            account keeps with the charge. Another purpose is another charge.

    Raises:
        InvalidParameterError: If a setting is missing, unknown or out of range.

    >>> import torch
    >>> def rows(context):
    ...     return torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64)
    >>> client = ExampleLevel(
    ...     nn.Linear(2, 2),
    ...     rows,
    ...     rounds=5,
    ...     local_steps=4,
    ...     epsilon=2,
    ...     delta=1e-5,
    ...     public_size=100,
    ...     expected_batch_size=20,
    ... )
    >>> print(client.guarantee)
    (2, 1e-05)-differential privacy for one example, add-remove neighbors
    """

    def __init__(
        self,
        model: nn.Module,
        rows: Callable[[Context], Any],
        *,
        rounds: int,
        local_steps: int,
        privacy: Privacy | Plan | None = None,
        optimization: Optimization | None = None,
        account_of: AccountOf | None = None,
        runtime: Runtime | None = None,
        generator: Generator | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> None:
        _check.count(rounds=rounds, local_steps=local_steps)
        _check.keywords(keywords, sorted(_NAMES))
        described = describe(keywords, privacy=privacy, optimization=optimization)
        self._model, self._rows, self._steps = model, rows, local_steps
        self._privacy = _of_all_rounds(described.privacy, rounds * local_steps)
        self._mechanism = dp_sgd_for(self._privacy)
        self._delta = delta_for(self._privacy, self._privacy.public_size, None)
        self._one_round = _round_of(self._mechanism, local_steps, rounds)
        self._optimization, self._generator = described.optimization, generator
        self._runtime = Runtime() if runtime is None else runtime
        self._price = self._mechanism.price(delta=self._delta)
        self._rounds = PlannedRounds(
            self._mechanism,
            rounds=rounds,
            purpose=described.charge.purpose or "rounds of DP-SGD",
            account_of=account_of,
            generator=generator,
            rows_of=None if self._privacy.owners is not None else self._privacy.privacy_unit or "example",
        )
        self._planned, self._recorded = rounds, account_of is not None

    @property
    def mechanism(self) -> DpSgd:
        """All steps of all rounds."""
        return self._mechanism

    @property
    def guarantee(self) -> Guarantee:
        """What all replies of a client together satisfy."""
        return self._price.guarantee(self._privacy.privacy_unit or "example")

    def statement(self) -> str:
        """Return a paragraph for the person who answers for the client's data.

        Returns:
            What the client sends, and the guarantee.
        """
        notes = [study_note(self._generator), None if self._recorded else record_note(None)]
        return " ".join(
            [
                f"This client answers at most {self._planned} rounds, each after {self._steps} noisy steps "
                f"of DP-SGD over its own examples. All answers together satisfy {self.guarantee}.",
                *filter(None, map(sentence, notes)),
            ]
        )

    def __call__(self, message: Message, context: Context) -> Message:
        """Train on the rows of the client, and reply with the model.

        Args:
            message: The message of the server.
            context: The context of the client.

        Returns:
            The reply.
        """
        own = loaded(self._model, message)
        (name,) = message.content.array_records
        if not self._rounds.take(context):
            return refusal(message, "All rounds that this client agreed to are answered.")
        try:
            ordinary(lambda: self._learn(own, context, own_stream(self._generator, message, context)))
        except Exception:  # on private data: its text must not leave
            return refusal(message, "The client could not learn in this round.")
        content = RecordDict({name: ArrayRecord(own.state_dict()), "metrics": MetricRecord({WEIGHT: 1})})
        return Message(content, reply_to=message)

    def _learn(self, own: nn.Module, context: Context, generator: Generator | None) -> None:
        rows = self._rows(context)
        self._try_out(rows)
        train(
            own,
            rows,
            privacy=Privacy(
                mechanism=self._one_round,
                public_size=self._privacy.public_size,
                delta=self._delta,
                privacy_unit=self._privacy.privacy_unit,
                owners=self._privacy.owners,
                contribution_bound=self._privacy.contribution_bound,
            ),
            optimization=self._optimization,
            # The server chose the weights: checks on private rows would tell it which batches are empty.
            runtime=replace(self._runtime, check=False),
            generator=generator,
            progress=False,
        )

    def _try_out(self, rows: Any) -> None:
        """Compare the engine with the reference on rows of zeros, with the client's own weights."""
        tensors = isinstance(rows, tuple | list) and all(isinstance(each, Tensor) for each in rows)
        if not self._runtime.check or not tensors:
            return
        PrivateGradients(
            copy.deepcopy(self._model),
            self._optimization.loss,
            noise_multiplier=1.0,
            clip_norm=1.0,
            expected_batch_size=1.0,
            passes=self._runtime.passes,
        ).accumulate(*row_trees.padded(row_trees.take(tuple(rows), slice(0, 0)), 2))


def _of_all_rounds(privacy: Privacy, steps: int) -> Privacy:
    if privacy.steps is not None or privacy.epochs is not None or privacy.mechanism is not None:
        raise InvalidParameterError(
            "the length is given by rounds=... and local_steps=...: leave steps, epochs and mechanism out."
        )
    if privacy.epsilon is not None and privacy.noise_multiplier is not None:
        raise InvalidParameterError(
            "epsilon and noise_multiplier were both given: the run would stop early, and rounds would have "
            "other lengths than planned. Pass one of them."
        )
    return replace(privacy, steps=steps)


def _round_of(mechanism: DpSgd, steps: int, rounds: int) -> DpSgd:
    """Return one round of a run; raise if rounds do not make up the run."""
    if not isinstance(mechanism.sampling, _MEMORYLESS):
        raise InvalidParameterError(
            f"{type(mechanism.sampling).__name__} cannot be used in rounds: its batches depend on earlier "
            "ones, and each round begins anew. Use PoissonSampling."
        )
    ((noise, count),) = mechanism.noise
    assert count == steps * rounds
    return replace(mechanism, noise=((noise, steps),))
