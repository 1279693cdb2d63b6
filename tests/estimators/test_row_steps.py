# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import preprocessing as plain
from sklearn.pipeline import make_pipeline

from sfumato.errors import BudgetExceededError, InvalidParameterError, SfumatoError
from sfumato.estimators import Binarizer, LogisticRegression, Normalizer, StandardScaler
from sfumato.ledger import Budget, Ledger

STEPS = {
    "normalizer": Normalizer(),
    "l1": Normalizer("l1"),
    "max": Normalizer("max"),
    "binarizer": Binarizer(),
}
any_rows = st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=5)


class Watched:
    """Rows that remember whether anybody looked, and in what state the account was then."""

    def __init__(self, rows, account):
        self.rows, self.account, self.seen = rows, account, []

    def __array__(self, dtype=None, copy=None):
        self.seen.append(len(self.account.releases()))
        if isinstance(self.rows, Exception):
            raise self.rows
        return np.array(self.rows, dtype=dtype)


def account_of(tmp_path, epsilon):
    return Ledger(tmp_path / "l.db").open("t", privacy_unit="row", budget=Budget(epsilon=epsilon, delta=0.0))


def model(account, **options):
    return LogisticRegression(epsilon=0.5, clip_norm=1.0, classes=(0, 1), account=account, **options)


@pytest.mark.parametrize("name", STEPS)
def test_a_pipeline_that_begins_with_a_free_step_reads_nothing_before_it_has_paid(name, tmp_path):
    account = account_of(tmp_path, 0.5)
    X = Watched([[1.0, 2.0], [0.0, np.inf]], account)
    made = make_pipeline(STEPS[name], Binarizer(threshold=0.1), model(account))
    made.fit(X, [0, 1])
    assert X.seen and min(X.seen) == 1
    X.seen.clear()
    with pytest.raises(BudgetExceededError):
        made.fit(X, [0, 1])
    assert X.seen == []


@pytest.mark.parametrize("name", STEPS)
def test_what_fails_fails_after_the_charge_and_says_nothing_of_the_data(name, tmp_path):
    account = account_of(tmp_path, 0.5)
    with pytest.raises(SfumatoError) as caught:
        make_pipeline(STEPS[name], model(account)).fit(Watched(KeyError("row 4711"), account), [0, 1])
    assert len(account.releases()) == 1
    assert "4711" not in str(caught.value) and caught.value.__context__ is None


@pytest.mark.parametrize(
    "rows", [np.zeros((0, 2)), [[np.inf, 1.0]], [[np.nan, 0.0]], [[1e308, -1e308]]], ids=str
)
@pytest.mark.parametrize("name", STEPS)
def test_no_rows_and_rows_that_are_not_finite_are_like_any_others(name, rows):
    """Warnings are errors here."""
    y = [1] * len(rows)
    for made in (
        make_pipeline(STEPS[name], model(None)),
        make_pipeline(STEPS[name], StandardScaler(epsilon=1.0, bounds=(0, 1)), STEPS[name], model(None)),
    ):
        assert made.fit(rows, y).predict(rows).shape == (len(rows),)


@given(any_rows)
def test_a_row_depends_on_no_other_and_never_warns(rows):
    for step in STEPS.values():
        together = step.transform(rows)
        np.testing.assert_array_equal(together, np.vstack([step.transform([row]) for row in rows]))
        np.testing.assert_array_equal(together, np.asarray(step.fit_transform(rows)))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(Normalizer(norm), plain.Normalizer(norm)) for norm in ("l1", "l2", "max")]
    + [(Binarizer(threshold=0.3), plain.Binarizer(threshold=0.3))],
    ids=["l1", "l2", "max", "binarizer"],
)
def test_for_finite_rows_they_are_scikit_learns(ours, theirs):
    rows = np.vstack([np.random.default_rng(0).normal(size=(50, 3)), np.zeros((1, 3))])
    assert ours.transform(rows) == pytest.approx(theirs.transform(rows))


def test_rows_that_are_not_finite_stay_so():
    for step in STEPS.values():
        assert not np.isfinite(step.transform([[np.nan, 1.0]])).all()
    assert Normalizer().transform([[1e308, 1e308]]) == pytest.approx(np.full((1, 2), np.sqrt(0.5)))


@pytest.mark.parametrize("wrong", [Normalizer("l3"), Binarizer(threshold=np.nan)], ids=["norm", "threshold"])
def test_nonsense_is_refused(wrong):
    with pytest.raises(InvalidParameterError):
        wrong.fit(None)
