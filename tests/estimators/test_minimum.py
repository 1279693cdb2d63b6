# SPDX-License-Identifier: Apache-2.0
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from sfumato.errors import InvalidParameterError
from sfumato.estimators import minimum
from sfumato.estimators.minimum import LEAST_REGULARIZATION, minimize, require_solvable


def problem(seed: int, rows: int = 200, features: int = 4):
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, features))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.where(X[:, 0] + random.normal(size=rows) > 0, 1.0, -1.0)


def exact_minimum(w, rows, signs, times, *, regularization, tilt):
    """The minimum to 40 digits: Newton's method, from a point nearby; row i is there `times[i]` times."""
    with mp.workdps(60):
        w, signed = mp.matrix(w.tolist()), mp.matrix((rows * signs[:, None]).tolist())
        for _ in range(60):
            away = [1 / (1 + mp.exp(score)) for score in signed * w]
            slope = regularization * w + mp.matrix(tilt.tolist())
            slope -= signed.T * mp.matrix([k * p for k, p in zip(times, away, strict=True)])
            bend = mp.diag([k * p * (1 - p) for k, p in zip(times, away, strict=True)])
            step = mp.lu_solve(signed.T * bend * signed + regularization * mp.eye(len(w)), slope)
            w -= min(1, mp.log(1 + mp.norm(step)) / mp.norm(step) if mp.norm(step) else 1) * step
            if mp.norm(step) < mp.mpf(10) ** -40:
                return w
    raise AssertionError("the reference was not reached")


def missed_by(rows, signs, times, *, regularization, tilt, tolerance=1e-5, row_norm=1.0):
    """How far what is returned for repeated rows is from the minimum, over what is promised."""
    repeated, labels = np.repeat(rows, times, axis=0), np.repeat(signs, times)
    w = minimize(
        repeated, labels, row_norm=row_norm, regularization=regularization, tilt=tilt, tolerance=tolerance
    )
    exact = exact_minimum(w, rows, signs, times, regularization=regularization, tilt=tilt)
    with mp.workdps(60):
        return float(mp.norm(mp.matrix(w.tolist()) - exact) * regularization / tolerance)


DIAGONALS = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2)
CONTRADICTED = np.array([1.0, -1.0, 1.0])
HARD = {
    "separable": (np.array([[1.0, 0.0], [-0.6, 0.8]]), np.array([1.0, -1.0]), (50_000, 50_000)),
    "constant feature": (np.array([[0.6, 0.8], [-0.6, 0.8]]), np.array([1.0, -1.0]), (7, 5)),
    "duplicated features": (np.full((2, 2), 0.5), np.array([1.0, -1.0]), (90_000, 3)),
    "one row": (np.array([[0.6, -0.8]]), np.array([1.0]), (1,)),
    "zeros": (np.zeros((1, 2)), np.array([1.0]), (10,)),
    "a tiny margin": (np.array([[1.0, 1e-7], [1.0, -1e-7]]), np.array([1.0, -1.0]), (1000, 1000)),
    # A crowd holds w along one diagonal, and a few faint rows drive it far along the other.
    "stiff": (DIAGONALS * [[1.0], [1.0], [1e-3]], CONTRADICTED, (50_000, 50_000, 1000)),
    "faint": (DIAGONALS * 1e-160, CONTRADICTED, (100, 100, 1)),
}


@pytest.mark.parametrize("regularization", [LEAST_REGULARIZATION, 1e-2, 1.0, 1e4])
@pytest.mark.parametrize("tilt", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("name", HARD)
def test_what_is_returned_is_as_near_to_the_minimum_as_promised(name, tilt, regularization):
    rows, signs, times = HARD[name]
    b = tilt * np.array([0.6, -0.8])
    assert missed_by(rows, signs, times, regularization=regularization, tilt=b) <= 1.0


@given(st.integers(0, 1000), st.floats(1e-4, 1e4), st.floats(0, 1e3), st.floats(1e-7, 1e-3))
@settings(max_examples=40, deadline=None)
def test_random_rows_have_a_minimum_as_near_as_promised(seed, regularization, tilt, tolerance):
    X, signs = problem(seed, rows=12, features=3)
    b = tilt * np.random.default_rng(seed).normal(size=3)
    missed = missed_by(X, signs, [1] * 12, regularization=regularization, tilt=b, tolerance=tolerance)
    assert missed <= 1.0


@given(st.lists(st.tuples(*[st.floats(-1, 1)] * 3), max_size=6), st.sampled_from([1e-100, 1.0, 1e100]))
@settings(max_examples=60, deadline=None)
def test_any_rows_have_the_same_minimum_at_any_scale(rows, row_norm):
    X = np.array(rows).reshape(-1, 3) / np.sqrt(3)
    options = {"tilt": np.array([1.0, 0.0, -5.0]), "tolerance": 1e-5, "regularization": 1e-3}
    plain = minimize(X, np.ones(len(X)), row_norm=1.0, **options)
    options = {
        "tilt": options["tilt"] * row_norm,
        "tolerance": 1e-5 * row_norm,
        "regularization": 1e-3 * row_norm**2,
    }
    scaled = minimize(X * row_norm, np.ones(len(X)), row_norm=row_norm, **options)
    assert np.linalg.norm(plain - scaled * row_norm) <= 2 * 1e-5 / 1e-3


def test_a_solver_that_stops_too_soon_is_caught(monkeypatch):
    honest = minimum._Objective.minimum
    monkeypatch.setattr(minimum._Objective, "minimum", lambda self, within: honest(self, within=1e4 * within))
    rows, signs, times = HARD["separable"]
    assert missed_by(rows, signs, times, regularization=1.0, tilt=np.zeros(2)) > 1.0


def test_a_solver_that_ran_out_of_steps_returns_where_it_is_and_raises_nothing(monkeypatch):
    """An error would tell data sets apart; a w that is farther off costs a little more than was said."""
    monkeypatch.setattr(minimum, "_STEPS", 1)
    X, signs = problem(0)
    w = minimize(X, signs, row_norm=1.0, regularization=1.0, tilt=np.zeros(4), tolerance=1e-9)
    assert np.isfinite(w).all()


@pytest.mark.parametrize("failing", [np.linalg.LinAlgError, ValueError])
def test_a_hessian_that_cannot_be_factored_ends_the_search_and_raises_nothing(failing, monkeypatch):
    """Beyond the stated limits rounding may do that to some rows: the last point is returned."""
    honest, calls = minimum.cho_factor, []

    def broken(matrix):
        calls.append(matrix)
        if len(calls) == 2:
            raise failing("4711-th leading minor")
        return honest(matrix)

    monkeypatch.setattr(minimum, "cho_factor", broken)
    X, signs = problem(0)
    w = minimize(X, signs, row_norm=1.0, regularization=1.0, tilt=np.zeros(4), tolerance=1e-9)
    assert len(calls) == 2 and np.isfinite(w).all() and w.any()


def test_a_hessian_that_is_not_positive_or_not_finite_has_no_step():
    for wrong in (-np.eye(2), np.full((2, 2), np.nan)):
        assert minimum._solved(wrong, np.ones(2)) is None


def test_few_steps_are_needed_however_hard_the_rows_are(monkeypatch):
    monkeypatch.setattr(minimum, "_STEPS", 60)
    for rows, signs, times in HARD.values():
        options = {"regularization": LEAST_REGULARIZATION, "tilt": np.array([0.6, -0.8])}
        assert missed_by(rows, signs, times, **options) <= 1.0


def test_sums_of_a_million_gradients_are_hardly_rounded():
    rows = np.full((2**20 + 5, 1), 0.1)
    exact = mp.mpf(0.1) * len(rows)
    assert abs(minimum._weighted_sum(rows, np.ones(len(rows)))[0] - exact) <= 60 * 2.0**-53 * float(exact)


def test_without_a_tilt_it_is_scikit_learns_minimum():
    X, signs = problem(0)
    peer = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(X, signs)
    ours = minimize(X, signs, row_norm=1.0, regularization=2.0, tilt=np.zeros(4), tolerance=1e-10)
    assert ours == pytest.approx(peer.coef_[0], abs=1e-6)


def test_with_no_rows_the_minimum_is_that_of_the_tilt():
    nothing, b = np.zeros((0, 1)), np.array([3.0])
    alone = minimize(nothing, np.zeros(0), row_norm=1.0, regularization=2.0, tilt=b, tolerance=1e-9)
    assert alone == pytest.approx([-1.5])


@pytest.mark.parametrize("row_norm", [1e-100, 0.5, 1e100])
def test_a_regularization_for_which_float64_is_too_coarse_is_refused_from_public_numbers(row_norm):
    require_solvable(LEAST_REGULARIZATION * row_norm**2, row_norm=row_norm)
    for wrong in (0.99 * LEAST_REGULARIZATION * row_norm**2, float("nan")):
        with pytest.raises(InvalidParameterError, match="regularization"):
            require_solvable(wrong, row_norm=row_norm)


def test_a_step_too_short_for_its_length_to_be_known_is_taken():
    objective = minimum._Objective(rows=np.ones((1, 1)), regularization=1e170, tilt=np.zeros(1))
    point, _ = objective.after(np.zeros(1), np.full(1, 1e-200))
    assert point.tolist() == [1e-200]
