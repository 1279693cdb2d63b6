# SPDX-License-Identifier: Apache-2.0
"""What `sfumato train DATA --private labels` does: features are public, labels are learned from with noise.

Order      Everything that can be wrong with settings and files is found before the run is paid for.
Settings   Come from the recipe of the method (`labels.recipes`); a flag that the method does not know is
           refused, not passed over.
"""

from typing import Any

from sfumato import _check
from sfumato.accounting.default_delta import default_delta, delta_note
from sfumato.cli.settings import TrainSettings
from sfumato.cli.show import show_facts, show_text, waiting
from sfumato.datasets import Dataset, load
from sfumato.errors import InvalidParameterError
from sfumato.labels.choose import choose
from sfumato.labels.recipes import METHODS, LabelRecipe, recipe
from sfumato.labels.train import LabelRun, train
from sfumato.ledger import Account, Ledger
from sfumato.testing import seeded

__all__ = ["run"]

_KNOWN = frozenset({"data", "private", "method", "epsilon", "delta", "ledger", "account", "purpose", "seed"})


def run(settings: TrainSettings, *, as_json: bool) -> None:
    """Train by a method of label privacy, and show what came out."""
    _require_known(settings)
    with waiting("Loading"):
        data = load(str(settings.data))
    method, why = _method(settings, data)
    account = _account(settings)
    delta = _delta(settings, data, account)
    with waiting("Preparing public features"):
        made = recipe(data, method, epsilon=settings.epsilon or 0.0, delta=delta, seed=settings.seed)
    done = _trained(settings, data, made, account)
    _show(data, done, why, as_json=as_json)


def _require_known(settings: TrainSettings) -> None:
    unknown = sorted(set(settings.said()) - _KNOWN)
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


def _account(settings: TrainSettings) -> Account | None:
    if (settings.ledger is None) != (settings.account is None):
        raise InvalidParameterError("give both --ledger and --account to charge the run, or neither.")
    if settings.ledger is None or settings.account is None:
        return None
    return Ledger(settings.ledger, create=False).account(settings.account)


def _delta(settings: TrainSettings, data: Dataset, account: Account | None) -> float:
    if settings.delta is not None:
        return settings.delta
    return default_delta(data.public_size) if account is None else account.budget.delta


def _trained(settings: TrainSettings, data: Dataset, made: LabelRecipe, account: Account | None) -> LabelRun:
    purpose = settings.purpose or f"train on the labels of {data.name} by {made.method.name}"
    return train(
        made.model,
        made.features,
        data.train.labels,
        method=made.method,
        study=made.study,
        evaluation=(made.test_features, data.test.labels),
        account=account,
        purpose=purpose if account is not None else None,
        generator=None if settings.seed is None else seeded(settings.seed),
    )


def _show(data: Dataset, done: LabelRun, why: str | None, *, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "data": data.name,
        "method": done.method.name,
        "accuracy": None if done.accuracy is None else f"{done.accuracy:.1%}",
        "epsilon": done.guarantee.epsilon,
        "delta": done.guarantee.delta,
        "relation": done.guarantee.relation.value,
        "privacy_unit": done.guarantee.privacy_unit,
        "recorded": done.recorded,
        "account": done.account,
        "seconds": round(done.seconds, 1),
    }
    large = delta_note(done.guarantee.delta, data.public_size)
    if as_json:
        notes = [note for note in (done.record_note, done.study_note, large) if note is not None]
        told = {"accuracy": done.accuracy, "notes": notes, "statement": done.statement()}
        show_facts("", facts | told, as_json=True)
        return
    show_facts(str(done.guarantee), facts, as_json=False)
    show_text(f"\n{done.statement()}")
    if large is not None:
        show_text(f"\nNote: {large}.")
    if why is not None:
        show_text(f"\nThe method was chosen: {why}")
