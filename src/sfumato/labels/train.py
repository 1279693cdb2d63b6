# SPDX-License-Identifier: Apache-2.0
"""Train a network on public features and secret labels, by any method, for one charge.

Guarantee  A run is one release: the method's event is charged before a label is read, and nothing of the
           labels is used but what the method releases. A failure from there on leaves it spent.
Unit       A label, or with `owners` a user: all labels that one owner has.
Failure    Public settings are checked first (`request`), and a step is tried on a copy of the model, with
           features and no label: a refusal there costs nothing.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from sfumato.accounting import composition
from sfumato.accounting.guarantee import Guarantee
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.labels.input_checks import ArrayLike
from sfumato.labels.label_run import LabelRun
from sfumato.labels.learner import Learner
from sfumato.labels.learning import teacher
from sfumato.labels.methods.catalogue import require_method
from sfumato.labels.methods.noisy_gradients import NoisyGradients
from sfumato.labels.methods.released_labels import ReleasingMethod
from sfumato.labels.request import LabelRequest, Method, ask
from sfumato.ledger.account import Account
from sfumato.ledger.recorded import record_note
from sfumato.mechanisms.random import Generator, study_note
from sfumato.training import distributed
from sfumato.training.data.units import Deferred
from sfumato.training.description import (
    Charge,
    Evaluation,
    Optimization,
    Privacy,
    RunDescription,
    Storage,
    describe,
)
from sfumato.training.record.metrics import Score
from sfumato.training.record.run_folder import RunFolder
from sfumato.training.run import TrainingRun
from sfumato.training.run_audit import RunAudit, require_audit
from sfumato.training.runtime import Runtime
from sfumato.training.trainer import Trainer

__all__ = ["LabelKeywords", "require_steps", "train"]


class LabelKeywords(TypedDict, total=False):
    """The keywords of `train`: fields of `Evaluation`, `Storage` and `Charge`, and what else a run takes."""

    score: Score | None
    evaluate_every: int | None
    progress: bool
    folder: str | os.PathLike[str] | None
    checkpoint_every: int | None
    account: Account | None
    purpose: str | None
    resume: bool
    audit: RunAudit | None
    generator: Generator | None


def train(
    model: nn.Module,
    features: Tensor,
    labels: Any,
    *,
    method: Method,
    learner: Learner | None = None,
    owners: ArrayLike | None = None,
    evaluation: Evaluation | tuple[Tensor, ArrayLike] | None = None,
    storage: Storage | None = None,
    charge: Charge | None = None,
    runtime: Runtime | None = None,
    **keywords: Unpack[LabelKeywords],
) -> LabelRun:
    """Train a model, in place, so that its weights hide the label of any one row.

    Args:
        model: A torch module that returns one logit for each class.
        features: One row for each example. Features are public, and are not protected.
        labels: One whole number for each row, in a tensor or an array. Labels are secret.
        method: How labels are used: `AltConv`, `SelfConv`, `RandomizedLabels`, `ClusterLabels` and others.
        learner: How the model learns from labels that a method released once with noise. Methods by noisy
            gradients have their own settings instead.
        owners: For each row, who owns its label, if one user owns several.
        evaluation: Features and labels that are NOT protected, or an `Evaluation`.
        storage: Where checkpoints, metrics and weights are kept.
        charge: The account that pays, and the purpose.
        runtime: Device, engine and memory, for methods by noisy gradients.
        **keywords: Fields of these descriptions (`account`, `purpose`, `folder`, `checkpoint_every`,
            `evaluate_every`, `progress`), and `resume`, `audit` and `generator`, as in `sfumato.train`.

    Returns:
        The run: the model, its guarantee for labels and its statement.

    Raises:
        InvalidParameterError: If a setting is missing, unknown or out of range. Nothing is spent.
        BudgetExceededError: If the account cannot pay for the run. Nothing is spent.

    >>> from sfumato.labels import RandomizedLabels
    >>> x = torch.randn(200, 4)
    >>> y = torch.randint(0, 3, (200,))
    >>> run = train(nn.Linear(4, 3), x, y, method=RandomizedLabels(epsilon=1.0, classes=3))
    >>> print(run.guarantee)
    (1, 0)-differential privacy for one label, replace-label neighbors
    """
    resume, audit = keywords.pop("resume", False), keywords.pop("audit", None)
    generator = keywords.pop("generator", None)
    require_audit(audit)
    require_method(method)
    require_steps(method, resume=resume, audit=audit)
    if isinstance(method, NoisyGradients):
        _refuse_learner(method, learner)
        model.to((runtime or Runtime()).device_for(model))  # trying it out is as fast there as the run is
    else:
        _refuse_several(method, runtime)
    described = _described(keywords, evaluation=evaluation, storage=storage, charge=charge)
    request = ask(
        model,
        features,
        labels,
        method=method,
        owners=owners,
        evaluation=described.evaluation.data,
        charge=described.charge,
        generator=generator,
    )
    if isinstance(method, NoisyGradients):
        return _by_gradients(request, method, described, resume=resume, audit=audit, runtime=runtime)
    folder = described.storage.folder
    place = None if folder is None else RunFolder(folder)
    return _by_release(request, method, learner if learner is not None else Learner(), place)


def _described(keywords: Mapping[str, Any], **objects: Any) -> RunDescription:
    """Return what is evaluated, kept and charged; what a method decides itself is refused."""
    known = {name for name in LabelKeywords.__annotations__ if name not in ("resume", "audit", "generator")}
    unknown = sorted(set(keywords) - known)
    if unknown:
        raise InvalidParameterError(
            f"unknown keyword {unknown[0]!r}. Known are: {', '.join(sorted(known))}. Epsilon, batches and "
            "the optimizer are settings of the method."
        )
    return describe(keywords, **objects)


def _refuse_learner(method: NoisyGradients, learner: Learner | None) -> None:
    if learner is not None:
        raise InvalidParameterError(
            f"{method.name} learns from noisy gradients, and has no use for learner=...: its settings are "
            "those of the method."
        )


def require_steps(method: Method, *, resume: bool, audit: RunAudit | None) -> None:
    """Raise if a run of this method cannot be resumed or audited as asked: no label is needed to know."""
    if isinstance(method, NoisyGradients):
        if audit is not None and method.reveals_batches:
            raise InvalidParameterError(
                f"{method.name} projects on the features of a batch's own rows, and canaries have none: "
                "audit AltConv or DP-SGD."
            )
        return
    if resume:
        raise InvalidParameterError(
            f"{method.name} releases labels once, and has no checkpoints: it cannot be resumed. What a run "
            "that failed has spent stays spent."
        )
    if audit is not None:
        raise InvalidParameterError(
            f"canaries audit noisy gradients, which {method.name} has none of: leave audit=... out, and "
            "attack `method.release` with sfumato.audit.audit_mechanism."
        )


def _refuse_several(method: ReleasingMethod, runtime: Runtime | None) -> None:
    """Refuse what only methods by noisy gradients have: several processes, and another device."""
    if distributed.size() > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidParameterError(
            f"{method.name} releases labels once, but every process that torchrun starts would do so again. "
            "Run it in one process."
        )
    if runtime is not None:
        raise InvalidParameterError(
            f"runtime=... is how noisy gradients are computed, which {method.name} has none of: leave it "
            "out. It trains where the model is."
        )


def _by_release(
    request: LabelRequest, method: ReleasingMethod, learner: Learner, folder: RunFolder | None
) -> LabelRun:
    lessons = method.lessons(len(request.features))
    learner.rehearse(request.model, request.features, classes=method.classes, lessons=lessons)
    guarantee = _guarantee(method, request.unit)  # what cannot be priced is refused before anything is paid
    with nullcontext() if folder is None else folder.taken(resume=False):
        with _spent(request, method):
            true = request.true_labels(method)
            released = method.release(
                true, teach=teacher(request.model, request.features, learner), generator=request.generator
            )
            learner(request.model, request.features, released)
        run = LabelRun(
            model=request.model,
            method=method,
            guarantee=guarantee,
            accuracy=request.accuracy(),
            study_note=study_note(request.generator),
            account=None if request.account is None else request.account.name,
            record_note=record_note(request.account),
        )
        if folder is not None:
            folder.finish(run.model.state_dict())
            folder.write_report(run.to_json())
    return run


def _guarantee(method: ReleasingMethod, unit: str) -> Guarantee:
    event, delta = method.event(), getattr(method, "delta", 0.0)  # most are pure
    epsilon = (
        composition.basic_epsilon(event, delta=0.0, relation=method.relation)
        if delta == 0
        else price(event, delta=delta, relation=method.relation).epsilon
    )
    return Guarantee(epsilon=epsilon, delta=delta, relation=method.relation, privacy_unit=unit)


def _spent(request: LabelRequest, method: ReleasingMethod) -> AbstractContextManager[Any]:
    account, purpose = request.charge.account, request.charge.purpose
    if account is None or purpose is None:
        return nullcontext()
    return account.spend(method, purpose=purpose, generator=request.generator)


def _by_gradients(
    request: LabelRequest,
    method: NoisyGradients,
    described: RunDescription,
    *,
    resume: bool,
    audit: RunAudit | None,
    runtime: Runtime | None,
) -> LabelRun:
    method.rehearse(request.model, request.features)

    def labeled(run: TrainingRun) -> LabelRun:
        return LabelRun(
            model=request.model,
            method=method,
            guarantee=run.guarantee,
            accuracy=run.accuracy,
            training=run,
            study_note=run.study_note,
            account=run.account,
            record_note=run.record_note,
        )

    trainer = Trainer(
        request.model,
        _deferred(request, lambda: request.true_labels(method)),
        privacy=Privacy(
            mechanism=method.mechanism(),
            public_size=method.public_size,
            delta=method.delta,
            privacy_unit=request.unit,
            contribution_bound=None if request.owners is None else method.contribution_bound,
        ),
        optimization=Optimization(
            optimizer=method.optimizer,
            schedule=method.schedule if method.falling_rate else None,
            ema_decay=method.ema_decay,
            denoiser=method.denoiser(request.features),
        ),
        evaluation=replace(described.evaluation, data=request.evaluation),
        storage=described.storage,
        charge=described.charge,
        audit=audit,
        runtime=runtime,
        generator=request.generator,
    )
    # What a trainer writes by itself does not say that features are public.
    return labeled(trainer.fit(resume=resume, record=lambda run: labeled(run).to_json()))


def _deferred(request: LabelRequest, labels: Callable[[], Tensor]) -> Deferred:
    """Return rows whose labels are read once the run is paid for."""
    return Deferred(
        blank=(request.features[:0], torch.zeros(0, dtype=torch.int64)),
        read=lambda: ((request.features, labels()), request.owners),
        by_owner=request.owners is not None,
        public_units=request.units,
    )
