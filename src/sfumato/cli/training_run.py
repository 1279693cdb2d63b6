# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato train`: from settings to a trained model, its statement and its page.

Settings and files are checked before the run is charged (`before_run`). Runs with secret labels continue in
`label_run`.
"""

import json
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sfumato import _check
from sfumato.audit.runs.canaries import Canaries
from sfumato.cli import label_run
from sfumato.cli.after_run import Outcome, show, write_page
from sfumato.cli.before_run import account_of, begin, merged, with_delta
from sfumato.cli.devices import device_named
from sfumato.cli.own_data import OwnData, open_own, refuse_own
from sfumato.cli.project.defaults import in_environment, in_project
from sfumato.cli.settings import TrainSettings
from sfumato.cli.show import waiting
from sfumato.datasets import Dataset, load
from sfumato.errors import InvalidParameterError
from sfumato.ledger import Account
from sfumato.testing import seeded
from sfumato.training import (
    Charge,
    Clipping,
    Evaluation,
    Optimization,
    Privacy,
    Runtime,
    Storage,
    TrainingRun,
    correct_rows,
    cross_entropy,
    train,
)
from sfumato.training.models.networks import loss_for, model_for, score_for
from sfumato.training.random_state import same_draws

__all__ = ["run"]


def run(given: TrainSettings, *, config: str | None, resume: bool, as_json: bool) -> None:
    """Train as the flags, the file and the defaults say, and show the result."""
    asked = merged(given, config=config, resume=resume)
    if _only_labels(asked):
        label_run.run(in_environment(asked), resume=resume, as_json=as_json)
        return
    if not asked.is_own:
        refuse_own(asked)
    if not resume:
        asked = in_project(asked)
    settings = asked.completed()
    with waiting("Loading"):
        data = open_own(settings) if settings.is_own else load(str(settings.data))
    account = _account(settings)
    settings = with_delta(settings, data, account)
    model = _model(settings, data)
    begin(settings, resume=resume)
    done = _train(settings, data, model, account, resume=resume)
    outcome = Outcome.of(done, done, settings=settings, data=data, name=str(settings.model))
    write_page(outcome, account)
    told = {"data": data.name, "settings": settings.given(), "accuracy": done.accuracy}
    chosen = given.delta is None and account is None
    remarks = [_chosen_delta(done.price.delta, data)] if chosen else []
    show(outcome, told | json.loads(done.to_json()), as_json=as_json, remarks=remarks)


# --- before the run --------------------------------------------------------------------------------------


def _only_labels(settings: TrainSettings) -> bool:
    if settings.private not in (None, "rows", "labels"):
        raise InvalidParameterError(
            f"--private is about what is secret: rows or labels, but {settings.private!r} was given."
        )
    if settings.method is not None and settings.private != "labels":
        raise InvalidParameterError("--method is one of label privacy: pass --private labels, too.")
    return settings.private == "labels"


def _account(settings: TrainSettings) -> Account | None:
    account = account_of(settings)
    if account is None and settings.epsilon is None and settings.noise_multiplier is None:
        raise InvalidParameterError(
            "pass how private the run must be: --epsilon, or --noise-multiplier, or --ledger and "
            "--account to spend what an account has left."
        )
    return account


def _model(settings: TrainSettings, data: Dataset | OwnData) -> nn.Module:
    """Build the model; from a seed its first weights are the same each time."""
    name, width = str(settings.model), settings.width or 1

    def build() -> nn.Module:
        return (
            data.model(name, width=width) if isinstance(data, OwnData) else model_for(data, name, width=width)
        )

    if settings.seed is None:
        return build()
    with same_draws(seed=settings.seed):
        return build()


# --- the run ---------------------------------------------------------------------------------------------


def _train(
    settings: TrainSettings,
    data: Dataset | OwnData,
    model: nn.Module,
    account: Account | None,
    *,
    resume: bool,
) -> TrainingRun:
    own = isinstance(data, OwnData)
    by_owner = data.by_owner if own else data.train.user_ids is not None
    purpose = settings.purpose or f"train {settings.model} on {settings.data}"
    return train(
        model,
        data.rows if own else data,
        privacy=Privacy(
            epsilon=settings.epsilon,
            delta=settings.delta,
            noise_multiplier=settings.noise_multiplier,
            epochs=settings.epochs,
            steps=settings.steps,
            expected_batch_size=settings.expected_batch_size,
            public_size=data.public_size,
            clipping=Clipping(clip_norm=settings.clip_norm, per_layer=bool(settings.per_layer)),
            relation=settings.relation,
            contribution_bound=(settings.contribution_bound or 1) if by_owner else None,
            privacy_unit=data.privacy_unit,
        ),
        optimization=Optimization(
            loss=cross_entropy if own else loss_for(data),
            optimizer=_optimizer(settings),
            ema_decay=settings.ema_decay,
        ),
        evaluation=Evaluation(
            data=data.evaluation if own else data.test,
            score=correct_rows if own else score_for(data),
            evaluate_every=settings.evaluate_every,
        ),
        storage=Storage(folder=settings.folder, checkpoint_every=settings.checkpoint_every),
        charge=Charge(account=account, purpose=purpose if account is not None else None),
        audit=None if settings.audit is None else Canaries(count=settings.audit),
        runtime=_runtime(settings),
        generator=None if settings.seed is None else seeded(settings.seed),
        resume=resume,
    )


def _optimizer(settings: TrainSettings) -> Any:
    rate, momentum = settings.learning_rate or 0.0, settings.momentum or 0.0
    _check.positive(learning_rate=rate)
    _check.in_range(0, 1, momentum=momentum)

    def sgd(parameters: list[nn.Parameter]) -> Optimizer:
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum)

    def adam(parameters: list[nn.Parameter]) -> Optimizer:
        return torch.optim.Adam(parameters, lr=rate)

    makers = {"sgd": sgd, "adam": adam}
    if settings.optimizer not in makers:
        raise InvalidParameterError(
            f"unknown optimizer {settings.optimizer!r}. Use one of: {', '.join(makers)}."
        )
    return makers[settings.optimizer]


def _runtime(settings: TrainSettings) -> Runtime:
    engine: dict[str, Any] = {} if settings.engine is None else {"engine": settings.engine}
    return Runtime(device=device_named(settings.device), microbatch_size=settings.microbatch_size, **engine)


def _chosen_delta(delta: float, data: Dataset | OwnData) -> str:
    return (
        f"Delta was not given: {delta:g} is the largest power of ten below one over the public size, "
        f"{data.public_size}."
    )
