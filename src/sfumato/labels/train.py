# SPDX-License-Identifier: Apache-2.0
"""Train a network on public features and secret labels, by any method, for one charge.

Guarantee  A run is one release: the method's event is charged before a label is read, and nothing of the
           labels is used but what the method releases. A failure from there on leaves it spent.
Order      Model, sizes and owners are checked first; all of it is public, and a refusal costs nothing.
Unit       A label, or with `owners` a user: all labels that one owner has.
Evaluation On data that is NOT protected: what is measured on it is shown exactly.
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.accounting import composition
from sfumato.accounting.guarantee import Guarantee
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.labels.checking import check_shape, checked_labels, checked_owners
from sfumato.labels.gradients import NoisyGradients
from sfumato.labels.learning import Augment, Released, check_model, learn, predictions, teacher
from sfumato.labels.methods import ReleasingMethod
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator, resolve, study_note
from sfumato.training import distributed
from sfumato.training.data import Deferred
from sfumato.training.run import TrainingRun
from sfumato.training.runtime import Runtime
from sfumato.training.trainer import Trainer

__all__ = ["LabelRun", "Method", "Study", "train"]

Method = ReleasingMethod | NoisyGradients
_LABELS = "label"  # the privacy unit, unless users own several
_ROWS = (_LABELS, "example", "row")  # units that have one label each


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """How a network learns from released labels: plain training, which costs nothing."""

    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 1e-3
    augment: Augment | None = None
    ema_decay: float | None = None
    seed: int = 0

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

    @property
    def epsilon(self) -> float:
        """The epsilon of the guarantee."""
        return self.guarantee.epsilon

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
            f"{self.study_note[0].upper()}{self.study_note[1:]}." if self.study_note else None,
        )
        return " ".join(sentence for sentence in said if sentence)


def train(
    model: nn.Module,
    features: Tensor,
    labels: Any,
    *,
    method: Method,
    study: Study | None = None,
    owners: Tensor | None = None,
    evaluation: tuple[Tensor, Tensor] | None = None,
    account: Account | None = None,
    purpose: str | None = None,
    folder: str | None = None,
    progress: bool = True,
    generator: Generator | None = None,
    runtime: Runtime | None = None,
) -> LabelRun:
    """Train a model, in place, so that the label of any one row could as well have been another.

    `study` is how a network learns from labels that a method releases; methods by noisy gradients have
    settings of their own. `owners` says which user owns each row, where users own several.

    >>> from sfumato.labels import RandomizedLabels
    >>> x = torch.randn(200, 4)
    >>> y = torch.randint(0, 3, (200,))
    >>> run = train(nn.Linear(4, 3), x, y, method=RandomizedLabels(epsilon=1.0, classes=3))
    >>> print(run.guarantee)
    (1, 0)-differential privacy for one label, replace-label neighbors
    """
    asked = _Asked(
        model=model,
        features=features,
        labels=labels,
        owners=owners,
        evaluation=evaluation,
        account=account,
        purpose=purpose,
        generator=generator,
    )
    asked.check(method)
    if isinstance(method, NoisyGradients):
        if study is not None:
            raise InvalidParameterError(
                f"{method.name} learns from noisy gradients, and has no use for study=...: its settings are "
                "those of the method."
            )
        return _by_gradients(asked, method, folder=folder, progress=progress, runtime=runtime)
    if distributed.size() > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidParameterError(
            f"{method.name} releases labels once, but every process that torchrun starts would do so again. "
            "Run it in one process."
        )
    if folder is not None:
        raise InvalidParameterError(
            f"{method.name} releases labels once, and has no checkpoints: leave folder=... out."
        )
    return _by_release(asked, method, study if study is not None else Study())


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What a run is about, whatever the method."""

    model: nn.Module
    features: Tensor
    labels: Any = field(repr=False)
    owners: Tensor | None
    evaluation: tuple[Tensor, Tensor] | None
    account: Account | None
    purpose: str | None
    generator: Generator | None

    def check(self, method: Method) -> None:
        """Refuse what cannot work; no label is looked at."""
        if not self.features.dim() or not len(self.features):
            raise InvalidParameterError("features must have one row for each example, and at least one row.")
        self._check_unit()
        check_shape(self.labels, rows=len(self.features))
        check_model(self.model, self.features, classes=method.classes)
        if (self.account is None) != (self.purpose is None):
            raise InvalidParameterError("an account and a purpose belong together: give both, or neither.")
        if self.owners is not None:
            checked_owners(self.owners, rows=len(self.features), contribution_bound=method.contribution_bound)
        elif method.contribution_bound != 1:
            raise InvalidParameterError(
                "contribution_bound is about users who own several labels: say whose they are with owners=..."
            )

    def _check_unit(self) -> None:
        if self.account is not None and self.owners is None and self.account.privacy_unit not in _ROWS:
            unit = self.account.privacy_unit
            raise InvalidParameterError(
                f"account {self.account.name!r} protects one {unit!r}, but nothing says whose the labels "
                f"are. Say owners=...: torch.arange({len(self.features)}) if each row is another {unit}."
            )

    @property
    def unit(self) -> str:
        """Who is protected."""
        if self.account is not None:
            return self.account.privacy_unit
        return _LABELS if self.owners is None else "user"

    def true_labels(self, method: Method) -> Tensor:
        """Return the labels: from here on the run is spent."""
        return checked_labels(self.labels, classes=method.classes, rows=len(self.features))

    def accuracy(self) -> float | None:
        """Return the share of evaluation rows that the model gets right."""
        if self.evaluation is None:
            return None
        features, labels = self.evaluation
        found = predictions(self.model, features).argmax(1)
        return float((found == labels.cpu()).double().mean())


def _by_release(asked: _Asked, method: ReleasingMethod, study: Study) -> LabelRun:
    began = time.monotonic()
    with _spent(asked, method):
        true = asked.true_labels(method)
        released = method.release(
            true, teach=teacher(asked.model, asked.features, study), generator=asked.generator
        )
        study(asked.model, asked.features, released)
    return LabelRun(
        model=asked.model,
        method=method,
        guarantee=_guarantee(method, asked.unit),
        seconds=time.monotonic() - began,
        accuracy=asked.accuracy(),
        study_note=study_note(asked.generator),
        account=None if asked.account is None else asked.account.name,
    )


def _guarantee(method: ReleasingMethod, unit: str) -> Guarantee:
    event, delta = method.event(), getattr(method, "delta", 0.0)  # most are pure
    epsilon = (
        composition.basic_epsilon(event, delta=0.0, relation=method.relation)
        if delta == 0
        else price(event, delta=delta, relation=method.relation).epsilon
    )
    return Guarantee(epsilon=epsilon, delta=delta, relation=method.relation, privacy_unit=unit)


def _spent(asked: _Asked, method: ReleasingMethod) -> AbstractContextManager[Any]:
    if asked.account is None or asked.purpose is None:
        return nullcontext()
    seeded = resolve(asked.generator).seeded
    return asked.account.spend(method, purpose=asked.purpose, seeded=seeded)


def _by_gradients(
    asked: _Asked,
    method: NoisyGradients,
    *,
    folder: str | None,
    progress: bool,
    runtime: Runtime | None,
) -> LabelRun:
    began = time.monotonic()
    run = Trainer(
        asked.model,
        _deferred(asked, lambda: asked.true_labels(method)),
        mechanism=method.mechanism(),
        public_size=method.public_size,
        contribution_bound=None if asked.owners is None else method.contribution_bound,
        optimizer=method.optimizer,
        ema_decay=method.ema_decay,
        denoiser=method.denoiser(asked.features),
        evaluation=asked.evaluation,
        delta=None if asked.account is not None else method.delta,
        privacy_unit=asked.unit,
        account=asked.account,
        purpose=asked.purpose,
        folder=folder,
        progress=progress,
        generator=asked.generator,
        runtime=runtime,
    ).fit()
    return LabelRun(
        model=asked.model,
        method=method,
        guarantee=run.guarantee,
        seconds=time.monotonic() - began,
        accuracy=run.accuracy,
        training=run,
        study_note=run.study_note,
        account=run.account,
    )


def _deferred(asked: _Asked, labels: Callable[[], Tensor]) -> Deferred:
    """Return rows whose labels are read once the run is paid for."""
    return Deferred(
        blank=(asked.features[:0], torch.zeros(0, dtype=torch.int64)),
        read=lambda: ((asked.features, labels()), asked.owners),
        by_owner=asked.owners is not None,
        public_units=len(asked.features if asked.owners is None else asked.owners.unique()),
    )
