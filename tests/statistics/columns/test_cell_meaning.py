# SPDX-License-Identifier: Apache-2.0
"""What a cell says depends on that cell alone, however a reader typed the column that it is in."""

import io
import math
import warnings
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.generative.tables.bought_kinds import kind_counts
from sfumato.generative.tables.cells import cells_of, numbers_of, text_of
from sfumato.statistics.columns.cell_meaning import key_of, numbers_said, said

TOKENS = {
    "small": ["1", "2", "03", "+4", "-5", " 6", "7 "],
    "large": ["1234567890123456789", "18446744073709551615", "1000000000000000000000000000000"],
    "id": ["123456789012345678", "999999999999999", "9007199254740993"],
    "decimal": ["0.1", "2.50", "1e-7", "1E5", ".5", "5.", "123456.789012345", "0.3", "1.005"],
    "word": ["tea", "Éire", "-", "1_000", "1d5", "0x10", "NAN", "1e"],
    "missing": ["", "NULL", "NA", "None", "nan", "  "],
    "infinite": ["inf", "-inf", "Infinity", "1e400", "1e18"],
    "truth": ["True", "FALSE", "true", "False"],
    "date": ["2020-01-01", "2020-01-02 10:00", "01/02/2020"],
    "digits": ["\u0661\u0662", "\u00a08", "\uff19"],
}
ODD = [token for tokens in TOKENS.values() for token in tokens]


def _table(tokens):
    return io.StringIO("a,b\n" + "".join(f"{token},u\n" for token in tokens))


def _polars(tokens):
    polars = pytest.importorskip("polars")
    return polars.read_csv(_table(tokens).getvalue().encode(), infer_schema_length=None)


READERS = {
    "default": lambda tokens: pd.read_csv(_table(tokens)),
    "str": lambda tokens: pd.read_csv(_table(tokens), dtype=str),
    "object": lambda tokens: pd.read_csv(_table(tokens)).astype(object),
    "nullable": lambda tokens: pd.read_csv(_table(tokens), dtype_backend="numpy_nullable"),
    "pyarrow": lambda tokens: pd.read_csv(_table(tokens), dtype_backend="pyarrow"),
    "converted": lambda tokens: pd.read_csv(_table(tokens)).convert_dtypes(),
    "round trip": lambda tokens: pd.read_csv(_table(tokens), float_precision="round_trip"),
    "fast": lambda tokens: pd.read_csv(_table(tokens), float_precision="legacy"),
    "dates": lambda tokens: pd.read_csv(_table(tokens), parse_dates=["a"], date_format="ISO8601"),
    "category": lambda tokens: pd.read_csv(_table(tokens)).astype({"a": "category"}),
    "list": lambda tokens: {"a": tokens},
    "polars": _polars,
}


def _canonical(frame, rows):
    cells = cells_of(frame["a"])
    numbers = numbers_of(cells)
    kinds = [kind_counts(cells[place : place + 1]).tolist() for place in range(rows)]
    return [(text_of(cells[i]), "-" if math.isnan(numbers[i]) else numbers[i], kinds[i]) for i in range(rows)]


def _read(reader, tokens):
    """Return a table, or None if the reader itself refuses the tokens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return READERS[reader](tokens)
        except (ValueError, OverflowError, TypeError) as error:
            assert reader in ("pyarrow", "polars"), error
        except Exception as error:
            assert type(error).__module__.startswith("polars"), error
    return None


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", TOKENS)
def test_one_cell_changes_what_no_other_cell_of_a_column_says(kind, reader):
    """Each column of tokens, alone and beside each odd token, in the type that the reader chose."""
    if reader == "dates" and kind not in ("date", "word", "truth"):
        pytest.skip("pandas parses numbers as years, which is the caller's choice")
    rows = [row for row in TOKENS[kind] if not (reader == "dates" and "/" in row)]
    compared = 0
    for some in (rows, rows[:1] * 3, rows[-1:] * 3):
        expected = [_canonical({"a": [row]}, 1)[0] for row in some]
        for odd in [None, *ODD]:
            frame = _read(reader, some if odd is None else [*some, odd])
            if frame is not None:
                assert _canonical(frame, len(some)) == expected, (some, odd)
                compared += 1
    assert compared >= 2 * len(ODD) or reader in ("pyarrow", "polars")


@pytest.mark.parametrize("last", ["x", "", "NULL", "0.5"])
def test_decimals_are_the_same_whatever_parser_reads_them(last):
    """pandas' own parser of numbers is off by a bit or two; text is read by another one."""
    draws = np.random.default_rng(0)
    texts = [
        f"{draws.random() * 10.0 ** int(draws.integers(-8, 9)):.{digits}g}"
        for digits in range(1, 16)
        for _ in range(200)
    ]
    for reader in ("default", "fast", "round trip"):
        found, clean = _read(reader, [*texts, last]), _read(reader, texts)
        keys = [[key_of(cell) for cell in cells_of(frame["a"])][: len(texts)] for frame in (found, clean)]
        assert keys[0] == keys[1] == [key_of(text) for text in texts]


@given(
    st.one_of(
        st.floats(),
        st.integers(),
        st.booleans(),
        st.text(),
        st.decimals(),
        st.fractions(),
        st.dates(),
        st.datetimes(),
        st.binary(),
        st.complex_numbers(),
        st.none(),
    )
)
def test_a_key_is_its_own_key_and_nothing_raises(cell):
    found = key_of(cell)
    assert found is None or key_of(found) == found


@given(st.lists(st.floats()))
def test_an_array_says_what_its_cells_say(cells):
    expected = [math.nan if number is None else number for number in map(said, cells)]
    np.testing.assert_array_equal(numbers_said(np.array(cells, dtype=float)), np.array(expected, dtype=float))


def test_values_of_each_type_that_say_the_same_have_one_key():
    ones = [
        1,
        1.0,
        True,
        np.int8(1),
        np.float32(1),
        np.bool_(True),
        "1",
        "01",
        " 1.0",
        "TRUE",
        Decimal(1),
        Fraction(1),
        1 + 0j,
    ]
    assert {key_of(one) for one in ones} == {"1"}
    days = [
        date(2020, 1, 1),
        datetime(2020, 1, 1),
        pd.Timestamp("2020-01-01"),
        np.datetime64("2020-01-01"),
        "2020-01-01 00:00",
    ]
    assert {key_of(day) for day in days} == {"2020-01-01"}
    assert [key_of(cell) for cell in (pd.NaT, pd.NA, None, math.nan, b"x", [1], 2**53, 1e15, "1e400")] == [
        None
    ] * 9
    assert key_of(999_999_999_999_999) == "999999999999999" and key_of(0.1 + 0.2) == "0.3"
