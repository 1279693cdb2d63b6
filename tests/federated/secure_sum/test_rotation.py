# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from scipy.linalg import hadamard

from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.rotation import padded_size, rotated, unrotated


@pytest.mark.parametrize("dimension", [1, 2, 3, 64, 65, 1000])
def test_rotating_back_returns_the_rows_and_norms_are_kept(dimension: int) -> None:
    rows = np.random.default_rng(0).normal(size=(3, dimension))
    turned = rotated(rows, seed=5)
    assert turned.shape == (3, padded_size(dimension))
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(rows, axis=1), rtol=1e-12)
    np.testing.assert_allclose(unrotated(turned, dimension=dimension, seed=5), rows, atol=1e-12)


def test_the_transform_is_that_of_the_hadamard_matrix() -> None:
    rows = np.eye(16)
    turned = rotated(rows, seed=9)
    signs = np.sign(turned[:, 0])  # the first row of a Hadamard matrix is all ones
    np.testing.assert_allclose(turned, signs[:, None] * hadamard(16) / 4, atol=1e-12)


def test_one_large_coordinate_is_spread_evenly() -> None:
    update = np.zeros(1024)
    update[17] = 32.0
    np.testing.assert_allclose(np.abs(rotated(update, seed=1)), 1.0)


def test_the_signs_depend_on_the_seed_and_on_nothing_else() -> None:
    update = np.random.default_rng(1).normal(size=100)
    assert (rotated(update, seed=3) == rotated(update, seed=3)).all()
    assert not np.allclose(rotated(update, seed=3), rotated(update, seed=4))


def test_a_dimension_below_one_is_refused() -> None:
    with pytest.raises(InvalidParameterError):
        padded_size(0)
