# SPDX-License-Identifier: Apache-2.0
"""Train a model in one call: from a budget to a trained model with its guarantee."""

from typing import Any, Unpack

from torch import nn

from sfumato.accounting.plan import Plan
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.training import budget, distributed
from sfumato.training.description import (
    Charge,
    Evaluation,
    Optimization,
    Privacy,
    RunDescription,
    RunKeywords,
    Storage,
    describe,
)
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.record.run_folder import RunFolder
from sfumato.training.run import TrainingRun
from sfumato.training.run_audit import RunAudit
from sfumato.training.runtime import Runtime
from sfumato.training.trainer import Trainer

__all__ = ["train"]


def train(
    model: nn.Module,
    data: Any,
    *,
    privacy: Privacy | Plan | DpSgd | None = None,
    optimization: Optimization | None = None,
    evaluation: Evaluation | Any = None,
    storage: Storage | None = None,
    charge: Charge | None = None,
    audit: RunAudit | None = None,
    runtime: Runtime | None = None,
    generator: Generator | None = None,
    resume: bool = False,
    **keywords: Unpack[RunKeywords],
) -> TrainingRun:
    """Train a model by DP-SGD, in place; return the run with its guarantee.

    Args:
        model: A torch module. It is trained in place.
        data: Tensors in a tuple, rows on the first axis; a map-style torch data set; or a data set of
            `sfumato.datasets`.
        privacy: What is claimed: a `Privacy`, what `sfumato.plan` returned, or a `DpSgd` mechanism.
        optimization: How the model is optimized.
        evaluation: Data that is NOT protected, or an `Evaluation` with a score of its own.
        storage: Where checkpoints, metrics and weights are kept.
        charge: The account that pays, and the purpose.
        audit: `sfumato.audit.Canaries(count=1000)` to audit the run from within.
        runtime: Device, engine and memory.
        generator: The source of randomness. Default: secure. A seeded one protects nobody.
        resume: Whether to continue the run in the folder instead of starting one.
        **keywords: Any field of the five descriptions, such as `epsilon`, `epochs`, `public_size`,
            `clip_norm`, `learning_rate`, `folder`, `account`.

    Returns:
        The run: the model, its guarantee, its metrics and its statement.

    Raises:
        InvalidParameterError: If a setting is missing, unknown or out of range. Nothing is spent.
        BudgetExceededError: If the account cannot pay for the run. Nothing is spent.

    >>> import torch
    >>> data = torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64)
    >>> run = train(nn.Linear(2, 2), data, public_size=100, epsilon=2, delta=1e-5, epochs=1)
    >>> print(run.guarantee)
    (2, 1e-05)-differential privacy for one example, add-remove neighbors
    """
    described = describe(
        keywords,
        privacy=privacy,
        optimization=optimization,
        evaluation=evaluation,
        storage=storage,
        charge=charge,
    )
    trainer = Trainer(
        model,
        data,
        privacy=_continued(described, model, runtime) if resume else described.privacy,
        optimization=described.optimization,
        evaluation=described.evaluation,
        storage=described.storage,
        charge=described.charge,
        audit=audit,
        runtime=runtime,
        generator=generator,
    )
    return trainer.fit(resume=resume)


def _continued(run: RunDescription, model: nn.Module, runtime: Runtime | None) -> Privacy:
    """Return what a resumed run claims: the noise it began with, if it took what its account had left."""
    runtime = runtime if runtime is not None else Runtime()
    distributed.join(runtime.device_for(model), timeout=runtime.timeout)
    folder = run.storage.folder
    if folder is None:
        raise InvalidParameterError("there is nothing to resume without a folder: pass folder=...")
    return budget.resumed(
        run.privacy, lambda: distributed.first_decides(lambda: RunFolder(folder).load()["noise"])
    )
