# SPDX-License-Identifier: Apache-2.0
"""A Flower strategy whose model does not reveal which clients took part: DP-FedAvg with one account.

`start` is a training run of `sfumato.training` whose units are clients (`GridClients`): the run is charged
first, each round samples a cohort (each client with the same probability, independently), clips each client's
whole update, adds noise once to the sum, and divides by the expected size of the cohort, a public number. Any
torch optimizer takes the step: SGD with learning rate 1 by default (federated averaging).

Guarantee  That of the run, for one client with all its data, whatever clients send (`GridClients`). The
           server is trusted: it sees updates before noise is added. Who sees the model, in any round, learns
           from it no more than the guarantee allows.
Unit       One node. A person with data on two nodes is protected by half as much.
Edge cases A cohort of zero clients is a round of noise alone. A round in which nobody replies is one, too,
           and is accounted like any other.
Failure    Flower's own loop is not used, and its parts (`configure_train` and others) are refused: a wrapped
           strategy would bypass the accounting. Clients are not asked to evaluate, and their metrics are not
           read: both are private.
Source     McMahan et al. 2018, arXiv:1710.06963.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from logging import INFO
from typing import Any, NoReturn, Unpack

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from sfumato import _check
from sfumato.accounting.plan import Plan
from sfumato.errors import InvalidParameterError, UnsupportedUseError
from sfumato.federated.flower.grid_clients import GridClients
from sfumato.federated.flower.nodes import connected_nodes
from sfumato.federated.flower.server_evaluation import EvaluateFn, ServerEvaluation
from sfumato.mechanisms.random import Generator
from sfumato.training import (
    Charge,
    DpSgd,
    Evaluation,
    FixedSizeSampling,
    Metrics,
    Optimization,
    PoissonSampling,
    Privacy,
    Runtime,
    Storage,
    TrainingRun,
    TruncatedPoissonSampling,
    train,
)
from sfumato.training.description import RunDescription, RunKeywords, describe
from sfumato.training.engine import parameter_values
from sfumato.training.models.batch_norm import refuse_mixing
from sfumato.training.run_audit import RunAudit

__all__ = ["PrivateResult", "PrivateStrategy"]

_MEMORYLESS = (PoissonSampling, TruncatedPoissonSampling, FixedSizeSampling)  # rounds draw apart from others
_OF_ROWS = ("owners", "contribution_bound", "augment")  # what makes no sense where a unit is a client


@dataclass(repr=False)
class PrivateResult(Result):
    """Flower's result, with the run that made it. Metrics of clients are always empty: they are private.

    Args:
        arrays: The weights of the model.
        train_metrics_clientapp: Empty.
        evaluate_metrics_clientapp: Empty.
        evaluate_metrics_serverapp: What the server measured, by round.

    Attributes:
        run: The training run: guarantee, statement, history.
    """

    run: TrainingRun | None = None


class PrivateStrategy(Strategy):
    """DP-FedAvg as a Flower strategy. The ClientApp stays an ordinary one.

    Args:
        model: The model of the server. It is trained in place.
        privacy: What is claimed. A unit is a client, and a step is a round.
        optimization: How the server moves the model. Default: SGD with learning rate 1.
        evaluation: Data of the server that is NOT protected, or an `Evaluation`.
        storage: Where checkpoints, metrics and weights are kept.
        charge: The account that pays, and the purpose.
        cohort: How many clients a round samples on average: `expected_batch_size` in other words.
        audit: `sfumato.audit.Canaries(count=1000)` to audit the run from within, by canary clients of the
            server's own.
        least_clients: How many nodes must be connected before the run starts.
        generator: The source of randomness. Default: secure. A seeded one protects nobody.
        **keywords: Any field of the five descriptions, such as `epsilon`, `clip_norm`, `folder`. If
            `public_size`, the number of clients that may be known, is left out, the number of nodes that are
            connected at the start is taken, and the guarantee says that it is public.

    Raises:
        InvalidParameterError: If a setting is unknown, given twice, or makes no sense for clients.
        UnsupportedModelError: If the model has layers that keep statistics of batches (batch norm).

    >>> model = torch.nn.Linear(2, 2)
    >>> strategy = PrivateStrategy(model, epsilon=8, delta=1e-3, cohort=20, clip_norm=0.5)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        privacy: Privacy | Plan | DpSgd | None = None,
        optimization: Optimization | None = None,
        evaluation: Evaluation | Any = None,
        storage: Storage | None = None,
        charge: Charge | None = None,
        cohort: float | None = None,
        audit: RunAudit | None = None,
        least_clients: int = 1,
        generator: Generator | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> None:
        _check.count(least_clients=least_clients)
        if cohort is not None:
            keywords = _with_cohort(keywords, cohort)
        self._run = describe(
            keywords,
            privacy=privacy,
            optimization=optimization,
            evaluation=evaluation,
            storage=storage,
            charge=charge,
        )
        _refuse_rows(self._run)
        refuse_mixing(model)
        _require_named(model)
        self._model, self._least, self._generator = model, least_clients, generator
        self._audit = audit

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        resume: bool = False,
    ) -> PrivateResult:
        """Run all rounds, or continue the run in the folder.

        Args:
            grid: The grid of the ServerApp.
            initial_arrays: The weights to begin with: `ArrayRecord(model.state_dict())`.
            num_rounds: How many rounds: `steps` in other words. Leave it out if the privacy states it.
            timeout: How many seconds a round waits for replies, and the start for nodes.
            train_config: What clients are told in each round, beside the number of the round.
            evaluate_config: Must be empty: clients are not asked to evaluate.
            evaluate_fn: Measures the model on data that is NOT protected, every `evaluate_every` rounds.
            resume: Whether to continue the run in the folder instead of starting one.

        Returns:
            The weights, the metrics of the server by round, and the run.

        Raises:
            InvalidParameterError: If a setting is missing or out of range. Nothing is spent.
            BudgetExceededError: If the account cannot pay for the run. Nothing is spent.
        """
        if evaluate_config:
            raise InvalidParameterError(
                "evaluate_config was given, but clients are not asked to evaluate: their metrics are "
                "private. Measure on data of the server: evaluation=... or evaluate_fn=..."
            )
        self._model.load_state_dict(initial_arrays.to_torch_state_dict())
        self.summary()
        nodes = connected_nodes(grid, least=self._least, timeout=timeout)
        clients = GridClients(
            grid,
            nodes,
            timeout=timeout,
            config=train_config,
            counted=self._counted(),
            numbered=not self._memoryless(),
        )
        described = _with_rounds(self._described(len(nodes)), num_rounds)
        measured = None if evaluate_fn is None else ServerEvaluation(evaluate_fn)
        if measured is not None:
            described = measured.described(described)
        run = self._trained(described, clients, len(nodes), resume=resume)
        log(INFO, "%s: %d rounds. %s.", type(self).__name__, run.mechanism.steps, run.guarantee)
        return _result(run, {} if measured is None else measured.records)

    def _trained(
        self, described: RunDescription, clients: GridClients, number: int, *, resume: bool
    ) -> TrainingRun:
        return train(
            self._model,
            (torch.arange(number),),
            privacy=described.privacy,
            optimization=described.optimization,
            evaluation=described.evaluation,
            storage=described.storage,
            charge=described.charge,
            audit=self._audit,
            runtime=Runtime(engine=clients),
            generator=self._generator,
            resume=resume,
        )

    def _memoryless(self) -> bool:
        """Whether rounds draw cohorts apart from each other, so that numbers of clients mean nothing."""
        privacy = self._run.privacy
        sampling = privacy.sampling if privacy.mechanism is None else privacy.mechanism.sampling
        return sampling is None or isinstance(sampling, _MEMORYLESS)

    def _counted(self) -> bool:
        """Whether the number of connected nodes sets the sampling rate."""
        privacy = self._run.privacy
        return privacy.public_size is None and privacy.mechanism is None and privacy.sampling is None

    def _described(self, clients: int) -> RunDescription:
        """Fill in what a federated run knows by itself."""
        run, privacy, how = self._run, self._run.privacy, self._run.optimization
        account = run.charge.account
        unit = privacy.privacy_unit or ("client" if account is None else account.privacy_unit)
        size = clients if privacy.public_size is None else privacy.public_size
        if how.optimizer is None:
            rate = 1.0 if how.learning_rate is None else how.learning_rate
            how = replace(how, optimizer=partial(torch.optim.SGD, lr=rate), learning_rate=None)
        return replace(run, privacy=replace(privacy, public_size=size, privacy_unit=unit), optimization=how)

    def summary(self) -> None:
        """Log the settings of the run, which are public."""
        privacy = self._run.privacy
        log(
            INFO,
            "%s: epsilon %s, delta %s, clip norm %s, at least %d clients",
            type(self).__name__,
            privacy.epsilon,
            privacy.delta,
            privacy.clip_norm,
            self._least,
        )

    # --- parts of Flower's loop, which is not used ---------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> NoReturn:
        """Refuse: cohorts are drawn by the training run.

        Args:
            server_round: Not used.
            arrays: Not used.
            config: Not used.
            grid: Not used.

        Raises:
            UnsupportedUseError: Always.
        """
        _refuse_loop()

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Refuse: updates are clipped and added up by the training run.

        Args:
            server_round: Not used.
            replies: Not used.

        Raises:
            UnsupportedUseError: Always.
        """
        _refuse_loop()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> NoReturn:
        """Refuse: clients are not asked to evaluate.

        Args:
            server_round: Not used.
            arrays: Not used.
            config: Not used.
            grid: Not used.

        Raises:
            UnsupportedUseError: Always.
        """
        _refuse_loop()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Refuse: metrics of clients are private.

        Args:
            server_round: Not used.
            replies: Not used.

        Raises:
            UnsupportedUseError: Always.
        """
        _refuse_loop()


def _refuse_loop() -> NoReturn:
    raise UnsupportedUseError(
        "PrivateStrategy is not a part of another strategy or loop: these would release what it accounts "
        "for in another way. Call strategy.start(grid=..., initial_arrays=..., num_rounds=...) itself."
    )


def _with_cohort(keywords: RunKeywords, cohort: float) -> RunKeywords:
    if "expected_batch_size" in keywords:
        raise InvalidParameterError("cohort and expected_batch_size are the same number. Pass one of them.")
    return {**keywords, "expected_batch_size": cohort}


def _with_rounds(run: RunDescription, rounds: int | None) -> RunDescription:
    """Return a description with `rounds` steps; raise if it states another number."""
    privacy = run.privacy
    stated = privacy.steps if privacy.mechanism is None else privacy.mechanism.steps
    if rounds is None or rounds == stated:
        return run
    if stated is not None or privacy.epochs is not None:
        raise InvalidParameterError(
            f"num_rounds={rounds} was given, but the privacy of the strategy states another length. Leave "
            "one of the two out."
        )
    return replace(run, privacy=replace(privacy, steps=rounds))


def _refuse_rows(run: RunDescription) -> None:
    """Raise if a setting is about rows: the server has none."""
    settings = {**_fields(run.privacy), **_fields(run.optimization)}
    given = [name for name in _OF_ROWS if settings[name] is not None]
    given += ["views"] if run.optimization.views != 1 else []
    if given:
        raise InvalidParameterError(
            f"{', '.join(given)} cannot be used here: a unit is a client with all its rows, which the server "
            "does not hold. Leave it out."
        )


def _fields(part: Privacy | Optimization) -> dict[str, Any]:
    return {each.name: getattr(part, each.name) for each in fields(part)}


def _require_named(model: torch.nn.Module) -> None:
    """Raise unless parameters have their own names in the state that clients get."""
    if not set(parameter_values.find(model).parameters) <= set(model.state_dict()):
        raise InvalidParameterError(
            "the model's state_dict has other names than its parameters, so nothing says which array of a "
            "client is which parameter. Use a model with the state_dict of torch."
        )


def _result(run: TrainingRun, records: Mapping[int, MetricRecord]) -> PrivateResult:
    figures = {row.step: _figures(row) for row in run.history}
    for step, record in records.items():
        figures[step] = MetricRecord({**figures.get(step, {}), **record})
    return PrivateResult(
        arrays=ArrayRecord(run.model.state_dict()),
        evaluate_metrics_serverapp=dict(sorted(figures.items())),
        run=run,
    )


def _figures(row: Metrics) -> MetricRecord:
    shown = {"epsilon": row.epsilon, "loss": row.loss, "accuracy": row.accuracy}
    return MetricRecord({name: v for name, v in shown.items() if v is not None and math.isfinite(v)})
