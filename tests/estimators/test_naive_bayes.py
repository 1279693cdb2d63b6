# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB as Plain

from sfumato.errors import InvalidParameterError
from sfumato.estimators import GaussianNB


def clouds(rows=4000, seed=0):
    """Three classes of different means, spreads and sizes, with bounds that are far too wide."""
    random = np.random.default_rng(seed)
    y = random.choice(3, size=rows, p=[0.6, 0.3, 0.1])
    means, spreads = np.array([[0, 0], [2, 1], [1, 3]]), np.array([[1.0, 0.2], [0.3, 0.5], [0.5, 1.0]])
    return means[y] + spreads[y] * random.normal(size=(rows, 2)), y


def bayes(**options):
    return GaussianNB(
        **{"epsilon": 1.0, "classes": (0, 1, 2), "bounds": (-10, 10), "random_state": 0, **options}
    )


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_with_little_noise_it_is_the_one_of_scikit_learn(delta, relation):
    X, y = clouds()
    model, plain = bayes(epsilon=500.0, delta=delta, relation=relation).fit(X, y), Plain().fit(X, y)
    assert model.theta_ == pytest.approx(plain.theta_, abs=0.02)
    assert model.var_ == pytest.approx(plain.var_, rel=0.3, abs=0.02)
    assert model.class_prior_ == pytest.approx(plain.class_prior_, abs=0.005)
    assert (model.predict(X) == plain.predict(X)).mean() > 0.98


@pytest.mark.parametrize(("delta", "loss"), [(0.0, 0.08), (1e-5, 0.05)])
def test_with_noise_it_is_close(delta, loss):
    X, y = clouds()
    assert bayes(delta=delta).fit(X, y).score(X, y) > Plain().fit(X, y).score(X, y) - loss


def test_constant_features_do_not_make_noise_confident():
    """Digits have pixels that are always empty: there a variance of nothing but noise would decide."""
    X, y = load_digits(return_X_y=True)
    model = bayes(epsilon=5.0, delta=1e-5, classes=tuple(range(10)), bounds=(0, 16))
    assert model.fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.8


def test_noise_makes_no_opinion_where_there_is_no_data():
    X, y = clouds()
    told = bayes().fit(X[:0], y[:0]).predict_proba(X)
    assert told.max() < 0.95


def test_a_missing_value_is_left_out_and_bounds_hold_in_prediction():
    X, y = clouds()
    model = bayes(epsilon=100.0).fit(X, y)
    alone = bayes(epsilon=100.0).fit(X[:, :1], y)
    told = model.predict_proba([[0.5, np.nan]])
    assert told == pytest.approx(alone.predict_proba([[0.5]]), abs=0.05)
    assert np.array_equal(model.predict_proba([[1e9, -np.inf]]), model.predict_proba([[10, -10]]))


@pytest.mark.parametrize(
    "wrong", [{"classes": (0, 0)}, {"bounds": (1, 1)}, {"epsilon": 0.0}, {"delta": 1.0}], ids=str
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_read(wrong):
    with pytest.raises(InvalidParameterError):
        bayes(**wrong).fit(None, None)
