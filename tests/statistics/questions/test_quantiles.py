# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from scipy.stats import binomtest, kstest, laplace, norm

from sfumato.accounting.events import ExponentialDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import ArrayColumn, column_of
from sfumato.statistics.query import cost
from sfumato.statistics.questions.many_quantiles import Quantiles, quantiles
from sfumato.statistics.questions.quantiles import Quantile, median, quantile
from sfumato.testing import seeded

ALPHA = 1e-6


BOUNDS = (-10.0, 10.0)


NINE = tuple((i + 1) / 10 for i in range(9))


ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE


class Counted:
    """A column that only counts, as an engine does."""

    name, privacy_unit, contribution_bound = "counted", "row", 1

    def __init__(self, values):
        self.histogram = ArrayColumn(np.asarray(values, dtype=float)).histogram

    def moments(self, bounds):
        raise NotImplementedError

    def ordered(self, bounds):
        raise NotImplementedError


def normal(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=rows)


def rank_error(values, found, qs) -> float:
    """The mean distance in rank from the wanted quantiles."""
    return float(np.abs(np.searchsorted(np.sort(values), found) - np.array(qs) * len(values)).mean())


@pytest.mark.parametrize("data", [column_of, Counted])
def test_with_a_huge_epsilon_quantiles_are_those_of_numpy(data):
    values = normal(2000)
    found = quantiles(data(values), NINE, bounds=BOUNDS, epsilon=1e6, generator=seeded(0)).value
    assert np.allclose(found, np.quantile(values, NINE), atol=5e-3)
    assert median(data(values), bounds=BOUNDS, epsilon=1e6).value == pytest.approx(
        np.median(values), abs=5e-3
    )


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_quantile_is_replayed_on_neighbors(neighbors, relation, q):
    values = [*normal(60), 0.0, 0.0, 0.0, math.inf]
    other = [*values[1:], 9.5] if relation is REPLACE else values[1:]
    for level in (None, 0.9):
        question = Quantile(q=q, bounds=BOUNDS, epsilon=1.0, relation=relation, level=level)
        for change in (other, [-3.0, *other] if relation is ADD else other[::-1]):
            data, neighbor = (
                (values, change) if len(change) < len(values) or relation is REPLACE else (other, change)
            )
            neighbors.replay(question, column_of(data), column_of(neighbor), seed=3)


def test_an_interval_for_the_population_is_replayed_on_neighbors(neighbors):
    values = normal(60)
    question = Quantile(q=0.5, bounds=BOUNDS, epsilon=1.0, level=0.9, population=True)
    neighbors.replay(question, column_of(values), column_of(values[1:]), seed=3)


def test_units_of_several_rows_are_replayed(neighbors):
    owners = np.repeat(np.arange(20), 3)
    values = normal(60)
    data = column_of(values, owners=owners, contribution_bound=3)
    without = column_of(values[3:], owners=owners[3:], contribution_bound=3)
    question = Quantile(q=0.5, bounds=BOUNDS, epsilon=1.0, contribution_bound=3)
    calls = neighbors.replay(question, data, without)
    assert calls[0].mechanism.sensitivity == 3  # in halves of a rank: 3 rows, a half each


def test_the_rank_error_of_a_median_has_the_stated_law():
    # Of evenly spaced values, the error in rank is Laplace: scale 2 * (1/2) / epsilon.
    column, generator = column_of(np.arange(801) / 801), seeded(2)
    question = Quantile(q=0.5, bounds=(0.0, 1.0), epsilon=0.1)
    found = [question.answer(column, generator=generator).value for _ in range(1000)]
    errors = np.array(found) * 801 - 400.5
    assert kstest(errors, laplace(scale=10).cdf).pvalue > ALPHA
    assert kstest(errors, laplace(scale=20).cdf).pvalue < ALPHA  # what sensitivity 1 would give


def test_halving_is_nearer_than_asking_one_by_one():
    together, apart = [], []
    for seed in range(15):
        values, generator = normal(1000, seed), seeded(seed)
        found = quantiles(values, NINE, bounds=BOUNDS, epsilon=1.0, generator=generator).value
        together.append(rank_error(values, found, NINE))
        alone = [quantile(values, q, bounds=BOUNDS, epsilon=1 / 9, generator=generator).value for q in NINE]
        apart.append(rank_error(values, sorted(alone), NINE))
    assert np.mean(together) < 0.6 * np.mean(apart)


HARD = {  # data on which the exponential mechanism alone draws far off, and their bounds
    "normal": (lambda numbers: numbers.normal(size=1000), (-10.0, 10.0)),
    "thin tails": (lambda numbers: numbers.standard_t(2, size=1000), (-100.0, 100.0)),
    "wide bounds": (lambda numbers: numbers.standard_t(2, size=1000), (-1e4, 1e4)),
    "ties": (lambda numbers: np.round(numbers.normal(40, 15, size=1000)), (0.0, 100.0)),
    "a gap": (
        lambda numbers: numbers.normal(size=1000) + 100 * (numbers.random(1000) < 0.52),
        (-200.0, 200.0),
    ),
}


@pytest.mark.parametrize("q", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("data", list(HARD))
def test_intervals_cover_at_least_as_often_as_stated_whatever_the_data(data, q):
    (drawn, bounds), generator, numbers = HARD[data], seeded(4), np.random.default_rng(4)
    question = Quantile(q=q, bounds=bounds, epsilon=1.0, level=0.95)
    covered = 0
    for _ in range(200):
        values = drawn(numbers)
        covered += (
            np.quantile(values, q) in question.answer(ArrayColumn(values), generator=generator).interval
        )
    assert covered >= 190


@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize("q", [0.01, 0.5, 0.99])
def test_few_releases_miss_even_if_every_draw_is_on_the_wrong_side(q, side, monkeypatch):
    # The worst that can happen: both points are drawn just beyond the quantile, on one side of it.
    values = np.arange(1000.0)
    truth = np.quantile(values, q)

    def wrong(*args, **kwargs):
        return (truth + side) / 1000 * 2.0**44  # in parts of the grid

    monkeypatch.setattr("sfumato.statistics.questions.ranks.draw", wrong)
    question, generator = Quantile(q=q, bounds=(0.0, 1000.0), epsilon=1.0, level=0.9), seeded(5)
    covered = [
        truth in question.answer(ArrayColumn(values), generator=generator).interval for _ in range(600)
    ]
    assert binomtest(sum(covered), 600, 0.9, alternative="less").pvalue > ALPHA
    assert not all(covered)  # the test has power: some of the wrong ends are stated


@pytest.mark.parametrize("q", [0.5, 0.2])
def test_intervals_for_the_population_cover_as_stated(q):
    generator, numbers = seeded(4), np.random.default_rng(4)
    question = Quantile(q=q, bounds=BOUNDS, epsilon=1.0, level=0.95, population=True)
    covered = sum(
        norm.ppf(q) in question.answer(ArrayColumn(numbers.normal(size=1000)), generator=generator).interval
        for _ in range(400)
    )
    assert covered >= 0.95 * 400


def test_where_values_lie_evenly_ends_are_kept_and_near_the_quantile():
    values, generator = np.arange(10_000) / 10_000, seeded(6)
    question = Quantile(q=0.5, bounds=(0.0, 1.0), epsilon=1.0, level=0.95)
    answers = [question.answer(ArrayColumn(values), generator=generator) for _ in range(300)]
    widths = np.array([answer.interval.upper - answer.interval.lower for answer in answers])
    assert np.median(widths) == pytest.approx(44 / 10_000, rel=0.1)  # twice what is aimed for: 22 ranks
    fell_back = [any("the bound itself" in note for note in answer.notes) for answer in answers]
    assert 0 < sum(fell_back) < 0.05 * 300
    assert fell_back == [answer.interval.lower == 0 or answer.interval.upper == 1 for answer in answers]


def test_an_interval_for_the_population_is_wider_and_says_so():
    values = normal(1000)
    given = {"bounds": BOUNDS, "epsilon": 1.0, "level": 0.95, "generator": seeded(1)}
    noise, both = median(values, **given).interval, median(values, **given, population=True).interval
    assert both.upper - both.lower > 1.4 * (noise.upper - noise.lower)
    assert [part.value for part in both.covers] == ["noise", "sampling"]


def test_a_value_that_most_rows_share_is_found():
    ages = np.r_[np.full(700, 37.0), np.arange(300) / 3]
    for data in (ages, Counted(ages)):
        assert median(data, bounds=(0, 120), epsilon=1.0, generator=seeded(0)).value == pytest.approx(
            37, abs=2e-3
        )
    low, high = quantiles(ages, (0.4, 0.95), bounds=(0, 120), epsilon=5.0, generator=seeded(0)).value
    assert low == pytest.approx(37, abs=1e-3)
    assert np.mean(ages <= high) == pytest.approx(0.95, abs=0.02)


def test_a_constant_column_one_row_and_no_row_give_an_answer():
    assert median(np.full(500, 2.0), bounds=BOUNDS, epsilon=1.0).value == pytest.approx(2, abs=1e-6)
    for rows in ([1.0], [], [math.nan]):
        assert -10 <= median(rows, bounds=BOUNDS, epsilon=1.0).value <= 10


def test_events_add_up_to_epsilon():
    for question in (
        Quantile(q=0.3, bounds=BOUNDS, epsilon=0.7),
        Quantile(q=0.3, bounds=BOUNDS, epsilon=0.7, level=0.9),
        Quantile(q=0.3, bounds=BOUNDS, epsilon=0.7, level=0.9, population=True),
        Quantiles(qs=NINE, bounds=BOUNDS, epsilon=0.7),
        Quantiles(qs=(0.1, 0.2, 0.3), bounds=BOUNDS, epsilon=0.1, delta=1e-6),
    ):
        assert 0.6 < cost(question) / (0.1 if question.delta else 0.7) <= 1.0
    assert Quantile(q=0.5, bounds=BOUNDS, epsilon=0.7).event() == ExponentialDpEvent(0.7)


@pytest.mark.parametrize(
    "changes",
    [
        {"bounds": (1.0, 0.0)},
        {"bounds": (0.0, math.inf)},
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"delta": 1.0},
        {"q": 1.1},
        {"q": math.nan},
        {"level": 1.0},
        {"population": True},
        {"relation": Relation.ZERO_OUT},
        {"level": 0.9, "population": True, "relation": REPLACE},
    ],
)
def test_bad_parameters_are_refused(changes):
    with pytest.raises(InvalidParameterError):
        Quantile(**({"q": 0.5, "bounds": BOUNDS, "epsilon": 1.0} | changes))


def test_a_release_is_charged_before_the_data_is_read(account):
    class Broken(Counted):
        def histogram(self, edges):
            raise RuntimeError("row 7 says 42")

    broken = Broken.__new__(Broken)
    with pytest.raises(Exception, match="could not be read") as raised:
        median(broken, bounds=BOUNDS, epsilon=0.5, account=account)
    assert "42" not in str(raised.value)
    assert account.spent().epsilon == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(("q", "bounds"), [(0.0, (0, 1000)), (1.0, (-1000, 1)), (0.001, (0, 1000))])
@pytest.mark.parametrize("epsilon", [1e3, 1e4, 1e6])
def test_a_quantile_at_an_end_gets_no_worse_with_a_larger_epsilon(q, bounds, epsilon):
    found = quantile(np.linspace(0, 1, 3000), q, bounds=bounds, epsilon=epsilon, level=0.95)
    assert found.value == pytest.approx(round(q), abs=0.1)
    assert found.interval.upper - found.interval.lower < 0.1
