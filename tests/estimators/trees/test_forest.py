# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier as Plain

from sfumato.errors import InvalidParameterError
from sfumato.estimators import DecisionTreeClassifier, RandomForestClassifier

DOMAINS = {"classes": (0, 1), "bounds": (0.0, 1.0), "categories": {2: 6}}


def boxes(rows=20_000, seed=0):
    """A checkerboard of two features, turned over by some categories; nine in ten labels are right."""
    random = np.random.default_rng(seed)
    X = np.column_stack([random.uniform(size=(rows, 2)) ** 2, random.integers(0, 6, rows)])
    right = (X[:, 0] > 0.25) & ((X[:, 1] > 0.5) | np.isin(X[:, 2], [1, 4]))
    return X, np.where(random.uniform(size=rows) < 0.9, right, ~right).astype(int)


def tree(**options):
    terms = {"epsilon": 1.0, "delta": 1e-5, "random_state": 0, **DOMAINS}
    return DecisionTreeClassifier(**(terms | options))


def forest(**options):
    terms = {"epsilon": 1.0, "delta": 1e-5, "random_state": 0, **DOMAINS}
    return RandomForestClassifier(**(terms | options))


@pytest.mark.parametrize("make", [tree, forest])
@pytest.mark.parametrize(
    ("options", "loss"), [({"epsilon": 500.0}, 0.01), ({}, 0.02), ({"delta": 0.0}, 0.03)]
)
def test_it_is_close_to_the_tree_of_scikit_learn(make, options, loss):
    X, y = boxes()
    test = boxes(seed=1)
    plain = Plain(max_depth=8, random_state=0).fit(X, y)  # it reads categories as numbers
    assert plain.score(*test) > 0.88 > 0.8 > max(y.mean(), 1 - y.mean())
    assert make(**options).fit(X, y).score(*test) > plain.score(*test) - loss


def test_leaves_hold_the_shares_of_their_rows():
    X, y = boxes()
    model = tree(epsilon=500.0).fit(X, y)
    (grown,) = model.trees_
    at = grown.leaves(model.bins_.places(X))
    for leaf in np.unique(at):
        assert grown.feature[leaf] == -1
        assert grown.value[leaf, 1] == pytest.approx(y[at == leaf].mean(), abs=0.02)


def test_without_data_there_is_hardly_a_split_and_no_opinion():
    X, y = boxes()
    model = tree().fit(X[:0], y[:0])
    assert len(model.trees_[0].feature) <= 5
    assert np.abs(model.predict_proba(X[:100]) - 0.5).max() < 0.5


def test_a_deeper_tree_and_random_features_are_used_as_given():
    X, y = boxes()
    small = tree(max_depth=1).fit(X, y)
    assert len(small.trees_[0].feature) == 3
    model = forest(n_estimators=4, max_depth=2, max_features=1).fit(X, y)
    assert len(model.trees_) == 4
    assert len({int(grown.feature[0]) for grown in model.trees_}) > 1
    with pytest.raises(InvalidParameterError, match="max_features"):
        forest(max_features=4).fit(X, y)


def test_three_classes_are_told_apart():
    X, _ = boxes()
    y = np.array(["a", "b", "c"])[np.digitize(X[:, 0], [0.1, 0.6])]
    for make in (tree, forest):
        assert make(classes=("a", "b", "c"), epsilon=10.0).fit(X, y).score(X, y) > 0.9


def test_missing_values_go_their_own_way():
    X, y = boxes()
    X[y == 1, 2] = np.nan
    assert tree().fit(X, y).score(X, y) > 0.97


@pytest.mark.parametrize(
    "wrong", [{"max_depth": 0}, {"max_depth": 17}, {"n_estimators": 0}, {"max_features": 0}], ids=str
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_read(wrong):
    with pytest.raises(InvalidParameterError):
        forest(**wrong).fit(None, None)
