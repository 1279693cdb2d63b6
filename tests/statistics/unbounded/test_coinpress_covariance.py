# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from sfumato.accounting import zcdp
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import rows_of
from sfumato.statistics.query import Query, cost
from sfumato.statistics.unbounded.coinpress_covariance import CoinPressCovariance, coinpress_covariance
from sfumato.testing import seeded

BOUNDS = (-50.0, 50.0)
ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE


def asked(**changes) -> CoinPressCovariance:
    public = {"bounds": (BOUNDS,) * 3, "stddev": (10.0,) * 3, "rho": 0.5, "delta": 1e-6}
    return CoinPressCovariance(**(public | changes))


def skewed(rows: int, seed: int = 0) -> np.ndarray:
    """Rows that vary a hundred times as much along one direction as along another."""
    numbers = np.random.default_rng(seed)
    turned, _ = np.linalg.qr(np.random.default_rng(9).normal(size=(3, 3)))
    return 20.0 + numbers.normal(size=(rows, 3)) * [0.05, 0.5, 5.0] @ turned.T


def distance(found: np.ndarray, true: np.ndarray) -> float:
    """How far a covariance is off, in units of the true one (Mahalanobis)."""
    scale = np.linalg.cholesky(np.linalg.inv(true))
    return float(np.linalg.norm(scale.T @ found @ scale - np.eye(len(true))))


@pytest.mark.parametrize(("relation", "public_size"), [(ADD, None), (ADD, 60), (REPLACE, 60)])
def test_the_covariance_is_replayed_on_neighbors(neighbors, relation, public_size):
    rows = np.vstack([skewed(58), [[-50.0, 50.0, 49.0]], [[math.inf, -math.inf, 0.0]]])
    question = asked(relation=relation, public_size=public_size)
    for i in (0, 58, 59):
        other = np.delete(rows, i, axis=0)
        if relation is REPLACE:
            other = np.vstack([other, [[-math.inf, 1e300, 7.0]]])
        neighbors.replay(question, rows_of(rows), rows_of(other))


def test_with_a_huge_budget_the_covariance_is_that_of_numpy():
    rows = skewed(4000)
    found = coinpress_covariance(rows, bounds=BOUNDS, stddev=10.0, rho=1e9, delta=1e-6, generator=seeded(0))
    assert distance(found.value, np.cov(rows.T)) < 0.1  # a row in a hundred is clipped


def test_more_steps_find_directions_that_vary_little():
    errors = {steps: [] for steps in (1, 4)}
    for seed in range(3):
        rows = skewed(4000, seed)
        for steps, found in errors.items():
            release = Query(asked(steps=steps), rows_of(rows)).release(generator=seeded(seed))
            found.append(distance(release.value, np.cov(rows.T)))
    assert np.mean(errors[4]) < 0.02 * np.mean(errors[1])


def test_the_matrix_has_no_negative_eigenvalues():
    found = coinpress_covariance(skewed(20), bounds=BOUNDS, stddev=10.0, rho=0.01, delta=1e-6)
    assert np.linalg.eigvalsh(found.value).min() >= -1e-6
    assert found.interval is None
    assert "no interval" in found.notes[0]


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_rhos_of_all_steps_add_up_to_the_budget(steps):
    assert zcdp.rho(asked(steps=steps).event(), ADD) == pytest.approx(0.5, rel=1e-9)
    assert cost(asked(rho=None, epsilon=1.0, steps=steps)) <= 1.0


@pytest.mark.parametrize("rows", [np.zeros((0, 3)), np.ones((1, 3)), np.full((40, 3), 7.0)])
def test_hardly_any_rows_give_an_answer(rows):
    assert np.isfinite(
        coinpress_covariance(rows, bounds=BOUNDS, stddev=10.0, rho=0.5, delta=1e-6).value
    ).all()


def test_bad_parameters_are_refused():
    for changes in ({"steps": 0}, {"stddev": (1.0,)}, {"bounds": ()}):
        with pytest.raises(InvalidParameterError):
            asked(**changes)
