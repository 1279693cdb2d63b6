# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato train DATA --private labels`: features are public, and labels are secret.

Settings come from the recipe of the method (`labels.recipes`). Every method keeps weights and statement in a
folder; methods by noisy gradients also keep checkpoints and can be audited.

Failure    Settings and files are checked before the run is charged (`before_run`). A flag that the method
           does not have is refused, not ignored.
"""

import json
from dataclasses import replace

from sfumato import _check
from sfumato.audit.runs.canaries import Canaries
from sfumato.cli.after_run import Outcome, show, write_page
from sfumato.cli.before_run import account_of, begin, with_delta
from sfumato.cli.settings import TrainSettings
from sfumato.cli.show import waiting
from sfumato.datasets import Dataset, load
from sfumato.errors import InvalidParameterError
from sfumato.labels.choose import choose
from sfumato.labels.label_run import LabelRun
from sfumato.labels.recipes import METHODS, LabelRecipe, recipe
from sfumato.labels.train import require_steps, train
from sfumato.ledger import Account
from sfumato.testing import seeded

__all__ = ["run"]

_KNOWN = frozenset(
    {"data", "private", "method", "epsilon", "delta", "ledger", "account", "purpose", "seed"}
    | {"audit", "folder", "report"}
)


def run(settings: TrainSettings, *, resume: bool, as_json: bool) -> None:
    """Train by a method of label privacy, and show what came out."""
    _require_known(settings)
    with waiting("Loading"):
        data = load(str(settings.data))
    method, why = _method(settings, data)
    account = account_of(settings)
    settings = with_delta(replace(settings, method=method), data, account)
    with waiting("Preparing public features"):
        made = recipe(
            data,
            method,
            epsilon=settings.epsilon or 0.0,
            delta=settings.delta or 0.0,
            seed=settings.seed,
        )
    audit = None if settings.audit is None else Canaries(count=settings.audit)
    require_steps(made.method, resume=resume, audit=audit)
    begin(settings, resume=resume)
    done = _trained(settings, data, made, account, audit=audit, resume=resume)
    outcome = Outcome.of(done, done.training, settings=settings, data=data, name=done.method.name)
    write_page(outcome, account)
    told = {"data": data.name, "settings": settings.given()} | json.loads(done.to_json())
    remarks = [] if why is None else [f"The method was chosen: {why}"]
    show(outcome, told, as_json=as_json, remarks=remarks)


def _require_known(settings: TrainSettings) -> None:
    unknown = sorted(set(settings.given()) - _KNOWN)
    if unknown:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unknown)
        raise InvalidParameterError(
            f"{names} is not for --private labels, whose settings come from the recipe of the method. Leave "
            "it out, or use sfumato.labels in Python."
        )
    if settings.data is None or settings.epsilon is None:
        raise InvalidParameterError(
            "say what to learn, and how private it must be: `sfumato train mnist --private labels --epsilon "
            "1`."
        )
    _check.positive(epsilon=settings.epsilon)
    if settings.delta is not None:
        _check.delta(delta=settings.delta)


def _method(settings: TrainSettings, data: Dataset) -> tuple[str, str | None]:
    """Return the method, and why it was chosen where nobody named one."""
    if settings.method is not None:
        if settings.method not in METHODS:
            raise InvalidParameterError(
                f"unknown method {settings.method!r}. Use one of: {', '.join(METHODS)}."
            )
        return settings.method, None
    choice = choose(settings.epsilon or 0.0, data.num_classes, data.public_size)
    return choice.method, choice.why


def _trained(
    settings: TrainSettings,
    data: Dataset,
    made: LabelRecipe,
    account: Account | None,
    *,
    audit: Canaries | None,
    resume: bool,
) -> LabelRun:
    purpose = settings.purpose or f"train on the labels of {data.name} by {made.method.name}"
    return train(
        made.model,
        made.features,
        data.train.labels,
        method=made.method,
        learner=made.learner,
        evaluation=(made.test_features, data.test.labels),
        account=account,
        purpose=purpose if account is not None else None,
        folder=settings.folder,
        resume=resume,
        audit=audit,
        generator=None if settings.seed is None else seeded(settings.seed),
    )
