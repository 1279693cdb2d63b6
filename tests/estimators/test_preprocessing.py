# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, laplace, norm
from sklearn.decomposition import PCA as PlainPCA

from sfumato.accounting import price
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators import PCA, StandardScaler
from sfumato.statistics.columns.columns import STEPS
from sfumato.testing import seeded

ALPHA = 1e-6
RELATIONS = ["add-remove", "replace-one"]
any_float = st.floats()


def scaler(**options):
    return StandardScaler(**{"epsilon": 1.0, "bounds": (-10.0, 10.0), "random_state": 0, **options})


def pca(**options):
    return PCA(**{"epsilon": 1.0, "clip_norm": 2.0, "n_components": 1, "random_state": 0, **options})


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_scaler_is_close_to_the_plain_one_and_goes_back(delta):
    X = np.random.default_rng(0).normal([3.0, -2.0], [1.0, 0.5], size=(100_000, 2))
    fitted = scaler(delta=delta).fit(X)
    assert fitted.mean_ == pytest.approx(X.mean(axis=0), abs=0.05)
    assert fitted.scale_ == pytest.approx(X.std(axis=0), rel=0.1)
    assert fitted.inverse_transform(fitted.transform(X)) == pytest.approx(X)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_a_scaler_does_only_what_is_wanted(delta):
    X = np.random.default_rng(0).normal([3.0, -2.0], [1.0, 0.5], size=(100_000, 2))
    centered = scaler(delta=delta, with_std=False).fit(X)
    assert centered.scale_ is None
    assert centered.transform(X).mean(axis=0) == pytest.approx([0.0, 0.0], abs=0.05)
    assert centered.transform(X).std(axis=0) == pytest.approx(X.std(axis=0))
    scaled = scaler(delta=delta, with_mean=False).fit(X)
    assert np.allclose(scaled.transform(X), X / scaled.scale_)
    for fitted in (centered, scaled):
        assert np.allclose(fitted.inverse_transform(fitted.transform(X)), X)
        assert fitted.guarantee_.epsilon == pytest.approx(1.0, rel=1e-6)


def test_a_mean_alone_gets_all_of_the_epsilon():
    made, generator = scaler(with_std=False, epsilon=2.0), seeded(0)
    first = np.array([made._noisy(0.0, 1, 1, generator) for _ in range(1500)]) / STEPS
    assert kstest(first, laplace(scale=1.0).cdf).pvalue > ALPHA  # halves for the count and the sum
    assert kstest(first, laplace(scale=1.5).cdf).pvalue < ALPHA  # thirds, if squares were added up, too


@given(st.lists(st.tuples(any_float, any_float), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_one_row_of_anything_moves_each_sum_by_at_most_its_sensitivity(rows):
    seen: list[float] = []

    class Watched(StandardScaler):
        def _noisy(self, value, index, features, generator):
            seen.append(value)
            return value

    X = np.array(rows)
    for data in (X, X[1:]):
        Watched(epsilon=1.0, bounds=[(-1.0, 1.0), (0.0, 5.0)]).fit(data)
    one, two = np.array(seen[:5]), np.array(seen[5:])
    assert (np.abs(one - two) <= [1, STEPS, STEPS, STEPS, STEPS]).all()


@pytest.mark.parametrize(("relation", "factor"), [("add-remove", 1), ("replace-one", 2)])
def test_the_noise_of_the_scaler_has_the_stated_law(relation, factor):
    made, generator = scaler(relation=relation, epsilon=3.0), seeded(0)
    first = np.array([made._noisy(0.0, 1, 1, generator) for _ in range(1500)]) / STEPS
    assert kstest(first, laplace(scale=factor).cdf).pvalue > ALPHA
    assert kstest(first, laplace(scale=0.5 * factor).cdf).pvalue < ALPHA
    made.set_params(delta=1e-5, epsilon=1.0)
    first = np.array([made._noisy(0.0, 1, 1, generator) for _ in range(1500)]) / STEPS
    assert kstest(first, norm(scale=3.7306 * math.sqrt(3) * factor).cdf).pvalue > ALPHA
    assert kstest(first, norm(scale=3.7306 * factor).cdf).pvalue < ALPHA


@pytest.mark.parametrize("make", [scaler, pca], ids=["scaler", "pca"])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_fit_costs_what_was_asked_for(make, delta, relation):
    fitted = make(delta=delta, relation=relation).fit(np.random.default_rng(0).normal(size=(50, 3)))
    assert fitted.guarantee_.epsilon == pytest.approx(1.0, rel=1e-6)
    if delta > 0:
        assert price(fitted.event_, delta=delta, relation=Relation.parse(relation)).upper <= 1.0 + 1e-9


def test_the_noisy_count_may_fail_and_the_scaler_falls_back_to_its_bounds():
    fitted = scaler(epsilon=1e-6, bounds=(0.0, 10.0), random_state=4).fit(np.zeros((0, 1)))
    fallback = (fitted.mean_ == 5.0).all() and (fitted.scale_ == 5.0).all()
    bounded = (fitted.mean_ >= 0).all() and (fitted.mean_ <= 10).all() and (fitted.scale_ <= 5).all()
    assert fallback or bounded
    tries = [scaler(epsilon=1e-6, bounds=(0.0, 10.0), random_state=i).fit(np.zeros((0, 1))) for i in range(8)]
    assert any((t.mean_ == 5.0).all() and (t.scale_ == 5.0).all() for t in tries)


def test_a_constant_feature_is_not_blown_up():
    assert scaler(epsilon=100.0).fit(np.full((5000, 1), 3.0)).scale_[0] >= 0.1 * (1 - 1e-9)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_pca_finds_the_plane_that_the_plain_one_finds(delta):
    random = np.random.default_rng(0)
    X = random.normal(size=(20_000, 2)) @ [[0.8, 0.6, 0.0, 0.0], [0.0, 0.0, 0.3, 0.4]] + [0.1, 0, 0, 0.1]
    X *= 0.5
    fitted = pca(n_components=2, delta=delta, epsilon=2.0, clip_norm=3.0).fit(X)
    plain = PlainPCA(2).fit(X)
    overlap = np.linalg.svd(fitted.components_ @ plain.components_.T, compute_uv=False)
    assert overlap.min() > 0.98
    assert fitted.explained_variance_ == pytest.approx(plain.explained_variance_, rel=0.2)
    assert fitted.inverse_transform(fitted.transform(X)) == pytest.approx(X, abs=0.4)


@given(st.lists(st.tuples(any_float, any_float), min_size=1, max_size=6), st.sampled_from(RELATIONS))
@settings(max_examples=60, deadline=None)
def test_one_row_of_anything_moves_the_matrix_by_at_most_the_sensitivity(rows, relation):
    seen: list[np.ndarray] = []

    class Watched(PCA):
        def _noisy(self, matrix, generator):
            seen.append(matrix)
            return matrix

    X = np.array(rows)
    other = X[1:] if relation == "add-remove" else np.vstack([X[1:], [[2.0, 0.0]]])
    model = Watched(epsilon=1.0, clip_norm=2.0, n_components=1, relation=relation)
    for data in (X, other):
        model.fit(data)
    assert np.linalg.norm(seen[0] - seen[1]) <= model._sensitivity(2)


@pytest.mark.parametrize("left_over", [0, STEPS - 1])
def test_sums_of_products_are_exact_for_more_rows_than_float64_can_add_up(left_over):
    """So many rows that a sum is a whole number of steps, or nearly one more: rounding shows either way."""
    steps = 741_455  # near STEPS / sqrt(2), for a row of norm 1; odd
    times = left_over * pow(steps * steps, -1, STEPS) % STEPS or STEPS
    moments = pca(clip_norm=1.0)._moments(np.full((times, 2), steps / STEPS))
    assert times * steps * steps > 2**53 and times * steps * steps % STEPS == left_over
    assert int(moments[0, 1]) == times * steps * steps // STEPS


def test_the_matrix_is_that_of_a_loop_over_the_rows():
    X = np.random.default_rng(3).normal(size=(40, 3))
    X[5, 1], X[7, 0] = np.nan, np.inf
    total = np.zeros((4, 4))
    for row in X[np.isfinite(X).all(axis=1)] / 2.0:
        short = row / max(1.0, np.linalg.norm(row))
        total += np.outer([*short, 1.0], [*short, 1.0])
    assert pca()._moments(X) / STEPS == pytest.approx(total, abs=40 * 4 / STEPS)


@pytest.mark.parametrize("make", [scaler, pca], ids=["scaler", "pca"])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_same_noise_moves_neighbors_apart_by_what_their_sums_differ(make, delta, relation, monkeypatch):
    """Replay: what reaches the noise differs within the sensitivity, and the noise itself not at all."""
    X = np.random.default_rng(1).normal(size=(60, 2))
    other = X[1:] if relation == "add-remove" else np.vstack([[[2.0, -9.0]], X[1:]])
    seen: list[np.ndarray] = []
    estimator = make(delta=delta, relation=relation)
    monkeypatch.setattr(type(estimator), "_keep", lambda self, noisy, *rest: seen.append(noisy))
    for data in (X, other):
        estimator.fit(data)
    moved = np.abs(seen[0] - seen[1])
    if make is pca:
        assert 0 < np.linalg.norm(moved) <= estimator._sensitivity(2) / STEPS
    else:
        replaced = 2 if relation == "replace-one" else 1
        assert (moved <= np.array([1] + [replaced * STEPS] * 2 + [STEPS] * 2) * (1 + 1e-9)).all()
        assert moved.max() > 0


def test_replaced_rows_need_more_than_the_bound_for_added_ones():
    one, two = np.array([1.0, 0.0, 1.0]), np.array([-1.0, 0.0, 1.0])
    moved = np.linalg.norm(np.outer(one, one) - np.outer(two, two))
    assert 2.0 < moved <= 2.0 * math.sqrt(2)


def test_the_noise_of_the_matrix_has_the_stated_law_and_is_symmetric():
    made, generator = pca(delta=1e-5), seeded(0)
    noise = np.stack([made._noisy(np.zeros((3, 3)), generator) for _ in range(1500)])
    assert np.array_equal(noise, noise.transpose(0, 2, 1))
    stddev = 3.7306 * (2 * STEPS + 3)
    assert kstest(noise[:, 0, 0], norm(scale=stddev).cdf).pvalue > ALPHA
    assert kstest(noise[:, 0, 1], norm(scale=stddev / math.sqrt(2)).cdf).pvalue > ALPHA
    assert kstest(noise[:, 0, 1], norm(scale=stddev).cdf).pvalue < ALPHA


@pytest.mark.parametrize(
    "wrong",
    [
        {"bounds": (1.0, 0.0)},
        {"bounds": [(0.0, 1.0), (0.0, float("nan"))]},
        {"epsilon": 0.0},
        {"with_mean": False, "with_std": False},
    ],
    ids=str,
)
def test_a_scaler_refuses_nonsense(wrong):
    with pytest.raises(InvalidParameterError):
        scaler(**wrong).event()


def test_bounds_must_be_as_many_as_features_and_components_no_more():
    with pytest.raises(InvalidParameterError, match="pairs"):
        scaler(bounds=[(0.0, 1.0)] * 3).fit(np.zeros((5, 2)))
    with pytest.raises(InvalidParameterError, match="n_components"):
        pca(n_components=3).fit(np.zeros((5, 2)))


@pytest.mark.parametrize("make", [scaler, pca], ids=["scaler", "pca"])
def test_no_row_makes_a_transform_warn(make):
    """Warnings are errors here."""
    fitted = make(**({"bounds": (0.0, 1e-280)} if make is scaler else {})).fit(np.ones((9, 2)))
    extreme = [[1e308, -1e308], [np.inf, np.inf], [-np.inf, np.inf], [np.nan, 0.0], [5e-324, 1e308]]
    assert fitted.transform(extreme).shape[0] == 5
    assert fitted.inverse_transform(fitted.transform(extreme)).shape == (5, 2)
