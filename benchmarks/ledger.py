# SPDX-License-Identifier: Apache-2.0
"""How fast the ledger is, and whether it keeps its word under contention and kill -9.

    python benchmarks/ledger.py            everything, about two minutes
    python benchmarks/ledger.py --quick    fewer kills and rounds, about 20 seconds
    python benchmarks/ledger.py --json     rows {what, value, bar, met} for a program

A bar is what the project promises; rows without one are for information. Exit status 1: a bar is missed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dp_accounting import dp_event as dp
from rich.console import Console
from rich.table import Table

from sfumato.accounting import events
from sfumato.ledger import Budget, Ledger, Progress
from sfumato.ledger.journal import Entry, Head, seal
from sfumato.ledger.store import Store

WORKERS = Path(__file__).resolve().parents[1] / "tests" / "ledger" / "workers.py"
ROWS = 10_000
SHORT = 100  # rows; a reserve must not take much longer in a long ledger than in a short one
PROCESSES = 16
SEED = 7

Result = dict[str, Any]


def main() -> int:
    """Measure, print, and say whether every bar is met."""
    arguments = argparse.ArgumentParser(description="Benchmark of the privacy ledger.")
    arguments.add_argument("--quick", action="store_true", help="fewer kills and rounds")
    arguments.add_argument("--json", action="store_true", help="print JSON")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = list(_measure(Path(folder), quick=chosen.quick))
    print(json.dumps(results, indent=2)) if chosen.json else _show(results)
    return 0 if all(result["met"] for result in results) else 1


def _measure(folder: Path, *, quick: bool) -> Iterator[Result]:
    for name, event_of in (("few different events", _repeated), ("all events different", _different)):
        seconds = [_open_seconds(folder / f"{name} {attempt}.db", event_of, attempt) for attempt in range(3)]
        yield _row(f"open {ROWS} rows and say what is spent, {name}, best of 3, s", min(seconds), 1.0)
    _fill(folder / "short.db", _repeated, attempt=0, rows=SHORT)
    short, long = (_reserve_ms(folder / f"{name}.db", quick) for name in ("short", "few different events 0"))
    yield _row(f"reserve in a ledger of {SHORT} rows, median, ms", short)
    yield _row(f"reserve in a ledger of {ROWS} rows, median, ms", long)
    yield _row(f"reserve after {ROWS} rows, as a multiple of after {SHORT}", long / short, 2.0)
    yield from _contention(folder / "contended.db")
    yield from _kills(folder, 25 if quick else 200)


def _row(what: str, value: float, bar: float | None = None) -> Result:
    return {"what": what, "value": value, "bar": bar, "met": bar is None or value <= bar}


# --- speed ------------------------------------------------------------------------------------------------


def _repeated(number: int, attempt: int) -> events.DpEvent:
    return dp.GaussianDpEvent(200.0 + 50 * attempt + number % 50)


def _different(number: int, attempt: int) -> events.DpEvent:
    """Return events that no other attempt has, so that no price is remembered."""
    if number % 2:
        return dp.GaussianDpEvent(200.0 + attempt + number / ROWS)
    return events.PureDpEvent((1 + attempt) * 1e-5 + number / 1e10)


def _account(path: Path, budget: Budget) -> Any:
    return Ledger(path, person="benchmark").open("credit", privacy_unit="client_id", budget=budget)


def _open_seconds(path: Path, event_of: Any, attempt: int) -> float:
    _fill(path, event_of, attempt)
    return _seconds(lambda: Ledger(path, create=False).account("credit").spent())


def _fill(path: Path, event_of: Any, attempt: int, rows: int = ROWS) -> None:
    """Write many rows in one transaction, sealed as the ledger seals them: one by one would take a minute."""
    _account(path, Budget(epsilon=100, delta=1e-6))
    head = Ledger(path).head()
    store = Store(path, create=False)
    with store.writing() as connection:
        for entry in _entries(event_of, attempt, rows):
            row = seal(entry, head)
            store.append(connection, row)
            head = Head(row.sequence, row.row_hash)


def _entries(event_of: Any, attempt: int, rows: int) -> Iterator[Entry]:
    common = {
        "account": "credit",
        "person": "benchmark",
        "code_version": "0",
        "written_at": "2026-01-01T00:00:00+00:00",
    }
    for start in range(2, rows - 1, 3):  # row 1 opens the account
        text = events.to_json(event_of(start, attempt))
        yield Entry(**common, kind="reserve", relation="add-remove", event=text, purpose=f"release {start}")
        yield Entry(**common, kind="begin", reservation=start)
        yield Entry(**common, kind="commit", reservation=start)


def _seconds(action: Any) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _reserve_ms(path: Path, quick: bool) -> float:
    account = _account(path, Budget(epsilon=100, delta=1e-6))
    event = events.PureDpEvent(1e-6)
    return 1000 * statistics.median(
        _seconds(lambda: account.reserve(event, relation="add-remove", purpose="timed"))
        for _ in range(20 if quick else 200)
    )


# --- honesty ----------------------------------------------------------------------------------------------


def _work(*arguments: object) -> Any:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(WORKERS), *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _contention(path: Path) -> Iterator[Result]:
    budget = Budget(epsilon=5, delta=0)
    account = _account(path, budget)
    done = _work("contend", path, 0.125, PROCESSES)
    overspent = abs(sum(done["admitted"]) * 0.125 - budget.epsilon) + abs(
        account.spent().epsilon - budget.epsilon
    )
    yield _row(f"{PROCESSES} processes at once: epsilon over- or underspent", overspent, 0.0)
    yield _row(f"{PROCESSES} processes at once: releases per second", sum(done["admitted"]) / done["seconds"])


def _kills(folder: Path, kills: int) -> Iterator[Result]:
    path, side_log = folder / "killed.db", folder / "side.log"
    account = _account(path, Budget(epsilon=1, delta=0))
    _work("kill", path, side_log, kills, SEED)
    kept = {release.reservation: release.progress for release in account.releases()}
    noted = [line.split() for line in side_log.read_text().splitlines()]
    lost = sum(not _is_kept(what, kept.get(int(number))) for what, number in noted)
    yield _row(f"{kills} kill -9: of {len(noted)} noted steps, missing in the ledger", lost, 0)
    yield _row(
        f"{kills} kill -9: accounts overspent in a ledger that verifies",
        len(Ledger(path).verify().overspent),
        0,
    )


def _is_kept(what: str, progress: Progress | None) -> bool:
    order = [Progress.RESERVED, Progress.BEGUN, Progress.COMMITTED]
    least = {"reserved": 0, "touched": 1, "committed": 2}[what]
    return progress in order[least:]


def _show(results: list[Result]) -> None:
    table = Table("what", "value", "bar", "met")
    for result in results:
        bar = "" if result["bar"] is None else f"{result['bar']:g}"
        table.add_row(result["what"], f"{result['value']:.4g}", bar, "yes" if result["met"] else "NO")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
