# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from sfumato.statistics.columns.columns import rows_of
from sfumato.statistics.unbounded.coinpress_means import CoinPressMeans, coinpress_means, tail_length
from sfumato.testing import seeded

BOUNDS = (-50.0, 50.0)


def asked(columns: int = 3, **changes) -> CoinPressMeans:
    public = {"bounds": (BOUNDS,) * columns, "stddev": (1.0,) * columns, "rho": 0.5, "delta": 1e-6}
    return CoinPressMeans(**(public | changes))


def normal(*shape: int, center: float = 20.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(center, 1.0, size=shape)


def test_understated_sensitivity_is_caught(neighbors, monkeypatch):
    monkeypatch.setattr(
        "sfumato.statistics.unbounded.coinpress_means.STEPS", 2**22
    )  # rows four times as long as the noise is for
    monkeypatch.setattr(CoinPressMeans, "_reach", lambda self: float(2**20))
    rows = np.vstack([normal(58, 3), [[-50.0, 50.0, 49.0]]])
    with pytest.raises(neighbors.LeakError, match="moves a vector"):
        neighbors.replay(asked(), rows_of(rows), rows_of(rows[:-1]))


def test_fifty_columns_of_2000_rows_are_nearly_as_good_as_without_privacy():
    private, plain = [], []
    for seed in range(4):
        center = np.random.default_rng(seed).uniform(-40, 40, size=50)
        rows = normal(2000, 50, center=0.0, seed=seed) + center
        given = {"bounds": BOUNDS, "stddev": 1.0, "rho": 0.5, "delta": 1e-6, "generator": seeded(seed)}
        private.append(np.linalg.norm(coinpress_means(rows, **given).value - center))
        plain.append(np.linalg.norm(rows.mean(axis=0) - center))
    assert np.mean(private) < 1.15 * np.mean(plain)


def test_gaussian_vectors_are_within_their_tail_length():
    rows = np.random.default_rng(0).normal(size=(20_000, 5))
    share = (np.linalg.norm(rows, axis=1) > tail_length(5, 0.01)).mean()
    assert share <= 0.01


@pytest.mark.parametrize(
    "rows", [np.zeros((0, 3)), np.ones((1, 3)), np.full((40, 3), 7.0), np.full((2, 3), math.inf)]
)
def test_hardly_any_rows_give_an_answer(rows):
    assert np.isfinite(coinpress_means(rows, bounds=BOUNDS, stddev=1.0, rho=0.5, delta=1e-6).value).all()
