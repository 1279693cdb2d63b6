# SPDX-License-Identifier: Apache-2.0
"""The cases of queries: workloads, grouped quantiles, ranges and joins, with near neighbors."""

from functools import lru_cache
from typing import Any

import ibis
import pyarrow as pa

from attacks.releases import DELTA, Case
from sfumato import queries as q
from sfumato.accounting.guarantee import Relation
from sfumato.queries.bin_blocks import BinBlocks
from sfumato.queries.group_ranges import GroupRanges
from sfumato.queries.ranges import Ranges
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.query import Query
from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.statistics.sources.tables import private_table

__all__ = ["workload_cases"]

Rows = tuple[tuple[str, str, float], ...]

_B: dict[str, Any] = {"bounds": (0.0, 1.0)}
_ROWS: Rows = (("p", "a", 0.5), ("p", "b", 0.5), ("q", "a", 1.0), ("q", "b", 0.0))
_UNIT: Rows = (("u", "a", 1.0), ("u", "b", 1.0), ("u", "a", 1.0), ("u", "b", 1.0))


def workload_cases() -> tuple[Case, ...]:
    """Return the cases of `sfumato.queries`.

    Returns:
        The cases.
    """
    numbers = {"n": q.count(), "total": q.sum("x", **_B)}
    within: dict[str, Any] = {"rows_per_group": 1, "groups_per_unit": 2}
    return (
        _case("workload", numbers),
        _case("workload, Gaussian", numbers, delta=DELTA),
        _case("workload, in few groups", numbers, **within),
        _case("grouped medians", {"mid": q.median("x", **_B)}, **within),
        _case("joined workload", numbers, joined=True),
        _ranges(),
        _group_ranges(),
        _group_ranges(**within),
    )


@lru_cache(maxsize=8)
def _table(rows: Rows, *, joined: bool) -> PrivateTable:
    """Return the rows as a table, opened once; joined, beside a public one with the same keys."""
    who, key, x = zip(*rows, strict=True)
    frame = pa.table({"who": list(who), "key": list(key), "x": list(x)})
    connection = ibis.duckdb.connect(threads=1)
    made = connection.create_table("rows", frame)
    table = private_table(made, privacy_unit="who", contribution_bound=2)
    public = pa.table({"key": ["a", "b"], "place": ["a", "b"]})
    return table.join(public, on="key") if joined else table


def _case(
    subject: str, asked: dict[str, Any], *, delta: float = 0.0, joined: bool = False, **within: Any
) -> Case:
    """Return the case of a query of two groups."""

    by = "place" if joined else "key"

    def query(rows: Rows) -> q.Aggregation:
        groups = q.group_by(_table(rows, joined=joined), by, keys=["a", "b"], **within)
        return groups.agg(**asked, epsilon=1.0, delta=delta)

    def run(rows: Rows, generator: Any) -> object:
        made = query(rows)
        found = made.workload.answer(made.source, generator=generator).value
        return tuple(cell.value for cells in found.cells.values() for cell in cells)

    return Case(
        subject=subject,
        audits="agg",
        run=run,
        first=_ROWS,
        second=_ROWS + _UNIT,
        claim=query(_ROWS).guarantee,
        share=0.25,  # a run takes milliseconds
    )


def _group_ranges(**within: Any) -> Case:
    """Return the case of ranges of two groups, with one noise for both."""

    def asked(rows: Rows) -> q.Grouped:
        return q.group_by(_table(rows, joined=False), "key", keys=["a", "b"], **within)

    question = GroupRanges(
        column="x",
        blocks=BinBlocks(**_B, bins=2),
        columns=("key",),
        reach=asked(_ROWS).reach(Relation.ADD_REMOVE),
        contribution_bound=2,
        epsilon=1.0,
    )

    def run(rows: Rows, generator: Any) -> object:
        found = question.answer(asked(rows).source(), generator=generator).value
        return tuple(count for counts in found.values() for count in counts)

    return Case(
        subject="ranges of groups, in few groups" if within else "ranges of groups",
        audits="ranges",
        run=run,
        first=_ROWS,
        second=_ROWS + _UNIT,
        claim=Query(question, asked(_ROWS).source()).guarantee,
        share=0.25,
    )


def _ranges() -> Case:
    question = Ranges(**_B, bins=4, epsilon=1.0)
    few, more = column_of([0.1, 0.6]), column_of([0.1, 0.6, 0.6])
    return Case(
        subject="ranges",
        audits="ranges",
        run=lambda data, generator: question.answer(data, generator=generator).value,
        first=few,
        second=more,
        claim=Query(question, few).guarantee,
    )
