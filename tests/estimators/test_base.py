# SPDX-License-Identifier: Apache-2.0
import copy
import pickle
import re

import numpy as np
import pytest
from sklearn.base import clone

from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import (
    BudgetExceededError,
    InvalidParameterError,
    QueryFailedError,
    RelationMismatchError,
)
from sfumato.estimators import LogisticRegression, base
from sfumato.estimators.base import PrivateEstimator, guarantee_of
from sfumato.ledger import Budget, Ledger
from sfumato.testing import seeded

SECRET = 271828.0


class Total(PrivateEstimator):
    """A toy: it remembers when it was allowed to look."""

    def event(self):
        return PureDpEvent(self.epsilon)

    def _learn(self, X, y, *, generator):
        rows = self._matrix(X, reset=True)
        self.rows_, self.secure_, self.seeded_ = rows, generator.secure, generator.seeded


class Breaking(Total):
    def _learn(self, X, y, *, generator):
        raise ZeroDivisionError(f"row {SECRET} is odd")


@pytest.fixture
def account(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    return ledger.open("people", privacy_unit="row", budget=Budget(epsilon=1.0, delta=0.0))


class Trap:
    """Data that must not be looked at."""

    def __array__(self, *arguments, **options):
        raise AssertionError("the data was read")


def test_what_is_refused_has_touched_nothing(account):
    with pytest.raises(BudgetExceededError):
        Total(epsilon=2.0, account=account).fit(Trap())
    assert account.spent().epsilon == 0


def test_the_charge_comes_first_and_stays_when_the_fit_fails(account):
    with pytest.raises(QueryFailedError) as caught:
        Breaking(epsilon=0.25, account=account).fit([[1.0]])
    assert account.spent().epsilon == pytest.approx(0.25)
    assert str(SECRET) not in str(caught.value) and caught.value.__context__ is None
    assert "Error" not in str(caught.value)  # which one was raised may depend on a value


def test_a_fit_is_charged_with_its_event_and_purpose(account):
    fitted = Total(epsilon=0.5, account=account, purpose="a total", random_state=3).fit([[1.0]])
    release = account.releases()[0]
    assert release.purpose == "a total" and release.seeded
    assert fitted.event_ == PureDpEvent(0.5)
    assert fitted.notes_ == ("for study only: the noise was seeded",)
    assert str(fitted.guarantee_) == "(0.5, 0)-differential privacy for one row, add-remove neighbors"


def test_a_fit_that_no_ledger_keeps_says_so(account):
    (note,) = Total(epsilon=0.5).fit([[1.0]]).notes_
    assert note.startswith("not recorded in a ledger")
    assert Total(epsilon=0.5, account=account).fit([[1.0]]).notes_ == ()


def test_another_relation_or_unit_than_the_accounts_is_refused(account):
    with pytest.raises(RelationMismatchError):
        Total(epsilon=0.5, relation="replace-one", account=account).fit(Trap())
    with pytest.raises(InvalidParameterError, match="privacy_unit"):
        Total(epsilon=0.5, privacy_unit="user", account=account).fit(Trap())
    assert account.spent().epsilon == 0


def test_parameters_are_stored_untouched_and_only_fit_complains():
    odd = Total(epsilon="much", relation="nobody", random_state="seed")
    assert odd.get_params()["epsilon"] == "much"
    with pytest.raises(InvalidParameterError, match="epsilon"):
        odd.fit(Trap())


@pytest.mark.parametrize(
    "wrong",
    [{"epsilon": 0.0}, {"epsilon": float("nan")}, {"delta": 1.0}, {"relation": "x"}, {"purpose": "x"}],
    ids=str,
)
def test_nonsense_is_refused_before_the_data_is_read(wrong):
    with pytest.raises(InvalidParameterError):
        Total(**{"epsilon": 1.0, **wrong}).fit(Trap())


@pytest.mark.parametrize(
    "wrong",
    [np.array([["secret 4711"]]), np.array([[1 + 4711j]]), [4711.0], np.zeros((2, 0))],
    ids=["text", "complex", "flat", "bare"],
)
def test_what_is_no_matrix_of_numbers_is_refused_unseen(wrong):
    with pytest.raises(InvalidParameterError) as caught:
        Total(epsilon=1.0).fit(wrong)
    assert "4711" not in str(caught.value) and "4711" not in str(caught.value.__context__)


def test_sample_weights_are_refused():
    with pytest.raises(TypeError, match="sample_weight"):
        Total(epsilon=1.0).fit([[1.0]], sample_weight=[1.0])


def test_noise_is_secure_unless_a_seed_is_given():
    assert Total(epsilon=1.0).fit([[1.0]]).secure_
    assert Total(epsilon=1.0, random_state=np.int64(3)).fit([[1.0]]).seeded_
    assert Total(epsilon=1.0, random_state=seeded(1)).fit([[1.0]]).seeded_
    with pytest.raises(InvalidParameterError, match="generator"):
        Total(epsilon=1.0, random_state=np.random.default_rng(0)).fit(Trap())


def test_a_clone_and_a_copy_spend_from_the_same_account(account):
    made = Total(epsilon=0.5, account=account, random_state=seeded(1))
    for twin in (clone(made), copy.deepcopy(made)):
        assert twin.account is account and twin.random_state is made.random_state
    clone(made).fit([[1.0]])
    copy.deepcopy(made).fit([[1.0]])
    with pytest.raises(BudgetExceededError):
        made.fit([[1.0]])


def test_a_pickled_estimator_keeps_what_it_learned_and_cannot_fit_for_free(account):
    fitted = Total(epsilon=0.5, account=account, random_state=seeded(1)).fit([[1.0]])
    again = pickle.loads(pickle.dumps(fitted))
    assert again.guarantee_ == fitted.guarantee_ and again.random_state is None
    with pytest.raises(InvalidParameterError, match="account"):
        again.fit([[1.0]])
    again.set_params(account=account).fit([[1.0]])
    assert account.spent().epsilon == pytest.approx(1.0)


def test_a_pure_statement_is_exact_and_one_with_delta_is_priced():
    event = PureDpEvent(1.0)
    assert guarantee_of(event, delta=0.0, relation=Relation.ADD_REMOVE).epsilon == 1.0
    assert guarantee_of(event, delta=1e-3, relation=Relation.ADD_REMOVE).epsilon < 1.0


def test_the_docs_say_that_a_score_of_private_rows_is_no_release():
    """And it is none: neighbors that were scored with one and the same model differ by a whole row."""
    for text in (base.__doc__, PrivateEstimator.__doc__):
        assert "`score`" in text and re.search(r"not\s+private\s+releases", text)
    X, y = np.array([[1.0], [-1.0]] * 50), np.array([1, 0] * 50)
    model = LogisticRegression(epsilon=100.0, clip_norm=1.0, classes=(0, 1), random_state=0).fit(X, y)
    changed = y.copy()
    changed[0] = 0
    assert model.score(X, y) - model.score(X, changed) == pytest.approx(0.01)


@pytest.mark.parametrize("epsilon", [1e-300, 1e-10, 1e10, 1e300, np.inf])
def test_an_epsilon_that_float64_cannot_work_with_is_refused_before_anything_is_read(epsilon):
    with pytest.raises(InvalidParameterError, match="epsilon"):
        Total(epsilon=epsilon).fit(Trap())


def test_nothing_that_is_computed_warns_of_a_row():
    class Dividing(Total):
        def _learn(self, X, y, *, generator):
            self.found_ = 1 / self._matrix(X, reset=True)

    assert np.isinf(Dividing(epsilon=1.0).fit([[0.0]]).found_).all()  # warnings are errors here
