# SPDX-License-Identifier: Apache-2.0
"""Train a network on public features and secret labels, by any method, for one charge.

Guarantee  A run is one release: the method's event is charged before a label is read, and nothing of the
           labels is used but what the method releases. A failure from there on leaves it spent.
Order      What is public is checked first (`asking`), and a step is rehearsed on a copy of the model, with
           features but no label, on as few rows as any step of the run will have: a refusal costs nothing.
Unit       A label, or with `owners` a user: all labels that one owner has.
Evaluation On data that is NOT protected: what is measured on it is shown exactly.
"""

import copy
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting import composition, events
from sfumato.accounting.guarantee import Guarantee
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.labels.input_checks import Given
from sfumato.labels.learning import Augment, Released, learn, rehearsing, soft_cross_entropy, teacher
from sfumato.labels.methods.catalogue import require_method
from sfumato.labels.methods.noisy_gradients import NoisyGradients
from sfumato.labels.methods.released_labels import ReleasingMethod
from sfumato.labels.request import LabelRequest, Method, ask
from sfumato.ledger.account import Account
from sfumato.ledger.recorded import record_note
from sfumato.mechanisms.random import Generator, study_note
from sfumato.training import distributed
from sfumato.training.data.units import Deferred
from sfumato.training.record import fingerprints
from sfumato.training.record.run_folder import RunFolder
from sfumato.training.run import TrainingRun, sentence
from sfumato.training.run_audit import RunAudit, require_audit
from sfumato.training.runtime import Runtime
from sfumato.training.trainer import Trainer

__all__ = ["LabelRun", "Learner", "Method", "require_steps", "train"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Learner:
    """How a network learns from released labels: plain training, which costs nothing."""

    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 1e-3
    augment: Augment | None = None
    ema_decay: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check.count(epochs=self.epochs, batch_size=self.batch_size)
        _check.positive(learning_rate=self.learning_rate)
        _check.non_negative(seed=self.seed)
        if self.ema_decay is not None:
            _check.probability(ema_decay=self.ema_decay)

    def __call__(self, model: nn.Module, features: Tensor, released: Released) -> None:
        """Train a model on features and released targets, in place."""
        learn(
            model,
            features,
            released.targets,
            loss=released.loss,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            augment=self.augment,
            ema_decay=self.ema_decay,
            seed=self.seed,
        )

    def rehearse(
        self, model: nn.Module, features: Tensor, *, classes: int, lessons: Sequence[int] | None = None
    ) -> None:
        """Train a copy of the model for one step, with even targets: what cannot work raises.

        The step has the smallest batch of all `lessons`: the numbers of rows that are learned from, one for
        each training (all rows, once, where nothing is said).
        """
        sizes = [len(features)] if lessons is None else lessons
        smallest = min(
            rows // math.ceil(rows / self.batch_size) for rows in sizes
        )  # as `learn` cuts an epoch
        even = torch.full((smallest, classes), 1 / classes)
        with rehearsing("training"):
            once = replace(self, epochs=1)
            once(copy.deepcopy(model), features[:smallest], Released(targets=even, loss=soft_cross_entropy))


@dataclass(frozen=True, kw_only=True)
class LabelRun:
    """A trained model with its guarantee for labels; `print(run.statement())` says what was done."""

    model: nn.Module
    method: Method
    guarantee: Guarantee
    seconds: float
    accuracy: float | None  # on evaluation data, which is not protected
    training: TrainingRun | None = None  # of a method that works by noisy gradients
    study_note: str | None = None
    account: str | None = None
    record_note: str | None = None  # what must be said of a run that no ledger keeps

    @property
    def recorded(self) -> bool:
        """Whether a ledger keeps the run."""
        return self.account is not None and self.record_note is None

    @property
    def epsilon(self) -> float:
        """The epsilon of the guarantee."""
        return self.guarantee.epsilon

    def to_json(self) -> str:
        """Return everything but the model as JSON."""
        own: dict[str, Any] = {
            "method": self.method.name,
            "accuracy": self.accuracy,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "relation": self.guarantee.relation.value,
            "privacy_unit": self.guarantee.privacy_unit,
            "seconds": self.seconds,
            "study_note": self.study_note,
            "recorded": self.recorded,
            "account": self.account,
            "statement": self.statement(),
        }
        told: dict[str, Any] = (
            self._released() if self.training is None else json.loads(self.training.to_json())
        )
        return json.dumps(fingerprints.sealed(told | own), indent=2)

    def _released(self) -> dict[str, Any]:
        """Return what a run says that has no training of its own."""
        return {
            "event": json.loads(events.to_json(self.method.event())),
            "code_version": version("sfumato"),
            "weights": fingerprints.fingerprint_of(self.model.state_dict()),
        }

    def statement(self) -> str:
        """Return a paragraph for people who must judge the claim."""
        if self.training is not None:
            return f"{self.training.statement()} Features are public, and are not protected at all."
        said = (
            f"Labels were released once with noise, by the method {self.method.name!r}, and the model was "
            "trained on what was released.",
            f"The releases satisfy {self.guarantee}. Features are public, and are not protected at all.",
            "It covers this run alone: hyper-parameter tuning is not charged.",
            f"The run was charged to account {self.account!r}." if self.account else None,
            sentence(self.record_note),
            sentence(self.study_note),
        )
        return " ".join(sentence for sentence in said if sentence)


def train(
    model: nn.Module,
    features: Tensor,
    labels: Any,
    *,
    method: Method,
    learner: Learner | None = None,
    owners: Given | None = None,
    evaluation: tuple[Tensor, Given] | None = None,
    account: Account | None = None,
    purpose: str | None = None,
    folder: str | None = None,
    resume: bool = False,
    audit: RunAudit | None = None,
    progress: bool = True,
    generator: Generator | None = None,
    runtime: Runtime | None = None,
) -> LabelRun:
    """Train a model, in place, so that the label of any one row could as well have been another.

    `learner` is how a network learns from labels that a method releases. Methods by noisy gradients have
    settings of their own; `resume`, `audit` and `runtime` are for these, as in `training.train`. A `folder`
    keeps weights and statement of any run, and checkpoints of these. `owners` says which user owns each row,
    where users own several.

    >>> from sfumato.labels import RandomizedLabels
    >>> x = torch.randn(200, 4)
    >>> y = torch.randint(0, 3, (200,))
    >>> run = train(nn.Linear(4, 3), x, y, method=RandomizedLabels(epsilon=1.0, classes=3))
    >>> print(run.guarantee)
    (1, 0)-differential privacy for one label, replace-label neighbors
    """
    require_audit(audit)
    require_method(method)
    require_steps(method, resume=resume, audit=audit)
    if isinstance(method, NoisyGradients):
        _refuse_learner(method, learner)
        model.to((runtime or Runtime()).device_for(model))  # trying it out is as fast there as the run is
    else:
        _refuse_several(method, runtime)
    asked = ask(
        model,
        features,
        labels,
        method=method,
        owners=owners,
        evaluation=evaluation,
        account=account,
        purpose=purpose,
        generator=generator,
    )
    if isinstance(method, NoisyGradients):
        return _by_gradients(
            asked, method, folder=folder, resume=resume, audit=audit, progress=progress, runtime=runtime
        )
    place = None if folder is None else RunFolder(folder)
    return _by_release(asked, method, learner if learner is not None else Learner(), place)


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
    asked: LabelRequest, method: ReleasingMethod, learner: Learner, folder: RunFolder | None
) -> LabelRun:
    began = time.monotonic()
    lessons = method.lessons(len(asked.features))
    learner.rehearse(asked.model, asked.features, classes=method.classes, lessons=lessons)
    guarantee = _guarantee(method, asked.unit)  # what cannot be priced is refused before anything is paid
    with nullcontext() if folder is None else folder.taken(resume=False):
        with _spent(asked, method):
            true = asked.true_labels(method)
            released = method.release(
                true, teach=teacher(asked.model, asked.features, learner), generator=asked.generator
            )
            learner(asked.model, asked.features, released)
        run = LabelRun(
            model=asked.model,
            method=method,
            guarantee=guarantee,
            seconds=time.monotonic() - began,
            accuracy=asked.accuracy(),
            study_note=study_note(asked.generator),
            account=None if asked.account is None else asked.account.name,
            record_note=record_note(asked.account),
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


def _spent(asked: LabelRequest, method: ReleasingMethod) -> AbstractContextManager[Any]:
    if asked.account is None or asked.purpose is None:
        return nullcontext()
    return asked.account.spend(method, purpose=asked.purpose, generator=asked.generator)


def _by_gradients(
    asked: LabelRequest,
    method: NoisyGradients,
    *,
    folder: str | None,
    resume: bool,
    audit: RunAudit | None,
    progress: bool,
    runtime: Runtime | None,
) -> LabelRun:
    began = time.monotonic()
    method.rehearse(asked.model, asked.features)
    prepared = time.monotonic() - began

    def labeled(run: TrainingRun) -> LabelRun:
        return LabelRun(
            model=asked.model,
            method=method,
            guarantee=run.guarantee,
            seconds=prepared + run.seconds,
            accuracy=run.accuracy,
            training=run,
            study_note=run.study_note,
            account=run.account,
            record_note=run.record_note,
        )

    trainer = Trainer(
        asked.model,
        _deferred(asked, lambda: asked.true_labels(method)),
        mechanism=method.mechanism(),
        public_size=method.public_size,
        contribution_bound=None if asked.owners is None else method.contribution_bound,
        optimizer=method.optimizer,
        schedule=method.schedule if method.falling_rate else None,
        ema_decay=method.ema_decay,
        denoiser=method.denoiser(asked.features),
        audit=audit,
        evaluation=asked.evaluation,
        delta=method.delta,
        privacy_unit=asked.unit,
        account=asked.account,
        purpose=asked.purpose,
        folder=folder,
        progress=progress,
        generator=asked.generator,
        runtime=runtime,
    )
    # What a trainer writes by itself does not say that features are public.
    return labeled(trainer.fit(resume=resume, record=lambda run: labeled(run).to_json()))


def _deferred(asked: LabelRequest, labels: Callable[[], Tensor]) -> Deferred:
    """Return rows whose labels are read once the run is paid for."""
    return Deferred(
        blank=(asked.features[:0], torch.zeros(0, dtype=torch.int64)),
        read=lambda: ((asked.features, labels()), asked.owners),
        by_owner=asked.owners is not None,
        public_units=asked.units,
    )
