# SPDX-License-Identifier: Apache-2.0
"""Bugs of tables by which the value of one row stops a query, or makes it fail in another way.

Each is found on a table in DuckDB and the same table with one row more: an error that only one of them raises
is an output. What no engine may fail on is asked in full by `tests/statistics/poison`.
"""

from collections.abc import Callable
from typing import Any

import ibis
import pytest

from sfumato.audit.mechanisms.replay import replay
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns import table_columns
from sfumato.statistics.columns.table_columns import TableColumn
from sfumato.statistics.contributions import owned_rows
from sfumato.statistics.query import Answer, Query, Question
from sfumato.statistics.questions.counts import Sum
from sfumato.statistics.questions.means import Mean
from sfumato.statistics.questions.stable_histograms import StableCounts
from sfumato.statistics.sources import engine_values
from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.statistics.sources.tables import private_table
from sfumato.testing import seeded

from .catalogue import Planted, leaks

__all__ = ["BUGS"]

_MEAN = Mean(bounds=(0, 10), epsilon=1.0)
_NUMBERS = ("DOUBLE", "1.0", "4.0", "9.0")
Column = Callable[[PrivateTable], Any]


def replayed(question: Question[Any], column: Column, kind: str, *values: str) -> Callable[[int], bool]:
    """Return an audit that asks a table of these values but the last, and of all of them."""

    def audit(seed: int) -> bool:
        connection = ibis.duckdb.connect()
        data = [column(_table(connection, kind, known)) for known in (values[:-1], values)]

        def release(given: Any, generator: Any) -> Answer[Any]:
            return question.answer(given, generator=generator)

        claim = Query(question, data[0]).guarantee
        return leaks(lambda: replay(release, *data, claim=claim, generator=seeded(seed)))

    return audit


def _table(connection: Any, kind: str, values: tuple[str, ...]) -> PrivateTable:
    name = ibis.util.gen_name("planted")
    rows = ", ".join(f"('{value}'::{kind})" for value in values)
    connection.raw_sql(f"CREATE TABLE {name} AS SELECT * FROM (VALUES {rows}) AS t(v)")
    return private_table(connection.table(name))


def guard_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owned_rows, "guarded", lambda expression, *, engine: expression)


def any_date_leaves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine_values, "dated", lambda value: value)


def cast_without_guard(patch: pytest.MonkeyPatch) -> None:
    original = table_columns.numeric
    patch.setattr(
        table_columns, "numeric", lambda owned, name: original(owned, name).cast("int32").cast("float64")
    )


def infinity_is_refused(patch: pytest.MonkeyPatch) -> None:
    original = TableColumn.moments

    def moments(self, bounds, *, squares=True):
        rows = self._values()
        if self.owned.row(rows.aggregate(any=rows["value"].isinf().any()))["any"]:
            raise InvalidParameterError("values must be finite.")
        return original(self, bounds, squares=squares)

    patch.setattr(TableColumn, "moments", moments)


BUGS = (
    Planted(
        name="guard-removed",
        bug="a function is computed of values that it fails on, such as the root of a negative number",
        found_by="replay on neighbors",
        plant=guard_removed,
        audit=replayed(_MEAN, lambda table: table.mutate(y=lambda row: row.v.sqrt())["y"], *_NUMBERS, "-1.0"),
    ),
    Planted(
        name="date-that-python-cannot-hold",
        bug="dates leave the engine as they are, and reading one of the year 20000 fails",
        found_by="replay on neighbors",
        plant=any_date_leaves,
        audit=replayed(
            StableCounts(epsilon=1.0, delta=1e-6),
            lambda table: table.categories("v"),
            "DATE",
            "2020-01-01",
            "2020-01-01",
            "20000-01-01",
        ),
    ),
    Planted(
        name="cast-without-guard",
        bug="numbers are cast to a type that does not hold all of them",
        found_by="replay on neighbors",
        plant=cast_without_guard,
        audit=replayed(
            Sum(bounds=(0, 10), epsilon=1.0), lambda table: table["v"], "BIGINT", "1", "2", str(2**40)
        ),
    ),
    Planted(
        name="error-raised-by-a-row",
        bug="an infinite value is refused with an error of our own, where others are clipped",
        found_by="replay on neighbors",
        plant=infinity_is_refused,
        audit=replayed(_MEAN, lambda table: table["v"], *_NUMBERS, "inf"),
    ),
)
