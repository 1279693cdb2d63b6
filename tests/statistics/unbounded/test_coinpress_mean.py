# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.questions.means import mean
from sfumato.statistics.unbounded.coinpress_mean import CoinPressMean, coinpress_mean
from sfumato.statistics.unbounded.coinpress_means import CoinPressMeans, coinpress_means
from sfumato.statistics.unbounded.karwa_vadhan import karwa_vadhan_mean
from sfumato.testing import seeded

BOUNDS = (-50.0, 50.0)


ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE


def asked(columns: int = 3, **changes) -> CoinPressMeans:
    public = {"bounds": (BOUNDS,) * columns, "stddev": (1.0,) * columns, "rho": 0.5, "delta": 1e-6}
    return CoinPressMeans(**(public | changes))


def normal(*shape: int, center: float = 20.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(center, 1.0, size=shape)


RELATIONS = [(ADD, None), (ADD, 60), (REPLACE, 60)]


@pytest.mark.parametrize(("relation", "public_size"), RELATIONS)
def test_the_mean_of_a_column_is_replayed_on_neighbors(neighbors, relation, public_size):
    values = [*normal(58), -1e9, math.inf]
    question = CoinPressMean(terms=asked(1, relation=relation, public_size=public_size))
    for i in (0, 58, 59):
        other = [*np.delete(values, i), *([-30.0] if relation is REPLACE else [])]
        neighbors.replay(question, column_of(values), column_of(other))


def test_with_a_huge_budget_the_mean_is_that_of_numpy():
    rows = normal(400, 3, center=33.3)
    given = {"bounds": BOUNDS, "rho": 1e9, "delta": 1e-6, "generator": seeded(0)}
    assert np.allclose(coinpress_means(rows, stddev=2.0, **given).value, rows.mean(axis=0), atol=1e-3)
    assert coinpress_mean(rows[:, 0], stddev=2.0, **given).value == pytest.approx(rows[:, 0].mean(), abs=1e-3)


def test_one_column_costs_and_finds_the_same_as_a_matrix_of_one_column():
    values = normal(500)
    given = {"bounds": BOUNDS, "stddev": 1.0, "rho": 0.5, "delta": 1e-6}
    column = coinpress_mean(values, **given, generator=seeded(3))
    matrix = coinpress_means(values[:, None], **given, generator=seeded(3))
    assert column.value == pytest.approx(matrix.value[0], abs=1e-4)
    assert column.event == matrix.event


def test_it_beats_karwa_vadhan_and_the_clipped_mean_when_bounds_are_loose():
    errors = {"coinpress": [], "karwa_vadhan": [], "clipped": []}
    for seed in range(60):
        center = np.random.default_rng(seed).uniform(-40, 40)
        values, generator = normal(1000, center=center, seed=seed), seeded(seed)
        given = {"bounds": BOUNDS, "epsilon": 0.5, "delta": 1e-6, "generator": generator}
        errors["coinpress"].append(coinpress_mean(values, stddev=1.0, **given).value - values.mean())
        errors["karwa_vadhan"].append(karwa_vadhan_mean(values, stddev=1.0, **given).value - values.mean())
        errors["clipped"].append(mean(values, **given).value - values.mean())
    size = {name: float(np.sqrt(np.mean(np.square(found)))) for name, found in errors.items()}
    assert size["coinpress"] < 0.9 * size["karwa_vadhan"]
    assert size["karwa_vadhan"] < 0.5 * size["clipped"]


def test_a_column_has_one_pair_of_bounds():
    with pytest.raises(InvalidParameterError, match="one entry"):
        CoinPressMean(terms=asked(2))
