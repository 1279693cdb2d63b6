# SPDX-License-Identifier: Apache-2.0
"""Time and memory of five releases: against DuckDB and the peers, over rows, and for a large table."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from models.results import Row
from peers.environment import absent_peers, ask_peers
from releases import questions
from releases.clocks import Clock, ms, taking_turns
from releases.questions import PLAIN, RELEASES, SAME

ROWS, QUICK_ROWS, LARGE_ROWS = 10**7, 10**6, 10**8
SLOWDOWN_BAR = 1.2
GROWTH_BAR = 1.1  # exponent of time over rows; 1 is linear
MEMORY_BAR = 2.0  # GiB


def against_duckdb(quick: bool) -> Iterator[Row]:
    """Measure each release over the query for the same numbers."""
    settings: dict[str, tuple[int | None, Clock]] = {"one thread, CPU time": (1, time.process_time)}
    if not quick:
        settings["all threads, wall time"] = (None, time.perf_counter)
    with questions.parquet(QUICK_ROWS if quick else ROWS) as path:
        for setting, (threads, clock) in settings.items():
            yield from _ratios(path, setting, threads, clock, quick=quick)


def _ratios(path: Path, setting: str, threads: int | None, clock: Clock, *, quick: bool) -> Iterator[Row]:
    ours, plain = questions.column(path, threads=threads), questions.connection(path, threads=threads)
    for name, ask in RELEASES.items():
        calls = {
            "ours": partial(ask, ours),
            "same": lambda name=name: plain.execute(SAME[name]).fetchall(),
            "plain": lambda name=name: plain.execute(PLAIN[name]).fetchall(),
        }
        found = taking_turns(calls, rounds=3 if quick else 7, clock=clock)
        ratios = found["ours"] / found["same"]
        times = ", ".join(f"{call} {ms(taken):.1f}" for call, taken in found.items())
        yield Row(
            subject=f"release over DuckDB, {setting}",
            name=name,
            value=float(np.median(ratios)),
            bar=None if quick else SLOWDOWN_BAR,
            quartiles=(float(np.quantile(ratios, 0.25)), float(np.quantile(ratios, 0.75))),
            note=f"{times} ms",
        )


def against_peers(quick: bool) -> Iterator[Row]:
    """Measure the same releases of an array in memory, ours and the peers'."""
    with questions.parquet(10**5 if quick else ROWS) as path, tempfile.TemporaryDirectory() as folder:
        values, saved = questions.array(path), Path(folder) / "values.npy"
        np.save(saved, values)
        yield from absent_peers("array in memory, ms")
        theirs = ask_peers("statistics", {"values": str(saved), "rounds": 1 if quick else 3} | _setting())
        for name, ask in RELEASES.items():
            taken = taking_turns({"ours": partial(ask, values)}, rounds=3)["ours"]
            yield Row(subject="array in memory, ms", name=f"{name}, ours", value=ms(taken))
            for peer, times in theirs.items():
                yield _of_peer(name, peer, times[name])


def _setting() -> dict[str, object]:
    return {
        "bounds": questions.BOUNDS,
        "bins": questions.BINS,
        "qs": questions.QS,
        "epsilon": questions.EPSILON,
    }


def _of_peer(name: str, peer: str, answer: float | str) -> Row:
    subject = "array in memory, ms"
    if isinstance(answer, str):
        return Row(subject=subject, name=f"{name}, {peer}", value=None, note=answer)
    return Row(subject=subject, name=f"{name}, {peer}", value=1e3 * answer)


def growth(quick: bool) -> Iterator[Row]:
    """Measure how time grows with rows, in a table and in memory."""
    sizes = (10**5, 10**6) if quick else (10**6, 3 * 10**6, 10**7)
    table, memory = ({name: [] for name in RELEASES} for _ in range(2))
    for size in sizes:
        with questions.parquet(size) as path:
            _timed(table, questions.column(path, threads=1))
            _timed(memory, questions.array(path))
    for where, times in {"table": table, "array": memory}.items():
        for name, taken in times.items():
            exponent = _exponent(sizes, taken)
            yield Row(subject=f"exponent of rows, {where}", name=name, value=exponent, bar=GROWTH_BAR)


def _timed(times: dict[str, list[float]], column: object) -> None:
    for name, ask in RELEASES.items():
        found = taking_turns({name: partial(ask, column)}, rounds=3, clock=time.process_time)
        times[name].append(float(found[name].min()))


def _exponent(sizes: Sequence[int], taken: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(taken), 1)[0])


def large(quick: bool) -> Iterator[Row]:
    """Ask everything of a large table in a process of its own, whose memory is then known."""
    sizes = (QUICK_ROWS,) if quick else (ROWS, LARGE_ROWS)
    for size in sizes:
        subject = f"{size:.0e} rows from Parquet"
        with questions.parquet(size) as path:
            command = [sys.executable, "-m", "releases.large", str(path)]
            folder = Path(__file__).parents[1]
            done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE)
            megabytes = path.stat().st_size / 1e6
        found = json.loads(done.stdout)
        for name, seconds in found["seconds"].items():
            yield Row(subject=subject, name=f"{name}, s", value=seconds)
        note = f"{found['before']:.2f} before the first; file of {megabytes:.0f} MB"
        yield Row(subject=subject, name="peak of memory, GiB", value=found["peak"], bar=MEMORY_BAR, note=note)
