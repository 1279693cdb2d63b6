# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.query import cost
from sfumato.statistics.questions.means import mean
from sfumato.statistics.unbounded.karwa_vadhan import KarwaVadhanMean, karwa_vadhan_mean
from sfumato.testing import seeded

BOUNDS = (-50.0, 50.0)
ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE


def asked(**changes) -> KarwaVadhanMean:
    return KarwaVadhanMean(**({"bounds": BOUNDS, "stddev": 1.0, "rho": 0.5, "delta": 1e-6} | changes))


def normal(rows: int, center: float = 20.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(center, 1.0, size=rows)


@pytest.mark.parametrize(("relation", "public_size"), [(ADD, None), (ADD, 60), (REPLACE, 60)])
def test_the_mean_is_replayed_on_neighbors(neighbors, relation, public_size):
    values = [*normal(57), -50.0, 49.0, math.inf]
    question = asked(relation=relation, public_size=public_size)
    changes = (
        [[*values[1:], -49.0], [*values[:-1], 3.0]] if relation is REPLACE else [values[1:], values[:-1]]
    )
    for other in changes:
        neighbors.replay(question, column_of(values), column_of(other))


def test_units_of_several_rows_are_replayed(neighbors):
    owners, values = np.repeat(np.arange(20), 3), normal(60)
    data = column_of(values, owners=owners, contribution_bound=3)
    without = column_of(values[3:], owners=owners[3:], contribution_bound=3)
    neighbors.replay(asked(contribution_bound=3), data, without)


def test_with_a_huge_budget_the_mean_is_that_of_numpy():
    values = normal(500, 33.3)
    found = karwa_vadhan_mean(values, bounds=BOUNDS, stddev=1.0, rho=1e9, delta=1e-6, generator=seeded(0))
    assert found.value == pytest.approx(values.mean(), abs=1e-3)


def test_loose_bounds_cost_little_where_the_clipped_mean_pays_for_them():
    errors, clipped = [], []
    for seed in range(30):
        values, generator = normal(1000, seed - 15.0, seed), seeded(seed)
        given = {"bounds": BOUNDS, "epsilon": 1.0, "delta": 1e-6, "generator": generator}
        errors.append(karwa_vadhan_mean(values, stddev=1.0, **given).value - values.mean())
        clipped.append(mean(values, **given).value - values.mean())
    assert np.std(errors) < 0.3 * np.std(clipped)


def test_intervals_cover_as_stated(check_coverage):
    generator, numbers = seeded(1), np.random.default_rng(1)
    question = asked(rho=0.1)

    def contains(_: int) -> bool:
        values = numbers.normal(20.0, 1.0, size=300)
        return values.mean() in question.answer(column_of(values), generator=generator).interval

    check_coverage(contains)


@pytest.mark.parametrize("changes", [{}, {"rho": None, "epsilon": 1.0}, {"public_size": 100}])
def test_the_event_costs_the_budget(changes):
    price = cost(asked(**changes))
    assert price == pytest.approx(1.0 if "epsilon" in changes else cost(asked()), rel=1e-4)
    assert "epsilon" not in changes or price <= 1.0


@pytest.mark.parametrize("rows", [[], [3.0], [3.0] * 50, [math.inf, -math.inf]])
def test_hardly_any_rows_give_an_answer(rows):
    found = karwa_vadhan_mean(rows, bounds=BOUNDS, stddev=1.0, rho=0.5, delta=1e-6)
    assert math.isfinite(found.value)


@pytest.mark.parametrize(
    "changes", [{"stddev": 0.0}, {"bounds": (1.0, 0.0)}, {"level": 1.0}, {"stddev": 1e-9}, {"delta": 0.0}]
)
def test_bad_parameters_are_refused(changes):
    with pytest.raises(InvalidParameterError):
        asked(**changes)
