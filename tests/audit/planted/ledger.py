# SPDX-License-Identifier: Apache-2.0
"""Bugs of the order of payment and data, and of budgets, checked on a ledger of their own."""

import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import Budget, Ledger
from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.audit.mechanisms.payment_order import check_never_exceeds, check_paid_first, check_stays_spent
from sfumato.errors import BudgetExceededError, QueryFailedError
from sfumato.estimators import LogisticRegression
from sfumato.estimators.base import PrivateEstimator
from sfumato.ledger import filters
from sfumato.ledger.account import Account
from sfumato.ledger.state import AccountState, Progress
from sfumato.statistics import mean
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.query import Query
from sfumato.testing import seeded
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling, Trainer
from sfumato.training.data.units import Deferred, Units

from .catalogue import Planted, leaks

__all__ = ["BUGS"]

RICH = Budget(epsilon=100.0, delta=1e-5)
POOR = Budget(epsilon=0.01, delta=1e-5)
PURE = Budget(epsilon=1.0, delta=0.0)
Check = Callable[[Account], object]


def on_account(check: Check, *budgets: Budget) -> bool:
    """Run a check on a fresh account for each budget: does one of them show a leak?"""
    with tempfile.TemporaryDirectory() as folder:
        accounts = (
            Ledger(Path(folder) / f"{place}.db").open("data", privacy_unit="row", budget=budget)
            for place, budget in enumerate(budgets)
        )
        return any(leaks(lambda one=one: check(one)) for one in accounts)


# --- statistics -------------------------------------------------------------------------------------------


def asked(seed: int) -> Callable[[Any, Account], object]:
    def release(data: Any, account: Account) -> object:
        return mean(data, bounds=(0, 1), epsilon=0.5, account=account, generator=seeded(seed))

    return release


def question_pays_first(seed: int) -> bool:
    return on_account(lambda one: check_paid_first(asked(seed), column_of([0.2, 0.7]), one), RICH, POOR)


def question_stays_spent(seed: int) -> bool:
    return on_account(lambda one: check_stays_spent(asked(seed), column_of([0.2, 0.7]), one), RICH)


def compute_then_reserve(patch: pytest.MonkeyPatch) -> None:
    original = Query.release

    def release(self, *, account=None, purpose=None, generator=None):
        found = original(self, generator=generator)
        if account is not None:
            with account.spend(self.question, purpose=purpose or self.question.name):
                pass
        return found

    patch.setattr(Query, "release", release)


def refund_on_failure(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def spend(self, what, **said):
        reservation = self.reserve(what, **said)
        try:
            yield reservation
        except Exception:
            reservation.refund()  # "nothing was released"
            raise
        reservation.begin()
        reservation.commit()

    patch.setattr(Account, "spend", spend)


# --- estimators and training ------------------------------------------------------------------------------


def fit_pays_first(seed: int) -> bool:
    def release(data: Any, account: Account) -> object:
        model = LogisticRegression(
            epsilon=1.0, clip_norm=1.0, classes=(0, 1), account=account, random_state=seed
        )
        return model.fit(data, np.array([0, 1, 1]))

    rows = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    return on_account(
        lambda one: check_paid_first(release, rows, one, public=("shape", "columns")), RICH, POOR
    )


def look_before_paying(patch: pytest.MonkeyPatch) -> None:
    original = PrivateEstimator.fit

    def fit(self, X, y=None):
        if np.isnan(np.asarray(X, dtype=float)).any():
            raise QueryFailedError("X has missing values.")  # "before anything is spent"
        return original(self, X, y)

    patch.setattr(PrivateEstimator, "fit", fit)


def training_pays_first(seed: int) -> bool:
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=0.5),
        noise=[(4.0, 2)],
        relation=Relation.ADD_REMOVE,
    )

    def release(read: Any, account: Account) -> object:
        rows = Deferred(blank=(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)), read=read)
        settings = {"mechanism": mechanism, "public_size": 4, "learning_rate": 0.1, "progress": False}
        return Trainer(
            nn.Linear(2, 2), rows, **settings, account=account, purpose="audit", generator=seeded(seed)
        ).fit()

    def read() -> Any:
        return (torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)), None

    return on_account(lambda one: check_paid_first(release, read, one), RICH, POOR)


def read_at_once(patch: pytest.MonkeyPatch) -> None:
    original = Units.__init__

    def __init__(self, data, **settings):
        original(self, data, **settings)
        self.open()  # fail early

    patch.setattr(Units, "__init__", __init__)


# --- budgets ----------------------------------------------------------------------------------------------


def budget_holds(seed: int) -> bool:
    event = PureDpEvent(0.15 + 0.01 * (seed % 10))
    return on_account(lambda one: check_never_exceeds(one, event, relation="add-remove", most=40), PURE)


def admit_each_alone(patch: pytest.MonkeyPatch) -> None:
    def total(costs):
        return list(costs)[-1]  # the release at hand

    patch.setattr(filters, "total", total)


def count_what_was_committed(patch: pytest.MonkeyPatch) -> None:
    def spent(self):
        done = [one for one in self.releases.values() if one.progress is Progress.COMMITTED]
        return filters.total([self._cost_of(one) for one in done])

    patch.setattr(AccountState, "spent", spent)


def overdraw_with_the_last(patch: pytest.MonkeyPatch) -> None:
    original = Account.reserve

    def reserve(self, what, **said):
        try:
            return original(self, what, **said)
        except BudgetExceededError:
            if self.remaining().fraction > 0:  # a little too much is better than leaving some unused
                with pytest.MonkeyPatch.context() as lenient:
                    lenient.setattr(filters.Filter, "admits", lambda self, spent: True)
                    return original(self, what, **said)
            raise

    patch.setattr(Account, "reserve", reserve)


BUGS = (
    Planted(
        name="computed-before-it-was-reserved",
        bug="a question is answered first and charged afterwards",
        found_by="order of payment",
        plant=compute_then_reserve,
        audit=question_pays_first,
    ),
    Planted(
        name="refunded-after-a-failed-read",
        bug="a release that fails after data was read is given back",
        found_by="order of payment",
        plant=refund_on_failure,
        audit=question_stays_spent,
    ),
    Planted(
        name="looked-at-before-it-was-paid-for",
        bug="an estimator looks for missing values before it pays",
        found_by="order of payment",
        plant=look_before_paying,
        audit=fit_pays_first,
    ),
    Planted(
        name="deferred-rows-read-at-once",
        bug="a training run reads its rows when it is made, and pays when it is started",
        found_by="order of payment",
        plant=read_at_once,
        audit=training_pays_first,
    ),
    Planted(
        name="each-release-admitted-alone",
        bug="a release is admitted if it alone is within the budget",
        found_by="budget count",
        plant=admit_each_alone,
        audit=budget_holds,
    ),
    Planted(
        name="only-what-was-committed-counts",
        bug="releases that were reserved or begun, and never finished, cost nothing",
        found_by="budget count",
        plant=count_what_was_committed,
        audit=budget_holds,
    ),
    Planted(
        name="overdraft-by-the-last-release",
        bug="the last release may exceed what is left of the budget",
        found_by="budget count",
        plant=overdraw_with_the_last,
        audit=budget_holds,
    ),
)
