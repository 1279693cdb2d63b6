# SPDX-License-Identifier: Apache-2.0
"""Pay first: what is refused touches nothing, what fails stays spent."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from sfumato.errors import (
    BudgetExceededError,
    InvalidParameterError,
    QueryFailedError,
    RelationMismatchError,
)
from sfumato.ledger import Budget, Ledger, Progress
from sfumato.statistics.columns.columns import Moments, column_of
from sfumato.statistics.query import Query, cost
from sfumato.statistics.questions.counts import Count
from sfumato.statistics.questions.means import Mean, mean
from sfumato.testing import seeded

SECRET = "row 17 has salary 123456"


@dataclass
class Watched:
    """A column that writes down when it is read, and what the ledger said at that moment."""

    ledger: Ledger
    fails: type[Exception] | None = None
    seen: list[float] = field(default_factory=list)
    name: str = "salary"
    privacy_unit: str = "row"
    contribution_bound: int = 1

    def moments(self, bounds, *, squares=True):
        self.seen.append(self.ledger.account("people").spent().epsilon)
        if self.fails is not None:
            raise self.fails(SECRET)
        return Moments(count=100, total=0, squares=0)

    def histogram(self, edges):
        raise AssertionError("not asked for")


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.db")
    made.open("people", privacy_unit="row", budget=Budget(epsilon=1.0, delta=0.0))
    return made


def test_a_query_shows_its_cost_and_computes_nothing(ledger):
    data = Watched(ledger)
    query = Query(Mean(bounds=(0, 1), epsilon=0.25, column="salary"), data)
    assert "mean of salary" in repr(query)
    assert "epsilon 0.25" in repr(query)
    assert "Nothing is computed" in repr(query)
    assert query.guarantee.epsilon == pytest.approx(0.25, rel=1e-12)
    assert data.seen == []


def test_a_release_is_reserved_before_the_data_is_touched_and_committed_after(ledger):
    data = Watched(ledger)
    release = mean(data, bounds=(0, 1), epsilon=0.25, account=ledger.account("people"), purpose="report 7")
    assert data.seen == [pytest.approx(0.25)]
    (booked,) = ledger.account("people").releases()
    assert (booked.progress, booked.purpose, booked.event) == (Progress.COMMITTED, "report 7", release.event)
    assert not booked.seeded
    ledger.verify()


def test_what_the_budget_does_not_allow_touches_nothing(ledger):
    data, before = Watched(ledger), ledger.head()
    with pytest.raises(BudgetExceededError):
        mean(data, bounds=(0, 1), epsilon=1.5, account=ledger.account("people"))
    assert data.seen == []
    assert ledger.head() == before


def test_a_failure_stays_spent_and_its_words_are_not_passed_on(ledger):
    data = Watched(ledger, fails=RuntimeError)
    with pytest.raises(QueryFailedError) as failed:
        mean(data, bounds=(0, 1), epsilon=0.25, account=ledger.account("people"))
    assert SECRET not in str(failed.value)
    assert failed.value.__cause__ is None
    assert failed.value.__context__ is None
    assert ledger.account("people").spent().epsilon == pytest.approx(0.25)
    assert [r.progress for r in ledger.account("people").releases()] == [Progress.BEGUN]
    ledger.verify()


def test_a_failure_says_the_same_whatever_was_raised(ledger):
    # Which class an engine raises may depend on a value: a conversion that fails, a number out of range.
    said = set()
    for kind in (RuntimeError, OverflowError, ValueError):
        with pytest.raises(QueryFailedError) as failed:
            mean(Watched(ledger, fails=kind), bounds=(0, 1), epsilon=0.25)
        assert failed.value.__context__ is None
        said.add(str(failed.value))
    assert len(said) == 1
    assert SECRET not in said.pop()


def test_another_relation_than_the_accounts_is_refused_untouched(ledger):
    data = Watched(ledger)
    with pytest.raises(RelationMismatchError):
        mean(data, bounds=(0, 1), epsilon=0.1, relation="replace-one", account=ledger.account("people"))
    assert data.seen == []
    assert ledger.account("people").releases() == []


def test_another_unit_than_the_accounts_is_refused_untouched(ledger):
    data = Watched(ledger, privacy_unit="client")
    with pytest.raises(InvalidParameterError, match="privacy unit"):
        mean(data, bounds=(0, 1), epsilon=0.1, account=ledger.account("people"))
    assert data.seen == []


def test_a_question_for_other_contributions_than_the_data_has_is_refused(ledger):
    data = Watched(ledger, contribution_bound=3)
    with pytest.raises(InvalidParameterError, match="contribution_bound=1"):
        Query(Count(epsilon=0.1), data)


def test_a_purpose_without_an_account_is_refused():
    with pytest.raises(InvalidParameterError, match="account"):
        mean([1.0], bounds=(0, 1), epsilon=0.1, purpose="report")


def test_seeded_noise_is_marked_in_the_release_and_in_the_ledger(ledger):
    release = mean(
        [0.5] * 50, bounds=(0, 1), epsilon=0.5, account=ledger.account("people"), generator=seeded(1)
    )
    assert release.notes == ("for study only: the noise was seeded",)
    assert ledger.account("people").releases()[0].seeded


@pytest.mark.parametrize(
    "question",
    [
        Count(epsilon=0.3),
        Count(epsilon=0.3, delta=1e-6),
        Count(epsilon=0.3, relation="replace-one", contribution_bound=3),
        Mean(bounds=(0, 1), epsilon=0.3),
        Mean(bounds=(0, 1), epsilon=0.3, delta=1e-6, relation="replace-one"),
        Mean(bounds=(0, 1), epsilon=0.3, population=True),
    ],
    ids=repr,
)
def test_a_question_costs_what_was_asked_for_and_hardly_less(question):
    assert 0.3 * (1 - 1e-4) < cost(question) <= 0.3 * (1 + 1e-9)


def test_what_was_released_without_an_account_carries_the_same_guarantee():
    release = mean(np.full(50, 0.5), bounds=(0, 1), epsilon=0.5)
    assert (release.guarantee.privacy_unit, release.guarantee.relation.value) == ("row", "add-remove")
    query = Query(Mean(bounds=(0, 1), epsilon=0.5), column_of([0.5]))
    assert query.guarantee == release.guarantee
