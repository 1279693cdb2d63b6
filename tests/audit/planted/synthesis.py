# SPDX-License-Identifier: Apache-2.0
"""Bugs of synthetic tables, of how images are read, and of the release that tells of copies."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attacks.generator_replays import replay_fit
from sfumato.audit.mechanisms.payment_order import check_paid_first
from sfumato.audit.mechanisms.replay import replay
from sfumato.errors import InvalidParameterError
from sfumato.generative import Category, Domain, NoisyMarginals
from sfumato.generative.evaluation import copy_test, memorization
from sfumato.generative.evaluation.distances import grid_rows, nearest_on_grid
from sfumato.generative.evaluation.memorization import TrainingRows
from sfumato.generative.images import image_rows
from sfumato.generative.tables import adaptive_rounds, noisy_marginals
from sfumato.generative.tables.bought_domain import DomainPurchase
from sfumato.generative.tables.count_noise import CountNoise, NoiseBudget
from sfumato.ledger.account import Account
from sfumato.statistics.query import Query
from sfumato.testing import seeded

from .catalogue import Planted, leaks
from .generators import replay_of
from .ledger import POOR, RICH, on_account

__all__ = ["BUGS"]

MARGINALS = replay_of("NoisyMarginals", "an odd row")
LABELS = replay_of("NoisyMixtures", "no class")


# --- images and tables ------------------------------------------------------------------------------------


def refuse_a_label_that_is_no_class(patch: pytest.MonkeyPatch) -> None:
    original = image_rows._checked_labels

    def checked(labels, images, *, classes):
        found = original(labels, images, classes=classes)
        if bool((found < 0).any()):
            raise InvalidParameterError("labels must be class numbers.")
        return found

    patch.setattr(image_rows, "_checked_labels", checked)


def all_of_the_noise_budget_each_time(patch: pytest.MonkeyPatch) -> None:
    """Take the noise of the whole budget for every marginal: "they are of different columns"."""

    def noise(self, share):
        self._shifts.append(share * self._whole)
        return CountNoise(stddev=self._sensitivity / self._whole**0.5, sensitivity=self._sensitivity)

    patch.setattr(NoiseBudget, "noise", noise)


def noise_for_one_row(patch: pytest.MonkeyPatch) -> None:
    """Make noise for one row of a unit that has several."""

    def budget(*, noise_multiplier, sensitivity):
        return NoiseBudget(noise_multiplier=noise_multiplier, sensitivity=1)

    patch.setattr(noisy_marginals, "NoiseBudget", budget)


def people(seed: int) -> bool:
    """Replay a fit on a table without the person who has most rows."""
    how, domain = NoisyMarginals(iterations=5, rounds=2), {"tea": Category(values=["yes", "no"])}
    terms: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-3, "rows_per_unit": 3}

    def fit(rows: int, generator: Any) -> Any:
        table = {"tea": (["no"] * 20 + ["yes"] * 9)[:rows]}
        units = [*range(20), *["ann"] * 9][:rows]
        return how.fit(table, domain=domain, units=units, generator=generator, progress=False, **terms)

    event = how.claim(domain, **terms).event()
    return leaks(lambda: replay_fit(fit, 29, 20, event=event, seed=seed))


def as_many_rows_as_the_table(patch: pytest.MonkeyPatch) -> None:
    """Let the model have the true number of rows."""
    original, known = adaptive_rounds.estimate, []
    init = adaptive_rounds.TableCounts.__init__

    def begin(self, codes, sizes, *, rows_per_unit):
        known[:] = [len(codes)]
        init(self, codes, sizes, rows_per_unit=rows_per_unit)

    def estimate(*given, **more):
        model = original(*given, **more)
        object.__setattr__(model, "total", float(known[0]))
        return model

    patch.setattr(adaptive_rounds.TableCounts, "__init__", begin)
    patch.setattr(adaptive_rounds, "estimate", estimate)


def values_that_occur(patch: pytest.MonkeyPatch) -> None:
    """Leave out declared categories that no row has."""
    original = DomainPurchase.buy

    def buy(self, data, *, generator):
        found = dict(original(self, data, generator=generator).columns)
        for name, column in found.items():
            if isinstance(column, Category):
                seen = set(data.cells[name])
                found[name] = Category(values=tuple(value for value in column.values if value in seen))
        return Domain(found)

    patch.setattr(DomainPurchase, "buy", buy)


# --- copies -----------------------------------------------------------------------------------------------

HOLDOUT = np.array([[0.1, 0.0], [0.4, 0.4], [0.9, 0.9], [1.0, 0.8]])
TEST = copy_test(np.array([[0.0, 0.0], [0.5, 0.5]]), HOLDOUT, quantile=0.5)
TRAINING = np.array([[0.0, 0.05], [0.5, 0.5], [0.7, 0.1]])


def copies_pay_first(seed: int) -> bool:
    def release(read: Any, account: Account) -> object:
        return memorization.near_copies(
            TrainingRows(rows=read), TEST, epsilon=0.5, account=account, generator=seeded(seed)
        )

    return on_account(lambda one: check_paid_first(release, lambda: TRAINING, one), RICH, POOR)


def copies_replayed(seed: int) -> bool:
    def release(rows: Any, generator: Any) -> object:
        found = memorization.near_copies(TrainingRows(rows=rows), TEST, epsilon=0.5, generator=generator)
        return found.share, found.interval, found.holdout_share, found.radius, found.release.value

    return leaks(lambda: replay(release, TRAINING, TRAINING[:-1], generator=seeded(seed)))


class _Uncharged(Query):
    """A question about training rows that nobody pays for: "it is an evaluation"."""

    def release(self, *, account=None, purpose=None, generator=None):
        return super().release(generator=generator)


def evaluate_without_a_charge(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memorization, "Query", _Uncharged)


def look_for_copies_first(patch: pytest.MonkeyPatch) -> None:
    """Ask for a charge only if there is something to tell."""
    original = memorization.near_copies

    def near_copies(training, test, **terms):
        rows = training.rows() if callable(training.rows) else training.rows
        if not test.near(rows).any():
            terms |= {"epsilon": terms["epsilon"] / 2}
        return original(training, test, **terms)

    patch.setattr(memorization, "near_copies", near_copies)


def radius_of_the_training_rows(patch: pytest.MonkeyPatch) -> None:
    """Find the radius among training rows, and not among the holdout."""
    original = memorization.near_copies

    def near_copies(training, test, **terms):
        away = nearest_on_grid(grid_rows(training.rows, test.bounds, test.columns), test.synthetic)
        return original(training, replace(test, radius_squared=float(np.median(away))), **terms)

    patch.setattr(memorization, "near_copies", near_copies)


BUGS = (
    Planted(
        name="label-that-is-no-class-raises",
        bug="an image whose label is no class stops the fit of a generator",
        found_by="replay on neighbors",
        plant=refuse_a_label_that_is_no_class,
        audit=LABELS,
    ),
    Planted(
        name="marginals-each-with-the-whole-budget",
        bug="each marginal of a synthetic table gets the noise of the whole budget",
        found_by="replay on neighbors",
        plant=all_of_the_noise_budget_each_time,
        audit=MARGINALS,
    ),
    Planted(
        name="marginals-with-noise-for-one-row",
        bug="noise of a synthetic table is made for one row of a unit that has several",
        found_by="replay on neighbors",
        plant=noise_for_one_row,
        audit=people,
    ),
    Planted(
        name="table-of-as-many-rows",
        bug="a synthetic table has as many rows as the private one",
        found_by="replay on neighbors",
        plant=as_many_rows_as_the_table,
        audit=MARGINALS,
    ),
    Planted(
        name="domain-of-the-table",
        bug="declared categories that no private row has are left out of the domain",
        found_by="replay on neighbors",
        plant=values_that_occur,
        audit=MARGINALS,
    ),
    Planted(
        name="evaluation-without-a-charge",
        bug="the evaluation on training rows is not charged",
        found_by="order of payment",
        plant=evaluate_without_a_charge,
        audit=copies_pay_first,
    ),
    Planted(
        name="evaluation-looks-first",
        bug="training rows are compared with synthetic ones before anything is charged",
        found_by="order of payment",
        plant=look_for_copies_first,
        audit=copies_pay_first,
    ),
    Planted(
        name="copies-within-a-private-radius",
        bug="what counts as a copy is decided by the distances of training rows",
        found_by="replay on neighbors",
        plant=radius_of_the_training_rows,
        audit=copies_replayed,
    ),
)
