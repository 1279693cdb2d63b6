# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from sfumato.accounting import zcdp
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import rows_of
from sfumato.statistics.query import cost
from sfumato.statistics.unbounded.coinpress_means import CoinPressMeans, coinpress_means, tail_length
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
def test_the_mean_of_rows_is_replayed_on_neighbors(neighbors, relation, public_size):
    rows = np.vstack([normal(58, 3), [[-50.0, 50.0, 49.0]], [[math.inf, -math.inf, 0.0]]])
    question = asked(relation=relation, public_size=public_size)
    for i in (0, 58, 59):
        other = np.delete(rows, i, axis=0)
        if relation is REPLACE:
            other = np.vstack([other, [[-math.inf, 1e300, 7.0]]])
        neighbors.replay(question, rows_of(rows), rows_of(other))


def test_units_of_several_rows_are_replayed(neighbors):
    owners, rows = np.repeat(np.arange(20), 3), normal(60, 3)
    data = rows_of(rows, owners=owners, contribution_bound=3)
    without = rows_of(rows[3:], owners=owners[3:], contribution_bound=3)
    neighbors.replay(asked(contribution_bound=3), data, without)


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


def test_intervals_cover_as_stated(check_coverage):
    generator, numbers = seeded(1), np.random.default_rng(1)
    question = asked(2, stddev=(1.5, 1.5))

    def contains(_: int) -> bool:
        rows = numbers.normal(20.0, 1.0, size=(300, 2))
        intervals = question.answer(rows_of(rows), generator=generator).interval
        return float(rows[:, 0].mean()) in intervals[0]

    check_coverage(contains)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("public_size", [None, 100])
def test_rhos_of_all_steps_add_up_to_the_budget(steps, public_size):
    question = asked(steps=steps, public_size=public_size)
    assert zcdp.rho(question.event(), ADD) == pytest.approx(0.5, rel=1e-9)
    assert zcdp.rho(question.event(), ADD) <= 0.5 * (1 + 1e-12)
    assert cost(asked(rho=None, epsilon=1.0, steps=steps, public_size=public_size)) <= 1.0


def test_gaussian_vectors_are_within_their_tail_length():
    rows = np.random.default_rng(0).normal(size=(20_000, 5))
    share = (np.linalg.norm(rows, axis=1) > tail_length(5, 0.01)).mean()
    assert share <= 0.01


@pytest.mark.parametrize(
    "rows", [np.zeros((0, 3)), np.ones((1, 3)), np.full((40, 3), 7.0), np.full((2, 3), math.inf)]
)
def test_hardly_any_rows_give_an_answer(rows):
    assert np.isfinite(coinpress_means(rows, bounds=BOUNDS, stddev=1.0, rho=0.5, delta=1e-6).value).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"stddev": (1.0, 1.0)},
        {"stddev": (1.0, 1.0, -1.0)},
        {"bounds": ()},
        {"bounds": (BOUNDS, BOUNDS, (1.0, 0.0))},
        {"steps": 0},
        {"level": 0.0},
    ],
)
def test_bad_parameters_are_refused(changes):
    with pytest.raises(InvalidParameterError):
        asked(**changes)
