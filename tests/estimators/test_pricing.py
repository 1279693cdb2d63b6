# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import Binarizer as PlainBinarizer
from sklearn.preprocessing import Normalizer as PlainNormalizer
from sklearn.preprocessing import StandardScaler as PlainScaler

from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.estimators import PCA, LogisticRegression, Normalizer, Search, StandardScaler, cost
from sfumato.ledger import Budget, Ledger


def pipeline(*, account=None, delta=0.0, relation="add-remove"):
    common = {"account": account, "delta": delta, "relation": relation, "random_state": 0}
    return make_pipeline(
        StandardScaler(epsilon=0.2, bounds=(-5.0, 5.0), **common),
        PCA(epsilon=0.3, clip_norm=3.0, n_components=2, **common),
        LogisticRegression(epsilon=0.5, clip_norm=3.0, classes=(0, 1), **common),
    )


def data():
    random = np.random.default_rng(0)
    X = random.normal(size=(3000, 3))
    X[:, 1] = X[:, 0] + 0.3 * X[:, 1]  # what scaling leaves for the first component to find
    return X, (X[:, 0] > 0).astype(int)


def test_the_budgets_of_a_pipeline_add_up():
    assert cost(pipeline()).epsilon == pytest.approx(1.0)
    together = cost(pipeline(delta=1e-6))
    assert together.delta == pytest.approx(3e-6)
    assert 0.5 < together.epsilon < 1.0  # tighter than the sum


def test_a_fitted_pipeline_spent_what_was_quoted(tmp_path):
    account = Ledger(tmp_path / "l.db").open("t", privacy_unit="row", budget=Budget(epsilon=1.0, delta=0.0))
    made = pipeline(account=account).fit(*data())
    assert account.spent().epsilon == pytest.approx(cost(pipeline()).epsilon)
    assert made.score(*data()) > 0.8
    with pytest.raises(BudgetExceededError):
        pipeline(account=account).fit(*data())


def test_steps_that_learn_nothing_are_free_and_others_are_refused():
    classifier = LogisticRegression(epsilon=0.5, clip_norm=3.0, classes=(0, 1))
    free = make_pipeline(Normalizer(), "passthrough", classifier)
    assert cost(free).epsilon == 0.5
    assert cost(make_pipeline(free[:-1], classifier)).epsilon == 0.5
    own = StandardScaler(epsilon=0.5, bounds=(0, 1))
    for plain in (
        PlainScaler(),
        PlainNormalizer(),  # raises where there is no row, before anybody has paid
        PlainBinarizer(),
        FeatureUnion([("own", own)]),
        ColumnTransformer([("own", own, [0])]),
        type("Mine", (Normalizer,), {})(),
    ):
        with pytest.raises(InvalidParameterError, match="pays nothing"):
            cost(make_pipeline(plain, classifier))
    with pytest.raises(InvalidParameterError, match="no price"):
        cost(PlainScaler())


def test_steps_of_different_relations_are_not_priced_together():
    mixed = make_pipeline(
        StandardScaler(epsilon=0.2, bounds=(-5.0, 5.0)),
        LogisticRegression(epsilon=0.5, clip_norm=3.0, classes=(0, 1), relation="replace-one"),
    )
    with pytest.raises(InvalidParameterError, match="relation"):
        cost(mixed)


def test_a_pipeline_that_caches_is_refused_wherever_it_stands(tmp_path):
    """A step that is found in the cache is not charged, and that it was found tells of the rows."""
    model = LogisticRegression(epsilon=0.5, clip_norm=3.0, classes=(0, 1))
    caching = Pipeline([("model", model)], memory=str(tmp_path))
    search = Search(caching, candidates=[{}], epsilon=3.0)
    for estimator in (caching, make_pipeline(caching), search, make_pipeline(search)):
        with pytest.raises(InvalidParameterError, match="memory"):
            cost(estimator)


def test_a_subclass_of_pipeline_and_one_without_a_private_step_have_no_price():
    class Sneaky(Pipeline):
        """May do anything with its rows."""

    model = LogisticRegression(epsilon=0.5, clip_norm=3.0, classes=(0, 1))
    for wrong in (Sneaky([("model", model)]), make_pipeline(Sneaky([("model", model)]))):
        with pytest.raises(InvalidParameterError, match="no price"):
            cost(wrong)
    for free in (make_pipeline(Normalizer()), make_pipeline("passthrough")):
        with pytest.raises(InvalidParameterError, match="nothing to pay for"):
            cost(free)


def test_a_free_step_with_parameters_that_make_no_sense_is_refused_before_anything_is_paid():
    model = LogisticRegression(epsilon=0.5, clip_norm=3.0, classes=(0, 1))
    with pytest.raises(InvalidParameterError, match="norm"):
        cost(make_pipeline(Normalizer("l3"), model))
