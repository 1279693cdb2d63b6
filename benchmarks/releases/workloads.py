# SPDX-License-Identifier: Apache-2.0
"""Twenty statistics over twelve groups, against one hand-written DuckDB query for the same numbers."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import ibis
import numpy as np
from models.results import Row
from releases.clocks import Clock, ms, taking_turns

from sfumato import queries as q
from sfumato.statistics import private_table

ROWS, QUICK_ROWS = 10**7, 10**6
BAR = 1.5
KEYS = [f"region {i}" for i in range(12)]
BOUNDS = {"x": (0, 200), "y": (0, 100), "z": (0, 100)}
UNIFORM = "(hash(i + {}) / 18446744073709551616.0)::double"


def rows(quick: bool) -> Iterator[Row]:
    """Measure a workload over the query that computes the same numbers without noise."""
    settings: dict[str, tuple[int | None, Clock]] = {"one thread, CPU time": (1, time.process_time)}
    if not quick:
        settings["all threads, wall time"] = (None, time.perf_counter)
    with _parquet(QUICK_ROWS if quick else ROWS) as path:
        for setting, (threads, clock) in settings.items():
            for name, ranks in (("without quantiles", False), ("with quantiles", True)):
                yield _ratio(path, setting, name, threads, clock, ranks=ranks, quick=quick)


def _ratio(
    path: Path, setting: str, name: str, threads: int | None, clock: Clock, *, ranks: bool, quick: bool
) -> Row:
    options = {} if threads is None else {"threads": threads}
    table = private_table(str(path), engine=ibis.duckdb.connect(**options))
    plain, by_hand = duckdb.connect(config=options), _by_hand(path, ranks=ranks)
    groups, asked = q.group_by(table, "region", keys=KEYS), _statistics(ranks=ranks)
    calls = {
        "ours": lambda: groups.agg(**asked, epsilon=1.0).release(),
        "by hand": lambda: plain.execute(by_hand).fetchall(),
    }
    found = taking_turns(calls, rounds=3 if quick else 5, clock=clock)
    ratios = found["ours"] / found["by hand"]
    times = ", ".join(f"{call} {ms(taken):.0f}" for call, taken in found.items())
    return Row(
        subject=f"workload over DuckDB, {setting}",
        name=f"{len(asked)} statistics, {name}",
        value=float(np.median(ratios)),
        bar=BAR if ranks and not quick else None,
        quartiles=(float(np.quantile(ratios, 0.25)), float(np.quantile(ratios, 0.75))),
        note=f"{times} ms",
    )


def _statistics(*, ranks: bool) -> dict[str, q.Statistic]:
    """Return twenty statistics, or the sixteen of them that are not quantiles."""
    asked: dict[str, q.Statistic] = {"n": q.count()}
    for name, bounds in BOUNDS.items():
        asked[f"known_{name}"] = q.count(name)
        asked[f"sum_{name}"] = q.sum(name, bounds=bounds)
        asked[f"mean_{name}"] = q.mean(name, bounds=bounds)
        asked[f"variance_{name}"] = q.variance(name, bounds=bounds)
        asked[f"spread_{name}"] = q.standard_deviation(name, bounds=bounds)
        if ranks:
            asked[f"median_{name}"] = q.median(name, bounds=bounds)
    return asked | ({"high": q.quantile("x", 0.9, bounds=BOUNDS["x"])} if ranks else {})


def _by_hand(path: Path, *, ranks: bool) -> str:
    """Return the query for the same numbers: same clip, missing values (null, NaN) left out."""
    parts = ["count(*)"]
    for name, (low, high) in BOUNDS.items():
        value = f"least(greatest({name}, {low}), {high})"
        parts += [f"count({name})", *(f"{of}({value})" for of in ("sum", "avg", "var_pop", "stddev_pop"))]
        parts += [f"median({value})"] if ranks else []
    parts += ["quantile_cont(least(greatest(x, 0), 200), 0.9)"] if ranks else []
    known = ", ".join(f"case when isnan({name}) then null else {name} end as {name}" for name in "xy")
    return f"select region, {', '.join(parts)} from (select region, z, {known} from '{path}') group by region"


@contextmanager
def _parquet(size: int) -> Iterator[Path]:
    """Write a temporary table of groups, two columns of floats (one skewed) and one of whole numbers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.parquet"
        columns = (
            "'region ' || (hash(i) % 12) as region",
            f"20 * -ln(1 - {UNIFORM.format(size)}) as x",
            f"100 * {UNIFORM.format(2 * size)} as y",
            f"floor(100 * {UNIFORM.format(3 * size)})::bigint as z",
        )
        source = f"select {', '.join(columns)} from range({size}) as rows(i)"
        duckdb.connect().execute(f"copy ({source}) to '{path}' (format parquet)")
        yield path
