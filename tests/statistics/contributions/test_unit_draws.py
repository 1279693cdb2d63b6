# SPDX-License-Identifier: Apache-2.0
"""A number for each unit: spread as random numbers are, and the same in memory and in an engine."""

from datetime import datetime
from decimal import Decimal

import ibis
import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import chisquare, kstest

from sfumato.errors import InvalidParameterError
from sfumato.statistics.contributions.unit_draws import DRAWS, draw_of, drawn, seed, whole_draw
from sfumato.statistics.sources.tables import private_table

ALPHA = 1e-6  # chance that numbers that are random fail one check
MANY = 50_000
PLACES = np.arange(MANY, dtype=np.int64)

NUMBERED = {
    "one by one": PLACES,
    "downwards": -PLACES,
    "from a billion on": PLACES + 10**9,
    "by the hour": PLACES * 3600,
    "by thousands": PLACES * 1000,
    "by powers of two": PLACES * 4096,
    "by sites": PLACES // 100 * 2**32 + PLACES % 100,
    "by days": 20_000_000 + PLACES // 28 * 100 + PLACES % 28,
    "of 64 bits": np.random.default_rng(0).integers(-(2**63), 2**63 - 1, MANY),
}


def looks_random(draws: np.ndarray) -> bool:
    """Whether draws of units are uniform, and that of one says nothing of the next."""
    shares = draws / DRAWS
    pairs = [np.histogram2d(shares[:-lag], shares[lag:], 16, [[0, 1]] * 2)[0] for lag in (1, 2, 7, 100)]
    found = [kstest(shares, "uniform").pvalue, *(chisquare(pair.ravel()).pvalue for pair in pairs)]
    return min(found) > ALPHA


@pytest.mark.parametrize("numbered", NUMBERED)
def test_the_draws_of_numbers_are_spread_as_random_ones(numbered):
    assert looks_random(whole_draw(NUMBERED[numbered]))


def test_the_draws_of_texts_are_spread_as_random_ones():
    assert looks_random(np.array([draw_of(f"patient {place}") for place in PLACES]))


@pytest.mark.parametrize("weak", [lambda n: n * 7 % DRAWS, lambda n: n * 0x38D01377 % DRAWS])
def test_a_weak_hash_is_noticed(weak):
    assert not looks_random(weak(PLACES))


def test_the_same_lines_draw_in_python_and_in_numpy_and_nothing_overflows():
    numbers = [0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63), 1779033713]
    with np.errstate(all="raise"):
        drawn_at_once = whole_draw(np.array(numbers, dtype=np.int64))
    assert drawn_at_once.tolist() == [whole_draw(number) for number in numbers]
    assert all(0 <= draw < DRAWS for draw in drawn_at_once)
    assert (0x6A09E671 - 1 + 0x243F6A88) ** 2 < 2**63  # the largest product


@pytest.mark.parametrize(
    "equal",
    [(7, 7.0, Decimal(7), True + 6, "7", "7.0", np.int64(7)), (0.0, -0.0, 0), (0.5, Decimal("0.50"), "0.5")],
)
def test_units_that_are_equal_have_one_draw(equal):
    assert len({draw_of(unit) for unit in equal}) == 1


def test_units_that_only_look_alike_have_draws_of_their_own():
    units = [
        "7",
        "07",
        " 7",
        "+7",
        "7.00",
        "1e3",
        b"7",
        "\uff17",
        10**30,
        str(10**30 + 1),
        float("inf"),
        "\ud800",
    ]
    assert len({draw_of(unit) for unit in units}) == len(units)


UNITS = {
    "whole": pa.array([0, 7, -7, 2**62, -(2**63)]),
    "short": pa.array([0, 7, -7], type=pa.int16()),
    "unsigned": pa.array([0, 7, 2**64 - 1], type=pa.uint64()),
    "floats": pa.array([0.0, -0.0, 7.0, -7.5, 0.1, 1e-7, 1e300, float("inf")]),
    "short floats": pa.array([7.0, 0.5], type=pa.float32()),
    "truths": pa.array([True, False]),
    "texts": pa.array(["", "a", "patient 7", "7", "-7", "7.0", "07", "é", "x" * 100, "9" * 19, "9" * 30]),
    "bytes": pa.array([b"", b"a", b"\xff"]),
}


@pytest.mark.parametrize("kind", UNITS)
def test_duckdb_draws_what_memory_draws(kind):
    table = private_table(pa.table({"unit": UNITS[kind]}), privacy_unit="unit")
    rows = table.owned.expression
    draws = rows.select("unit", draw=drawn(seed(rows["unit"], engine="duckdb"), engine="duckdb"))
    found = table.owned.table(draws).to_pydict()
    assert found["draw"] == [draw_of(unit) for unit in found["unit"]]


def test_times_are_drawn_by_their_text_in_memory_and_in_duckdb():
    moments = [datetime(2024, 5, 1), datetime(2024, 5, 1, 12, 30, 1)]
    owned = private_table(pa.table({"unit": moments}), privacy_unit="unit").owned
    rows = owned.expression.select(unit=owned.owner("unit"))
    found = owned.table(rows.select(draw=drawn(rows["unit"], engine="duckdb")))["draw"].to_pylist()
    assert found == [draw_of(moment) for moment in moments]


def test_an_engine_without_a_digest_that_is_known_takes_whole_numbers_only():
    table = ibis.table({"n": "int64", "day": "date", "x": "float64"}, name="t")
    assert seed(table.n, engine="mysql").equals(table.n)
    for unit in (table.day.cast("string"), table.x):
        with pytest.raises(InvalidParameterError, match="in mysql a unit must be a whole number"):
            seed(unit, engine="mysql")
