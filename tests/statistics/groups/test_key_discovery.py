# SPDX-License-Identifier: Apache-2.0
"""Private key discovery: which law, what it costs, and what a unit can do."""

import math
from decimal import Decimal, localcontext
from itertools import pairwise

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from sfumato.accounting import Relation, price
from sfumato.accounting.events import leaves
from sfumato.errors import InvalidParameterError
from sfumato.statistics.groups import key_discovery
from sfumato.statistics.groups.key_discovery import KeyDiscovery, KeyThreshold
from sfumato.statistics.query import cost
from sfumato.statistics.sources.tables import private_table
from sfumato.testing import seeded

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

ALPHA = 1e-6  # chance that correct code fails one check on a fresh seed


def chances(epsilon: float, most: int) -> list[Decimal]:
    """The chance that a key of n units is named, n = 0 ... 2m + 2, added up noise by noise."""
    with localcontext() as context:
        context.prec = 60
        weights = {x: (-Decimal(epsilon) * abs(x)).exp() for x in range(-most, most + 1)}
        total = sum(weights.values())
        return [sum(w for x, w in weights.items() if n + x > most) / total for n in range(2 * most + 3)]


@settings(max_examples=40, deadline=None)
@given(epsilon=st.floats(0.05, 5), log_delta=st.floats(-25, -1))
def test_each_key_is_decided_within_its_epsilon_and_delta(epsilon, log_delta):
    mechanism = KeyThreshold(epsilon=epsilon, delta=math.exp(log_delta))
    named = chances(epsilon, mechanism.threshold)
    charged = mechanism.event()
    assert charged.delta <= mechanism.delta
    with localcontext() as context:
        context.prec = 60
        factor, delta = Decimal(charged.epsilon).exp(), Decimal(charged.delta)
        slack = Decimal(1) + Decimal(10) ** -40  # rounding of these 60 digits
        for fewer, more in pairwise(named):
            for a, b in [(fewer, more), (more, fewer), (1 - fewer, 1 - more), (1 - more, 1 - fewer)]:
                assert a <= (factor * b + delta) * slack
        if mechanism.threshold > 1:  # one less would cost more delta than was asked for
            assert chances(epsilon, mechanism.threshold - 1)[1] > Decimal(mechanism.delta)


def test_the_check_of_epsilon_and_delta_has_power():
    named = chances(1.0, 11)
    pairs = pairwise(named)
    assert any(more > Decimal("0.9").exp() * fewer + Decimal("1e-5") for fewer, more in pairs)
    assert named[1] > Decimal("1e-6")


@pytest.mark.parametrize("count", [1, 3, 4, 6])
def test_a_key_is_named_as_often_as_the_law_says(count):
    mechanism, draws = KeyThreshold(epsilon=0.7, delta=0.05), 40_000
    hits = int(mechanism.release(np.full(draws, count), generator=seeded(count)).sum())
    chance = float(chances(0.7, mechanism.threshold)[count])
    assert binomtest(hits, draws, chance).pvalue > ALPHA
    assert binomtest(hits, draws, min(1.15 * chance, 0.999)).pvalue < ALPHA  # 15% off is caught


def test_the_threshold_is_that_of_the_paper():
    # Desfontaines et al. 2020, arXiv:2006.03684: ceil(1/e ln((exp(e) + 2d - 1) / ((exp(e) + 1) d)))
    for epsilon, delta in [(1.0, 1e-5), (0.1, 1e-8), (3.0, 1e-3), (0.5, 1e-12)]:
        term = (math.exp(epsilon) + 2 * delta - 1) / ((math.exp(epsilon) + 1) * delta)
        assert KeyThreshold(epsilon=epsilon, delta=delta).threshold == math.ceil(math.log(term) / epsilon)


def test_keys_of_nobody_are_never_named_and_common_ones_always():
    mechanism = KeyThreshold(epsilon=1.0, delta=1e-3)
    sure = 2 * mechanism.threshold + 1
    assert not mechanism.release(np.zeros(5000, dtype=np.int64)).any()
    assert mechanism.release(np.full(5000, sure)).all()


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
@pytest.mark.parametrize("bound", [1, 2, 5, 40, 300])
def test_what_all_keys_of_a_unit_cost_is_at_most_what_was_asked_for(bound, relation):
    question = KeyDiscovery(
        columns=("city",), epsilon=1.0, delta=1e-6, relation=relation, contribution_bound=bound
    )
    assert cost(question) <= 1.0 * (1 + 1e-9)
    assert price(question.event(), delta=1e-6, relation=relation).epsilon > 0.8  # and not much is wasted


def test_many_keys_of_a_unit_cost_less_than_their_sum():
    threshold = key_discovery._per_key(1.0, 1e-6, 300).threshold
    assert threshold < 0.6 * KeyThreshold(epsilon=1 / 300, delta=1e-6 / 300).threshold


def counted(frame: pd.DataFrame, bound: int, unit: str | None = "unit") -> dict[str, int]:
    table = private_table(frame, privacy_unit=unit, contribution_bound=bound)
    data = table.keys("key", epsilon=1.0, delta=1e-6).data
    found = data.owned.table(data.counts()).to_pydict()
    return dict(zip(found["key0"], found["units"], strict=True))


ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")), max_size=25)


@settings(max_examples=12, deadline=None)
@given(rows=ROWS, bound=st.integers(1, 2), removed=st.sampled_from("abcd"))
def test_a_unit_moves_at_most_so_many_counts_each_by_one(rows, bound, removed):
    frame = pd.DataFrame(rows, columns=["unit", "key"], dtype="string")
    before, after = counted(frame, bound), counted(frame[frame.unit != removed], bound)
    moves = [before.get(key, 0) - after.get(key, 0) for key in "xyz"]
    assert set(moves) <= {0, 1} and sum(moves) <= bound


def test_a_replaced_unit_moves_twice_as_many_counts_and_is_charged_for_them():
    before = pd.DataFrame({"unit": ["a", "a", "b"], "key": ["x", "y", "x"]})
    after = pd.DataFrame({"unit": ["a", "a", "b"], "key": ["z", "w", "x"]})
    one, two = counted(before, 2), counted(after, 2)
    moved = sum(abs(one.get(key, 0) - two.get(key, 0)) for key in "wxyz")
    for relation in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
        question = KeyDiscovery(
            columns=("key",), epsilon=1.0, delta=1e-6, relation=relation, contribution_bound=2
        )
        assert sum(leaves(question.event()).values()) == 2 * relation.diameter
    assert moved == 4


def test_a_unit_counts_once_for_a_key_however_many_rows_it_has():
    frame = pd.DataFrame({"unit": ["a"] * 100 + ["b"], "key": ["x"] * 101})
    assert counted(frame, 5) == {"x": 2}
    assert counted(frame, 1, unit=None) == {"x": 101}


def test_with_the_same_noise_a_unit_changes_only_keys_of_its_own():
    frame = pd.DataFrame({"unit": np.repeat(np.arange(60), 2), "key": ["x", "y"] * 60})
    frame.loc[:40, "key"] = "z"
    seen = []
    for data in (frame, frame[frame.unit != 3]):  # unit 3 has rows of z only; every key stays
        table = private_table(data, privacy_unit="unit", contribution_bound=2)
        query = table.keys("key", epsilon=0.3, delta=0.01)
        answers = [query.question.answer(query.data, generator=seeded(seed)) for seed in range(20)]
        seen.append([set(answer.value) for answer in answers])
    assert all(one ^ two <= {"z"} for one, two in zip(*seen, strict=True))
    assert len({frozenset(one) for one in seen[0]}) > 1  # the noise decides something here


def test_keys_come_sorted_and_without_missing_ones():
    frame = pd.DataFrame({"key": ["b"] * 300 + ["a"] * 200 + ["c"] * 400 + [None] * 500})
    table = private_table(frame)
    assert table.keys("key", epsilon=1.0, delta=1e-6).release().value == ["a", "b", "c"]


def test_keys_of_several_columns_are_tuples():
    frame = pd.DataFrame({"a": [1, 2] * 200, "b": ["x"] * 400})
    found = private_table(frame).keys("b", "a", epsilon=1.0, delta=1e-6).release()
    assert found.value == [("x", 1), ("x", 2)]


def test_more_keys_than_one_batch_are_streamed():
    numbers = np.concatenate([np.arange(300_000), np.repeat([7, 299_999], 100)])
    found = private_table(pd.DataFrame({"key": numbers})).keys("key", epsilon=1.0, delta=1e-10).release()
    assert found.value == [7, 299_999]


def test_an_empty_table_has_no_keys():
    empty = private_table(pd.DataFrame({"key": pd.array([], dtype="string")}))
    assert empty.keys("key", epsilon=1.0, delta=1e-6).release().value == []


def test_what_cannot_be_a_key_is_refused():
    table = private_table(pa.table({"x": [1.5], "s": ["a"]}))
    with pytest.raises(InvalidParameterError, match="grouped by text"):
        table.keys("x", epsilon=1.0, delta=1e-6)
    with pytest.raises(InvalidParameterError, match="each once"):
        table.keys("s", "s", epsilon=1.0, delta=1e-6)
    with pytest.raises(InvalidParameterError, match="each once"):
        table.keys(epsilon=1.0, delta=1e-6)
    with pytest.raises(InvalidParameterError, match="delta"):
        table.keys("s", epsilon=1.0, delta=0.0)


def test_the_plan_shows_the_query_and_the_threshold():
    table = private_table(pd.DataFrame({"s": ["secret"]}))
    plan = table.keys("s", epsilon=1.0, delta=1e-6).plan()
    assert "ORDER BY" in plan  # so that the same seed gives each key the same noise
    assert "COUNT(*)" in plan and "noise on -14..14 > 14" in plan and "secret" not in plan


def test_keys_that_a_collation_holds_for_equal_are_different_ones():
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE TABLE people (who VARCHAR COLLATE nocase)")
    connection.con.executemany("INSERT INTO people VALUES (?)", [["ANN"], *[["ann"]] * 300, ["ANN"]])
    table = private_table(connection.table("people"))
    counted = table.keys("who", epsilon=1.0, delta=1e-6).data.counts()
    assert sorted(table.owned.table(counted).to_pydict()["units"]) == [2, 300]
    assert table.keys("who", epsilon=1.0, delta=1e-6).release().value == ["ann"]
