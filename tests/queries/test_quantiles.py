# SPDX-License-Identifier: Apache-2.0
"""Quantiles of groups: all draws together cost what is charged, also for units in several groups."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting import composition
from sfumato.accounting.guarantee import Relation
from sfumato.queries.grouped import group_by
from sfumato.queries.quantiles import Quantile
from sfumato.queries.spending import Reach, Spend
from sfumato.statistics.sources.tables import private_table

KEYS = ["a", "b", "c"]
BOUNDS = (0.0, 8.0)
EPSILON = 1.5

rows_of_units = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(KEYS), st.integers(0, 8)), min_size=1, max_size=14
)


def reach(rows: int, groups: int, relation: str = "add-remove") -> Reach:
    return Reach(relation=Relation.parse(relation), rows=rows, groups=groups, most_groups=groups, unit="who")


def log_density(counts: np.ndarray, q: float, rate: float) -> np.ndarray:
    """Return the log density of a point in each of the bins, by its definition."""
    below = np.cumsum(counts) - counts
    wanted = q * counts.sum()
    score = -np.maximum(0, np.maximum(below - wanted, wanted - below - counts))
    return rate * score - np.log(np.exp(rate * score).sum())


WITHIN = [(3, {}), (4, {"rows_per_group": 2}), (3, {"rows_per_group": 1})]


def losses(data, neighbor, terms, q, relation) -> list[np.ndarray]:
    """Return the privacy loss of each outcome in each group."""
    bound, within = terms
    statistic = Quantile(column="x", q=q, bounds=BOUNDS, resolution=8)

    def counted(rows):
        table = private_table(rows, privacy_unit="who", contribution_bound=bound)
        groups = group_by(table, "key", keys=KEYS, **within)
        bins = statistic.bins()[0]
        found = groups.source().grouped().compute((), (bins,)).bins[bins]
        return [each.histogram(bins.edges) for each in found], groups.reach(Relation.parse(relation))

    first, reached = counted(data)
    second, _ = counted(neighbor)
    spend = Spend(amount=EPSILON, gaussian=False)
    question = statistic._in_one_group(spend, reached, level=0.95)
    rate = question.share / (2 * reached.rows * max(q, 1 - q))
    return [
        log_density(one, q, rate) - log_density(other, q, rate)
        for one, other in zip(first, second, strict=True)
    ]


def spread(found: list[np.ndarray]) -> float:
    """Return the range of the losses of all groups together: their outcomes are independent."""
    return sum(loss.max() - loss.min() for loss in found)


def frame(rows) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["who", "key", "x"]).astype({"x": float})


@settings(max_examples=15, deadline=None)
@given(rows=rows_of_units, terms=st.sampled_from(WITHIN), q=st.sampled_from([0.1, 0.5, 0.9]))
def test_the_losses_of_all_groups_together_lie_within_the_charge(rows, terms, q):
    data = frame(rows)
    without = data[data.who != rows[0][0]]
    assert spread(losses(data, without, terms, q, "add-remove")) <= EPSILON * (1 + 1e-9)


@settings(max_examples=15, deadline=None)
@given(rows=rows_of_units, others=rows_of_units, terms=st.sampled_from(WITHIN), q=st.sampled_from([0.1, 0.5]))
def test_so_do_the_losses_of_a_unit_that_is_replaced(rows, others, terms, q):
    data, unit = frame(rows), rows[0][0]
    new = frame([(unit, key, x) for _, key, x in others])  # as many rows as it likes, in other groups
    replaced = pd.concat([data[data.who != unit], new], ignore_index=True)
    assert spread(losses(data, replaced, terms, q, "replace-one")) <= EPSILON * (1 + 1e-9)


def test_a_replaced_unit_needs_twice_the_range_of_an_added_one():
    data = frame([(0, "a", 0.0), (1, "a", 4.0), (0, "b", 8.0), (1, "b", 4.0), (0, "c", 0.0), (1, "c", 1.0)])
    moved = data.assign(x=np.where(data.who == 0, 8 - data.x, data.x))
    terms = (3, {"rows_per_group": 1})
    used = spread(losses(data, moved, terms, 0.5, "replace-one"))
    assert 0.5 * EPSILON < used <= EPSILON
    assert spread(losses(data, moved, terms, 0.5, "add-remove")) > EPSILON  # the test has power


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("interval", [False, True])
def test_the_event_adds_up_to_the_epsilon_that_was_given(relation, interval):
    statistic = Quantile(column="x", q=0.5, bounds=BOUNDS, interval=interval)
    for rows, groups in ((1, 1), (3, 1), (2, 4)):
        reached = reach(rows, groups, relation)
        event = statistic.event(Spend(amount=1.0, gaussian=False), reached)
        cost = composition.basic_epsilon(event, delta=0.0, relation=reached.relation)
        assert 0.999 < cost <= 1.0


def test_draws_of_a_unit_in_more_groups_cost_more():
    statistic = Quantile(column="x", q=0.5, bounds=BOUNDS)
    one, many = (
        statistic._in_one_group(Spend(amount=1.0, gaussian=False), reach(2, groups), level=0.95).epsilon
        for groups in (1, 5)
    )
    assert many == pytest.approx(one / 5)


def test_ranks_are_off_by_about_what_is_expected():
    data = pd.DataFrame({"x": np.arange(1000) / 125})
    query = group_by(private_table(data)).agg(m=Quantile(column="x", q=0.5, bounds=BOUNDS), epsilon=0.5)
    expected = query.explain().statistics[0]
    assert expected.unit == "ranks"
    off = [abs(query.release().values["m"][0] * 125 - 500) for _ in range(40)]
    assert np.mean(np.array(off) <= expected.error + 1) >= 0.85
    assert math.isfinite(expected.error)


@pytest.mark.parametrize(
    "wrong", [{"q": 1.5}, {"resolution": 0}, {"error": 2.0}, {"bounds": (1, 1)}, {"share": 0}]
)
def test_a_quantile_is_checked_at_birth(wrong):
    with pytest.raises(ValueError):
        Quantile(**{"column": "x", "q": 0.5, "bounds": BOUNDS} | wrong)
