# SPDX-License-Identifier: Apache-2.0
"""The Frechet distance: right for Gaussians, robust with few rows, and refused where it is not defined."""

import numpy as np
import pytest
from scipy.linalg import sqrtm

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.frechet import frechet_between, frechet_distance
from sfumato.generative.evaluation.rows import LabeledRows, labeled_rows

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("rows", [(200, 150), (4, 200), (4, 3)])
def test_the_distance_is_that_of_the_formula(rows):
    first, second = (RNG.normal(size=(n, 6)) @ RNG.normal(size=(6, 6)) for n in rows)
    covariances = [np.cov(each.T) for each in (first, second)]
    root = np.real(sqrtm(covariances[0] @ covariances[1]))
    slow = ((first.mean(0) - second.mean(0)) ** 2).sum() + np.trace(sum(covariances) - 2 * root)
    assert frechet_between(first, second) == pytest.approx(slow, rel=1e-4)


def test_two_gaussians_have_the_known_distance():
    first, second = RNG.normal(size=(200_000, 1)), 3 + 2 * RNG.normal(size=(200_000, 1))
    assert frechet_between(first, second) == pytest.approx(9 + 1, rel=0.02)


@pytest.mark.parametrize(
    "rows",
    [np.ones((1, 3)), np.ones((5, 3)), np.eye(3), np.full((2, 3), 1e6), np.array([[0.0, 1, 1e-9]] * 3)],
)
def test_singular_covariances_are_no_problem(rows):
    assert frechet_between(rows, rows) == pytest.approx(0, abs=1e-6)
    assert frechet_between(rows, rows + 2) == pytest.approx(12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value):
    rows = np.zeros((3, 2))
    rows[1, 1] = value
    with pytest.raises(InvalidParameterError, match="not finite"):
        frechet_between(np.zeros((3, 2)), rows)
    broken = labeled_rows(rows, [0, 0, 0], classes=1)
    with pytest.raises(InvalidParameterError, match="synthetic rows hold"):
        frechet_distance(broken, labeled_rows(np.zeros((3, 2)), [0, 0, 0], classes=1))


@pytest.mark.parametrize("rows", [np.zeros((3, 4)), np.zeros((0, 2)), np.zeros(2)])
def test_other_shapes_are_refused(rows):
    with pytest.raises(InvalidParameterError, match="equal width"):
        frechet_between(np.zeros((3, 2)), rows)


def test_real_rows_are_near_the_floor_and_noise_is_far(thirds):
    real = frechet_distance(thirds[0], thirds[1])
    assert real.features == "oriented gradients" and real.distance < 2 * real.floor
    noise = LabeledRows(features=RNG.random(thirds[0].features.shape), labels=thirds[0].labels, classes=10)
    assert frechet_distance(noise, thirds[1]).distance > 10 * real.floor
    modes = LabeledRows(features=thirds[0].features[np.arange(599) % 5], labels=thirds[0].labels, classes=10)
    assert frechet_distance(modes, thirds[1]).distance > 10 * real.floor
    assert "not the Inception FID" in str(real)


def test_own_features_are_used_and_checked(thirds):
    def brightness(images):
        return images.reshape(len(images), -1).mean(axis=1, keepdims=True)

    found = frechet_distance(thirds[0], thirds[1], features=brightness)
    assert found.features == "brightness" and found.columns == 1
    with pytest.raises(InvalidParameterError, match="one vector for each of 599 rows"):
        frechet_distance(thirds[0], thirds[1], features=lambda images: images[0, 0])


def test_tiny_images_and_tables_use_their_values():
    rows = labeled_rows(RNG.random((9, 1, 3, 3)), [0] * 9, classes=1)
    found = frechet_distance(rows, rows)
    assert found.features == "the values of a row" and found.columns == 9
    alone = frechet_distance(rows, rows.take(np.array([0])))
    assert alone.floor is None and alone.distance > 0
