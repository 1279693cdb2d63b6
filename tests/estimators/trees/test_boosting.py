# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingClassifier as Plain

from sfumato.errors import InvalidParameterError
from sfumato.estimators import HistGradientBoostingClassifier

DOMAINS = {"bounds": (0.0, 1.0), "categories": {2: 6}}


def bowl(rows=20_000, seed=0):
    """Two features that matter by squares, one of six categories, and skewed classes."""
    random = np.random.default_rng(seed)
    X = np.column_stack([random.uniform(size=(rows, 2)), random.integers(0, 6, rows)])
    score = (
        12 * (X[:, 0] - 0.5) ** 2
        - 8 * (X[:, 1] - 0.3) ** 2
        + np.array([1, -2, 0, 1, -1, 0])[X[:, 2].astype(int)]
    )
    return X, (random.uniform(size=rows) < expit(score - 1)).astype(int)


def boosting(**options):
    terms = {"epsilon": 1.0, "delta": 1e-5, "classes": (0, 1), "random_state": 0, **DOMAINS}
    return HistGradientBoostingClassifier(**(terms | options))


@pytest.mark.parametrize(
    ("options", "loss"), [({"epsilon": 500.0}, 0.005), ({}, 0.02), ({"delta": 0.0}, 0.04)]
)
def test_it_is_close_to_the_one_of_scikit_learn(options, loss):
    X, y = bowl()
    test = bowl(seed=1)
    plain = Plain(categorical_features=[2], interaction_cst="no_interactions", random_state=0).fit(X, y)
    assert boosting(**options).fit(X, y).score(*test) > plain.score(*test) - loss
    assert plain.score(*test) > max(y.mean(), 1 - y.mean()) + 0.1  # there is something to learn


def test_three_classes_are_told_apart():
    X, _ = bowl()
    y = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [0.2, 0.6])]
    model = boosting(classes=("low", "middle", "high")).fit(X, y)
    assert model.score(X, y) > 0.95
    told = model.predict_proba(X[:5])
    assert told.shape == (5, 3) and told.sum(axis=1) == pytest.approx(np.ones(5))
    assert model.decision_function(X[:5]).argmax(axis=1).tolist() == told.argmax(axis=1).tolist()


def test_scores_add_up_to_what_is_predicted():
    X, y = bowl(2000)
    model = boosting().fit(X, y)
    assert [scores.shape for scores in model.scores_] == [(33, 1), (33, 1), (7, 1)]
    places = model.bins_.places(X[:9])
    expected = model.start_[0] + sum(scores[places[:, j], 0] for j, scores in enumerate(model.scores_))
    assert model.decision_function(X[:9]) == pytest.approx(expected)
    assert model.predict_proba(X[:9])[:, 1] == pytest.approx(expit(expected))


def test_missing_values_are_learned_from():
    X, y = bowl()
    X[y == 1, 1] = np.nan
    assert boosting().fit(X, y).score(X, y) > 0.97


def test_without_data_scores_stay_small():
    """No bin is believed to be emptier than the noise: noise does not become scores of many."""
    X, y = bowl()
    model = boosting(epsilon=0.1).fit(X[:0], y[:0])
    assert max(np.abs(scores).max() for scores in model.scores_) < 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_iter": 0},
        {"learning_rate": 0.0},
        {"learning_rate": 1.5},
        {"l2_regularization": -1.0},
        {"epsilon": 501.0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_read(wrong):
    with pytest.raises(InvalidParameterError):
        boosting(**wrong).fit(None, None)


def test_fewer_rounds_and_more_ridge_are_used_as_given():
    X, y = bowl(2000)
    assert boosting(max_iter=3).fit(X, y).n_iter_ == 3
    flat = boosting(l2_regularization=1e9).fit(X, y)
    assert max(np.abs(scores).max() for scores in flat.scores_) < 1e-3


@pytest.mark.parametrize(
    "budget", [{"epsilon": 1e6}, {"epsilon": 100.0, "delta": 1e-6}], ids=["pure", "gaussian"]
)
@pytest.mark.parametrize("share", [0.017, 0.5, 0.95])
def test_the_mean_prediction_is_the_share_of_a_class(budget, share):
    draws = np.random.default_rng(0)
    X, y = draws.uniform(size=(20_000, 1)), (draws.uniform(size=20_000) < share).astype(int)
    model = HistGradientBoostingClassifier(classes=(0, 1), bounds=(0, 1), random_state=0, **budget).fit(X, y)
    assert model.predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), abs=0.003)
