# SPDX-License-Identifier: Apache-2.0
"""Does an extreme row change what comes of a question? The matrix of `tests/statistics/poison`, counted."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from models.results import Row, left_out

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "statistics"))
import poison

QUICK_TYPES = 6  # every so many-th type is asked about in a quick run


def rows(quick: bool) -> Iterator[Row]:
    """Compare outcomes on each engine; on Spark in a full run, where it is installed."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder)
        yield from _of_engine(stack.enter_context(poison.duckdb()), "DuckDB", quick=quick)
        yield from _of_engine(poison.Arrow(), "DuckDB, frames of Arrow", quick=quick)
        yield from _of_engine(poison.Parquet(path), "DuckDB, Parquet files", quick=quick)
        yield from _of_engine(stack.enter_context(poison.postgresql(path)), "PostgreSQL", quick=quick)
        if quick:
            return
        if poison.has_spark():
            yield from _of_engine(stack.enter_context(poison.spark(path)), "Spark", quick=quick)
        else:
            yield left_out("poison rows in Spark", "pyspark or Java is not installed: make test-spark")


def _of_engine(engine: poison.Engine, title: str, *, quick: bool) -> Iterator[Row]:
    kinds = poison.KINDS[engine.name][:: QUICK_TYPES if quick else 1]
    changed = failed = compared = values = 0
    for place, kind in enumerate(kinds):
        questions = poison.covering(place) if quick else poison.QUESTIONS
        found = list(poison.compared(engine, kind, poison.crowd(kind), questions))
        if any(each.changed for each in found):  # which of the values it is, is asked of each alone
            found = list(poison.compared(engine, kind, poison.single(kind), questions))
        changed += sum(each.changed for each in found)
        failed += sum(each.failed for each in found)
        values += len(kind.extreme) + 1
        compared += len(questions) * (len(kind.extreme) + 1)
    note = f"{len(kinds)} types, {values} values, {compared} values with a question"
    subject = f"poison rows in {title}"
    yield Row(subject=subject, name="outcomes changed", value=changed, bar=0, note=note)
    yield Row(subject=subject, name="questions that fail without one, once paid for", value=failed, bar=0)
