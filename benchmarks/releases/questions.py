# SPDX-License-Identifier: Apache-2.0
"""Five releases of one column, the DuckDB queries for the same numbers, and tables to ask them of."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import ibis
import numpy as np

from sfumato import statistics as st

EPSILON = 1.0
BOUNDS = (18.0, 90.0)
BINS = 64
QS = tuple(i / 10 for i in range(1, 10))
VALUES = "(hash(i) / 18446744073709551616.0)::double * 100"  # a uniform number from 0 to 100 for each i

Ask = Callable[[Any], object]
RELEASES: dict[str, Ask] = {
    "count": lambda column: st.count(column, epsilon=EPSILON),
    "sum": lambda column: st.sum(column, bounds=BOUNDS, epsilon=EPSILON),
    "mean": lambda column: st.mean(column, bounds=BOUNDS, epsilon=EPSILON),
    "histogram": lambda column: st.histogram(
        column, edges=tuple(np.linspace(*BOUNDS, BINS + 1)), epsilon=EPSILON
    ),
    "quantiles": lambda column: st.quantiles(column, QS, bounds=BOUNDS, epsilon=EPSILON),
}


def queries(value: str, rows: str) -> dict[str, str]:
    """Return the non-private query for each release, of a value and of a source of rows."""
    low, high = BOUNDS
    place = f"floor(({value} - {low}e0) / {high - low}e0 * {BINS}e0)"
    return {
        "count": f"select count(x) from {rows}",
        "sum": f"select sum({value}) from {rows}",
        "mean": f"select avg({value}) from {rows}",
        "histogram": f"select {place} as bin, count(*) from {rows} group by bin",
        "quantiles": f"select quantile_cont({value}, {list(QS)}) from {rows}",
    }


PLAIN = queries("x", "rows")
SAME = queries(
    f"least(greatest(x, {BOUNDS[0]}e0), {BOUNDS[1]}e0)", "rows where x is not null and not isnan(x)"
)


@contextmanager
def parquet(rows: int) -> Iterator[Path]:
    """Write a temporary table of one column, x."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.parquet"
        source = f"select {VALUES} as x from range({rows}) as rows(i)"
        duckdb.connect().execute(f"copy ({source}) to '{path}' (format parquet)")
        yield path


def column(path: Path, *, threads: int | None) -> Any:
    """Return the private column of a table; as many threads as there are cores by default."""
    options = {} if threads is None else {"threads": threads}
    return st.private_table(str(path), engine=ibis.duckdb.connect(**options))["x"]


def connection(path: Path, *, threads: int | None) -> duckdb.DuckDBPyConnection:
    """Return DuckDB with the table as the view `rows`."""
    plain = duckdb.connect(config={} if threads is None else {"threads": threads})
    plain.execute(f"create view rows as select * from '{path}'")
    return plain


def array(path: Path) -> np.ndarray:
    """Return the values in memory."""
    return duckdb.connect().execute(f"select x from '{path}'").fetchnumpy()["x"]
