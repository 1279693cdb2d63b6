# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from sfumato.estimators.minimum import gradient, minimize


def problem(seed: int, rows: int = 200, features: int = 4):
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, features))
    return X, np.where(X[:, 0] + random.normal(size=rows) > 0, 1.0, -1.0)


@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.floats(0, 1e3))
@settings(max_examples=30, deadline=None)
def test_the_gradient_is_as_small_as_promised(seed, regularization, tilt):
    X, signs = problem(seed, rows=30)
    b = tilt * np.random.default_rng(seed).normal(size=4)
    w = minimize(X, signs, regularization=regularization, tilt=b, tolerance=1e-6)
    assert np.linalg.norm(gradient(w, X, signs, regularization=regularization, tilt=b)) <= 1e-6


def test_without_a_tilt_it_is_scikit_learns_minimum():
    X, signs = problem(0)
    peer = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(X, signs)
    ours = minimize(X, signs, regularization=2.0, tilt=np.zeros(4), tolerance=1e-10)
    assert ours == pytest.approx(peer.coef_[0], abs=1e-6)


def test_separable_rows_and_no_rows_have_a_minimum_too():
    X = np.array([[1.0], [-1.0]])
    w = minimize(X, X[:, 0], regularization=1e-6, tilt=np.zeros(1), tolerance=1e-9)
    assert 10 < w[0] < 30
    b = np.array([3.0])
    alone = minimize(np.zeros((0, 1)), np.zeros(0), regularization=2.0, tilt=b, tolerance=1e-9)
    assert alone == pytest.approx([-1.5])


def test_the_minimum_is_reached_where_the_terms_of_the_objective_cancel():
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(460, 31))
    rows *= 4 / np.linalg.norm(rows, axis=1, keepdims=True)
    signs = np.where(rows[:, 0] > 0, 1.0, -1.0)
    for _ in range(600):
        tilt = draw.normal(size=31)
        tilt *= draw.uniform(50, 400) / np.linalg.norm(tilt)
        w = minimize(rows, signs, regularization=30.0, tilt=tilt, tolerance=4e-7)
        assert np.linalg.norm(gradient(w, rows, signs, regularization=30.0, tilt=tilt)) <= 4e-7
