# SPDX-License-Identifier: Apache-2.0
import inspect
import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from sfumato.errors import InvalidParameterError
from sfumato.labels import features as module
from sfumato.labels.features import (
    Neighbors,
    k_means,
    nearest_neighbors,
    oriented_gradients,
    principal_components,
    spectrum,
)

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

POINTS = torch.from_numpy(np.random.default_rng(3).standard_normal((1500, 6)) * np.arange(1, 7)).float()
BLOBS = torch.from_numpy(make_blobs(900, n_features=3, centers=8, cluster_std=0.5, random_state=1)[0])


def test_no_function_here_can_be_given_labels():
    for name in module.__all__:
        assert not {"labels", "targets", "y"} & set(inspect.signature(getattr(module, name)).parameters)


@pytest.mark.parametrize("components", [1, 3, 6])
def test_components_are_those_of_scikit_learn(components):
    ours, theirs = principal_components(POINTS, components=components), PCA(components).fit(POINTS.numpy())
    cosines = (ours.directions.T @ torch.from_numpy(theirs.components_).float().T).abs()
    torch.testing.assert_close(cosines, torch.eye(components), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        ours.of(POINTS[:9]).abs(), torch.from_numpy(theirs.transform(POINTS.numpy()[:9])).float().abs(),
        atol=1e-3, rtol=0,
    )  # fmt: skip


def test_components_of_rows_far_from_zero_are_the_same():
    near, far = principal_components(POINTS, components=2), principal_components(POINTS + 1000, components=2)
    torch.testing.assert_close(near.directions, far.directions, atol=1e-3, rtol=0)


@pytest.mark.parametrize("shift", [0.0, 300.0])
def test_neighbors_are_those_of_an_exact_search(shift):
    found = nearest_neighbors(POINTS + shift, neighbors=5)  # 1500 rows: two parts
    exact = NearestNeighbors(n_neighbors=6, algorithm="brute").fit(
        (POINTS + shift).numpy().astype(np.float64)
    )
    distances, rows = exact.kneighbors()[0][:, :5], exact.kneighbors()[1][:, :5]
    np.testing.assert_allclose(found.distances.numpy(), distances, rtol=1e-3, atol=1e-4)
    assert (found.rows.numpy() == rows).mean() > (0.999 if shift == 0 else 0.99)  # ties may fall either way


def test_no_row_is_its_own_neighbor_even_among_copies():
    found = nearest_neighbors(torch.ones(1030, 2), neighbors=3)
    assert not (found.rows == torch.arange(1030).unsqueeze(1)).any()
    assert (found.distances == 0).all()


def dense_graph(found: Neighbors) -> np.ndarray:
    size, count = found.rows.shape
    graph = np.zeros((size, size))
    reach = found.distances[:, min(7, count) - 1].double().tolist()
    for i in range(size):
        for j, distance in zip(found.rows[i].tolist(), found.distances[i].double().tolist(), strict=True):
            graph[i, j] = graph[j, i] = math.exp(-(distance**2) / (reach[i] * reach[j]))
    degrees = graph.sum(1)
    return graph / np.sqrt(np.outer(degrees, degrees))


@pytest.mark.parametrize("neighbors", [4, 10])
def test_the_spectrum_is_that_of_the_dense_graph(neighbors):
    found = nearest_neighbors(POINTS[:200], neighbors=neighbors)
    graph = dense_graph(found)
    ours = spectrum(found, dimensions=6, tolerance=1e-10)
    np.testing.assert_allclose(ours.values.numpy(), np.linalg.eigvalsh(graph)[:-7:-1], atol=1e-8)
    vectors = ours.vectors.numpy()
    np.testing.assert_allclose(graph @ vectors, vectors * ours.values.numpy(), atol=1e-7)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(6), atol=1e-8)


def test_parts_that_nothing_joins_have_an_eigenvalue_of_one_each():
    apart = torch.cat([POINTS[:60], POINTS[60:120] + 1000, POINTS[120:180] - 1000])
    values = spectrum(nearest_neighbors(apart, neighbors=8), dimensions=4).values
    np.testing.assert_allclose(values[:3], 1.0, atol=1e-6)
    assert values[3] < 0.999


def test_copies_of_a_row_break_no_spectrum():
    copies = torch.cat([torch.zeros(30, 6), POINTS[:50]])
    found = spectrum(nearest_neighbors(copies, neighbors=8), dimensions=5)
    assert found.vectors.isfinite().all() and found.points().isfinite().all()


def test_points_of_a_spectrum_have_unit_length():
    found = spectrum(nearest_neighbors(POINTS[:200], neighbors=5), dimensions=4)
    torch.testing.assert_close(found.points().norm(dim=1), torch.ones(200))


def test_k_means_is_as_tight_as_scikit_learn_on_plain_clusters():
    def spread(rows):
        return sum(float(((BLOBS[rows == c] - BLOBS[rows == c].mean(0)) ** 2).sum()) for c in range(8))

    ours = min(spread(k_means(BLOBS, clusters=8, seed=seed)) for seed in range(5))
    with threadpool_limits(1):
        theirs = KMeans(8, n_init=5, random_state=0).fit(BLOBS.numpy()).inertia_
    assert ours <= theirs * (1 + 1e-6)


def test_k_means_ends_where_each_row_is_nearest_to_the_mean_of_its_cluster():
    rows = k_means(POINTS, clusters=12, seed=0, rounds=500)
    means = torch.stack([POINTS[rows == c].mean(0) for c in range(12)])
    assert torch.equal(torch.cdist(POINTS, means).argmin(1), rows)


def test_k_means_makes_as_many_clusters_as_rows_if_asked():
    assert k_means(POINTS[:20], clusters=20).unique().numel() == 20


def test_k_means_of_copies_leaves_clusters_empty_and_stays_in_range():
    rows = k_means(torch.ones(10, 2), clusters=4)
    assert rows.dtype is torch.int64 and int(rows.min()) >= 0 and int(rows.max()) < 4


def test_the_same_seed_gives_the_same_result_and_global_randomness_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second = k_means(POINTS, clusters=30, seed=4), k_means(POINTS, clusters=30, seed=4)
    assert torch.equal(first, second) and not torch.equal(first, k_means(POINTS, clusters=30, seed=5))
    found = nearest_neighbors(POINTS, neighbors=5)
    assert torch.equal(spectrum(found, dimensions=5).vectors, spectrum(found, dimensions=5).vectors)
    assert torch.equal(before, torch.get_rng_state())


def test_gradients_tell_the_direction_of_an_edge():
    ramp = torch.arange(8.0).expand(1, 8, 8)  # brighter to the right; then to the left, down and up
    turned = torch.cat([ramp, ramp.flip(2), ramp.transpose(1, 2), ramp.transpose(1, 2).flip(1)])
    strongest = oriented_gradients(turned, cell=4, directions=4).view(4, 4, -1).sum(2).argmax(1)
    assert strongest.tolist() == [0, 2, 1, 3]


def test_an_edge_between_two_directions_counts_in_both():
    across = torch.arange(8.0).unsqueeze(0) + torch.arange(8.0).unsqueeze(1)
    shares = oriented_gradients(across[None, 2:, 2:].contiguous(), cell=2, directions=4).view(4, -1)
    torch.testing.assert_close(shares[0, 4], shares[1, 4])
    assert shares[2].abs().max() < 1e-3 and shares[3].abs().max() < 1e-3


def test_gradients_forget_brightness_and_a_blank_image_has_none():
    images = torch.rand(5, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    plain = oriented_gradients(images)
    torch.testing.assert_close(plain, oriented_gradients(images * 0.5 + 3), atol=1e-3, rtol=0)
    torch.testing.assert_close(plain.norm(dim=1), torch.ones(5))
    assert oriented_gradients(torch.ones(2, 3, 16, 16)).eq(0).all()


def test_few_clusters_of_the_spectrum_tell_digits_apart():
    digits = load_digits()
    points = torch.from_numpy(digits.data).float()
    found = spectrum(nearest_neighbors(points, neighbors=10), dimensions=20).points()
    rows = k_means(found, clusters=40, seed=0)

    def purity(rows):
        return sum(np.bincount(digits.target[(rows == c).numpy()]).max(initial=0) for c in range(40)) / len(
            rows
        )

    # 40 clusters of pixels themselves are right for about 0.93 of the rows.
    assert purity(rows) > 0.95 > 0.3 > purity(rows[torch.randperm(len(rows))])


@pytest.mark.parametrize(
    "call",
    [
        lambda: principal_components(POINTS, components=7),
        lambda: principal_components(POINTS[:0], components=1),
        lambda: principal_components(torch.full((3, 2), torch.nan), components=1),
        lambda: principal_components(torch.ones(3, 2, dtype=torch.int64), components=1),
        lambda: nearest_neighbors(POINTS[:3], neighbors=3),
        lambda: nearest_neighbors(POINTS[:, :, None], neighbors=1),
        lambda: spectrum(nearest_neighbors(POINTS[:5], neighbors=2), dimensions=4),
        lambda: k_means(POINTS[:3], clusters=4),
        lambda: k_means(POINTS, clusters=0),
        lambda: oriented_gradients(torch.rand(2, 7, 28), cell=4),
        lambda: oriented_gradients(torch.rand(2, 28, 28), cell=3),
        lambda: oriented_gradients(torch.rand(28, 28)),
    ],
    ids=range(12),
)
def test_what_cannot_be_done_is_refused(call):
    with pytest.raises(InvalidParameterError):
        call()
