# SPDX-License-Identifier: Apache-2.0
"""Train a model on rows that stay with their clients, simulated in one process.

Guarantee  A client is added or removed with all of its rows. In each round every client is asked with the
           same probability, independently; its update is clipped, updates are added up with noise once, and
           the sum is divided by a public number. That is DP-SGD whose units are clients, and the event is
           that of `training.DpSgd`: cohorts, clipping, noise and rounds. All models that the server makes
           are covered together.
Neighbors  Add-remove by default, as for `training.train`. The sampling rate is `expected_cohort_size` divided
           by `public_size`, a declared number. Without one the clients are counted, and the guarantee says
           that their number is public.
Unit       One client with all of its rows.
Failure    As for `training.train`: the whole run is charged before a client is read. No client can stop a
           round (`clients.vectorized`).
Source     McMahan et al. 2018, arXiv:1710.06963 (DP-FedAvg); Andrew et al. 2021, arXiv:1905.03871 (adaptive
           clipping); Reddi et al. 2021, arXiv:2003.00295 (server optimizers).
Not here   A federation of real machines: `federated.flower`.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import nn

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.client_rows import ClientRows, require_clients
from sfumato.federated.clients.local_training import LocalTraining
from sfumato.federated.clients.vectorized import VectorizedClients
from sfumato.federated.distributed_run import CLAIMED, distributed_run
from sfumato.federated.secure_sum.secure_sum import IntegerNoise, SecureSum
from sfumato.federated.secure_sum.simulated import SimulatedSums
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.training import distributed
from sfumato.training.description import RunKeywords
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.privacy.terms import ROW_UNITS
from sfumato.training.run import TrainingRun
from sfumato.training.run_audit import RunAudit
from sfumato.training.runtime import Runtime
from sfumato.training.train import train

__all__ = ["federate", "round_keywords"]

_LOCAL = LocalTraining()
_MOST_AT_ONCE = 32  # clients; more take memory and are hardly faster


def federate(
    model: nn.Module,
    clients: ClientRows,
    *,
    rounds: int,
    expected_cohort_size: float,
    local: LocalTraining = _LOCAL,
    noise: IntegerNoise | str | None = None,
    evaluation: Any = None,
    runtime: Runtime | None = None,
    audit: RunAudit | None = None,
    generator: Generator | None = None,
    resume: bool = False,
    **keywords: Unpack[RunKeywords],
) -> TrainingRun:
    """Train a model by federated averaging with differential privacy for clients.

    Args:
        model: The model of the server. It is trained in place.
        clients: What clients hold: a partition of a data set, `AssignedRows` or `LazyRows`.
        rounds: How many rounds, at most: with `epsilon` and `noise_multiplier` the budget may end them.
        expected_cohort_size: How many clients a round asks on average. Updates are divided by it.
        local: How a client learns between two rounds.
        noise: "discrete-gaussian" or "skellam" simulates distributed noise: clients add shares of it to
            integers of 16 bits, as under secure aggregation. Default: the server adds Gaussian noise.
        evaluation: Rows that are NOT protected, or an `Evaluation`.
        runtime: Device and memory.
        audit: `sfumato.audit.Canaries(count=1000)` to audit the run from within, by canary clients.
        generator: The source of cohorts and noise. Default: secure. A seeded one protects nobody.
        resume: Whether to continue the run in the folder.
        **keywords: As for `training.train`: `epsilon` or `noise_multiplier`, `delta`, `public_size` (how many
            clients may be known to be there; default: they are counted), `clip_norm` or `clipping` of an
            update, `sampling`, `correlation`, `folder`, `account`, and others. The server's `optimizer` is
            SGD with a learning rate of 1 if none is given, which averages updates. The budget of an account
            is one against those who see the models. If `noise` is given and the run costs more than that
            against the server, there is a warning.

    Returns:
        The run: the model, its guarantee, its metrics and its statement.

    Raises:
        InvalidParameterError: If a setting is missing, unknown or out of range, or the model or the loss does
            not fit the rows of clients. Nothing is spent.
        NotPrivateError: If the model keeps something of the rows that it sees. Nothing is spent.
        BudgetExceededError: If the account cannot pay for the run. Nothing is spent.

    >>> from sfumato.federated.clients.partitions import iid
    >>> clients = iid((torch.zeros(200, 2), torch.zeros(200, dtype=torch.int64)), clients=50)
    >>> run = federate(nn.Linear(2, 2), clients, rounds=3, expected_cohort_size=10, epsilon=8, delta=1e-3)
    >>> print(run.guarantee)
    (7.999, 0.001)-differential privacy for one client, add-remove neighbors; the number of clients, 50, is
    public
    """
    require_clients(clients)
    given: dict[str, Any] = round_keywords(
        dict(keywords), clients=len(clients), rounds=rounds, expected_cohort_size=expected_cohort_size
    )
    counted = all(keywords.get(name) is None for name in ("public_size", "sampling", "mechanism"))
    engine = VectorizedClients(
        clients, local, clients_at_once=_at_once(expected_cohort_size), counted=counted
    )
    runtime = runtime if runtime is not None else Runtime()
    if not model.training:
        model.train()  # as the run will: what can be trained at once depends on it
    engine.rehearse(model.to(runtime.device_for(model)))
    summed: SimulatedSums | None = None
    if noise is not None:
        run = distributed_run(model, IntegerNoise(noise), given, audit=audit)
        assert isinstance(run.step.summation, SecureSum)
        _warn_of_server(run, given, clients=len(clients))
        summed = SimulatedSums(engine, run.step.summation, generator=generator)
        given = {name: given[name] for name in given if name not in CLAIMED}
        given["mechanism"] = run
    return train(
        model,
        (torch.arange(len(clients)),),
        evaluation=evaluation,
        runtime=replace(runtime, engine=engine if summed is None else summed),
        audit=audit,
        generator=generator,
        resume=resume,
        loss=local.loss,
        **given,
    )


def round_keywords(
    keywords: dict[str, Any], *, clients: int, rounds: int, expected_cohort_size: float
) -> dict[str, Any]:
    """Return the keywords of `training.train` for a run whose units are clients and whose steps are rounds.

    Args:
        keywords: What the caller passed on to `training.train`.
        clients: The number of clients: it is public if no `public_size` is among the keywords.
        rounds: The number of rounds.
        expected_cohort_size: How many clients a round asks on average.

    Returns:
        The keywords, with defaults of a federation.

    Raises:
        InvalidParameterError: If a keyword has another name here, or a number is out of range.
    """
    names = {
        "steps": "rounds",
        "epochs": "rounds",
        "expected_batch_size": "expected_cohort_size",
        "loss": "LocalTraining(loss=...)",
        "owners": "a partition",
        "cohort": "expected_cohort_size",
    }
    for name in names.keys() & keywords.keys():
        raise InvalidParameterError(
            f"{name} is set by {names[name]} in a federation. Pass that, and leave {name} out."
        )
    _check.count(rounds=rounds)
    _check.positive(expected_cohort_size=expected_cohort_size)
    defaults: dict[str, Any] = {"privacy_unit": "client"}
    if keywords.get("privacy_unit") is None:
        _require_clients_of(keywords.get("account"))
    if keywords.get("optimizer") is None and keywords.get("learning_rate") is None:
        defaults["optimizer"] = _average
    declared = keywords.get("public_size")
    size = clients if declared is None else declared
    _check.count(public_size=size)
    if keywords.get("sampling") is None:
        if expected_cohort_size > size:
            most = f"clients={size}" if declared is None else f"public_size={size}"
            raise InvalidParameterError(
                f"expected_cohort_size={expected_cohort_size:g} must be at most {most}."
            )
        defaults["expected_batch_size"] = expected_cohort_size
    return {**defaults, **keywords, "steps": rounds, "public_size": size}


def _warn_of_server(run: DpSgd, keywords: Mapping[str, Any], *, clients: int) -> None:
    """Warn if a run costs more against the server than its account may spend against others."""
    account: Account | None = keywords.get("account")
    if account is None:
        return
    given, budget = keywords.get("delta"), account.budget
    paid = run.price_against_server(delta=budget.delta if given is None else given)
    if paid is not None and paid.epsilon > budget.epsilon:
        warnings.warn(
            f"the budget of account {account.name!r}, epsilon {budget.epsilon:g}, is one against those who "
            "see the models. Against the server, which knows whom it asks, sampling does not amplify, and "
            f"this run has {paid.guarantee('client')}. With expected_cohort_size={clients}, all clients, the "
            "two are equal.",
            stacklevel=3,
        )


def _require_clients_of(account: Account | None) -> None:
    if account is None:
        return
    stated = distributed.first_decides(lambda: account.privacy_unit)
    if stated == "client":
        return
    other = "" if stated in ROW_UNITS else f", or pass privacy_unit={stated!r} if each client is one {stated}"
    raise InvalidParameterError(
        f"a federation protects a client, all of its rows together, but account {account.name!r} protects "
        f"one {stated!r}. Use an account opened with privacy_unit='client'{other}. Nothing was spent."
    )


def _at_once(expected_cohort_size: float) -> int:
    """Return how many clients are computed at once: a public number, as empty places take time too."""
    return min(_MOST_AT_ONCE, 1 << max(1, math.ceil(math.log2(max(expected_cohort_size, 2.0)))))


def _average(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)
