# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans as Plain

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators import KMeans
from sfumato.estimators.cell_noise import CellNoise, signed
from sfumato.estimators.k_means import _calmed, _clipped


def blobs(rows=8000, features=2, clusters=5):
    """Clusters of very different sizes in a corner of the bounds."""
    random = np.random.default_rng(0)
    centers = random.uniform(-1, 0.2, (clusters, features))
    sizes = 0.5 ** np.arange(clusters)
    near = random.choice(clusters, size=rows, p=sizes / sizes.sum())
    return centers[near] + random.normal(0, 0.04, (rows, features))


def inertia(X, centers):
    return ((X[:, None] - centers) ** 2).sum(axis=2).min(axis=1).sum()


def k_means(**options):
    return KMeans(**{"n_clusters": 5, "epsilon": 1.0, "bounds": (-1.0, 1.0), "random_state": 0, **options})


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({"epsilon": 1e6}, 0.99),
        ({"epsilon": 500.0, "delta": 1e-5}, 0.99),
        ({"delta": 1e-5}, 0.94),
        ({}, 0.94),
    ],
)
@pytest.mark.parametrize("features", [2, 6])
def test_it_explains_nearly_what_the_one_of_scikit_learn_does(options, share, features):
    X = blobs(features=features)
    plain, one = Plain(5, n_init=5, random_state=0).fit(X).inertia_, inertia(X, X.mean(axis=0)[None])
    found = [inertia(X, k_means(**options | {"random_state": s}).fit(X).cluster_centers_) for s in range(3)]
    assert plain < one / 20
    assert (one - np.median(found)) / (one - plain) > share


def test_units_of_features_are_kept():
    X = blobs() * [1, 100] + [5, -300]
    model = k_means(bounds=[(3, 7), (-500, -100)], epsilon=1e6).fit(X)
    plain = Plain(5, n_init=5, random_state=0).fit(X)
    assert inertia(X, model.cluster_centers_) < 1.3 * plain.inertia_
    assert model.transform(X[:9]) == pytest.approx(
        np.linalg.norm(X[:9, None] - model.cluster_centers_, axis=2)
    )


def test_rows_go_to_the_nearest_center_and_a_missing_value_is_left_out():
    model = k_means().fit(blobs())
    model.cluster_centers_ = np.array([[0.5, -0.5], [-0.5, 0.5]])
    assert model.predict([[0.4, -0.3], [-1e300, np.inf], [np.nan, 0.6], [None, -0.6]]).tolist() == [
        0,
        1,
        1,
        0,
    ]
    assert model.get_feature_names_out().tolist() == ["kmeans0", "kmeans1"]


def test_nothing_of_the_fitted_rows_is_kept():
    model = k_means()
    told = model.fit_predict(blobs())
    assert len(told) == 8000
    kept = {name: value for name, value in vars(model).items() if name.endswith("_")}
    assert set(kept) == {"cluster_centers_", "event_", "guarantee_", "n_features_in_", "n_iter_", "notes_"}


def test_one_cluster_is_the_mean():
    X = blobs()
    assert k_means(n_clusters=1).fit(X).cluster_centers_[0] == pytest.approx(X.mean(axis=0), abs=0.05)


any_move = st.lists(st.floats(-4, 4), min_size=3, max_size=3)


@given(any_move, st.sampled_from([0.0, 1e-5]), st.floats(0.01, 3.0), st.sampled_from(list(Relation)[:2]))
@settings(deadline=None)
def test_a_displacement_is_clipped_to_what_a_row_may_add(move, delta, radius, relation):
    noise = CellNoise(epsilon=1.0, delta=delta, relation=Relation.ADD_REMOVE)
    clipped = _clipped(np.array([move]), signed(radius, radius, noise.relation), noise)[0]
    norm = np.abs(clipped).sum() if delta == 0 else math.dist(clipped, [0, 0, 0])
    assert norm <= radius
    if sum(np.abs(move)) < radius * (1 - 1e-9):
        assert clipped.tolist() == move


def test_sums_of_noise_alone_are_pulled_to_nothing():
    noise = np.random.default_rng(0).normal(size=(1000, 50))
    calmed = _calmed(noise, 1.0)
    assert (calmed**2).sum() < 0.05 * (noise**2).sum()
    assert _calmed(100 * noise, 1.0) == pytest.approx(100 * noise, rel=0.01)


@pytest.mark.parametrize(
    "wrong", [{"n_clusters": 0}, {"max_iter": 0}, {"bounds": (1, 0)}, {"epsilon": -1.0}], ids=str
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_read(wrong):
    with pytest.raises(InvalidParameterError):
        k_means(**wrong).fit(None)
