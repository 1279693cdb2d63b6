# SPDX-License-Identifier: Apache-2.0
"""How fast the ledger is, and whether it keeps its word under contention and kill -9.

    python benchmarks/ledger.py            everything, about two minutes
    python benchmarks/ledger.py --quick    fewer kills and rounds, about 20 seconds
    python benchmarks/ledger.py --json     rows with what, value, bar and met, for a program

Opening   Open a ledger of 10000 rows and say what is spent, in CPU time, over the least that this needs: read
          the same rows by plain SQLite, and hash each with the digest before it. Verifying, prices and the
          filter come on top. Each of three tries has rows of its own, so no price is remembered; the ratio
          is of the least. Bars: 6 where few events differ, 20 where all do and each must be priced.
Reserving In a long and a short ledger by turns: wall time, most of which waits until a row is durable, and
          CPU time of the long one over the short one, which a slow disk does not hide. Bar: twice.
Honesty   16 processes at once, and kill -9 at any moment: what is spent and what was noted must agree.
Rows without a bar are for information. Exit status 1: a bar is missed.
"""

import hashlib
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dp_accounting import dp_event as dp
from models.results import Row, command_line, report

from sfumato.accounting import events
from sfumato.ledger import Budget, Ledger, Progress
from sfumato.ledger.journal import Entry, Head, seal
from sfumato.ledger.store import Store

WORKERS = Path(__file__).resolve().parents[1] / "tests" / "ledger" / "workers.py"
ROWS = 10_000
SHORT = 100  # rows; a reserve must not take much longer in a long ledger than in a short one
PROCESSES = 16
SEED = 7
REPEATED_BAR, DIFFERENT_BAR = 6.0, 20.0  # times the plain reading


def main() -> int:
    """Measure, print, and say whether every bar is met."""
    chosen = command_line(__doc__, quick="fewer kills and rounds").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return report("The ledger", _measure(Path(folder), quick=chosen.quick), as_json=chosen.json, digits=3)


def _measure(folder: Path, *, quick: bool) -> Iterator[Row]:
    yield from _opening(folder, "few different events", _repeated, REPEATED_BAR)
    yield from _opening(folder, "all events different", _different, DIFFERENT_BAR)
    yield from _reserving(folder, 20 if quick else 200)
    yield from _contention(folder / "contended.db")
    yield from _kills(folder, 25 if quick else 200)


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


def _opening(folder: Path, name: str, event_of: Any, bar: float) -> Iterator[Row]:
    subject, ours, plain = f"open {ROWS} rows and say what is spent, {name}", list[float](), list[float]()
    for attempt in range(3):
        path = folder / f"{name} {attempt}.db"
        _fill(path, event_of, attempt)
        plain.append(_seconds(lambda path=path: _read_plainly(path), time.process_time))
        ours.append(_seconds(lambda path=path: _opened(path), time.process_time))
    yield Row(subject=subject, name="s", value=min(ours))
    yield Row(subject=subject, name="times a plain reading", value=min(ours) / min(plain), bar=bar)


def _opened(path: Path) -> None:
    Ledger(path, create=False).account("credit").spent()


def _read_plainly(path: Path) -> None:
    """Read all rows and hash each with the digest before it: what any ledger that is a chain must do."""
    connection, digest = sqlite3.connect(path), ""
    for row in connection.execute("select * from sfumato_journal order by sequence"):
        digest = hashlib.sha256((digest + json.dumps(row)).encode()).hexdigest()
    connection.close()


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


def _seconds(action: Callable[[], object], clock: Callable[[], float]) -> float:
    started = clock()
    action()
    return clock() - started


def _reserving(folder: Path, times: int) -> Iterator[Row]:
    event, budget = events.PureDpEvent(1e-6), Budget(epsilon=100, delta=1e-6)
    waited: dict[int, list[float]] = {SHORT: [], ROWS: []}
    worked: dict[int, list[float]] = {SHORT: [], ROWS: []}
    accounts: dict[int, Any] = {}
    for rows in waited:
        path = folder / f"reserved {rows}.db"
        _fill(path, _repeated, attempt=0, rows=rows)
        accounts[rows] = _account(path, budget)
    for _ in range(times):
        for rows, account in accounts.items():
            reserve = partial(account.reserve, event, relation="add-remove", purpose="timed")
            began = time.process_time()
            waited[rows].append(_seconds(reserve, time.perf_counter))
            worked[rows].append(time.process_time() - began)
    for rows, seconds in waited.items():
        name = f"in a ledger of {rows} rows, median, ms"
        yield Row(subject="reserve", name=name, value=1000 * statistics.median(seconds))
    short, long = map(statistics.median, worked.values())
    name = f"CPU time after {ROWS} rows over that after {SHORT}"
    yield Row(subject="reserve", name=name, value=long / short, bar=2.0)


# --- honesty ----------------------------------------------------------------------------------------------


def _work(*arguments: object) -> Any:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(WORKERS), *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _contention(path: Path) -> Iterator[Row]:
    budget = Budget(epsilon=5, delta=0)
    account = _account(path, budget)
    done = _work("contend", path, 0.125, PROCESSES)
    overspent = abs(sum(done["admitted"]) * 0.125 - budget.epsilon) + abs(
        account.spent().epsilon - budget.epsilon
    )
    subject, speed = f"{PROCESSES} processes at once", sum(done["admitted"]) / done["seconds"]
    yield Row(subject=subject, name="epsilon over- or underspent", value=overspent, bar=0.0)
    yield Row(subject=subject, name="releases per second", value=speed)


def _kills(folder: Path, kills: int) -> Iterator[Row]:
    path, side_log = folder / "killed.db", folder / "side.log"
    account = _account(path, Budget(epsilon=1, delta=0))
    _work("kill", path, side_log, kills, SEED)
    kept = {release.reservation: release.progress for release in account.releases()}
    noted = [line.split() for line in side_log.read_text().splitlines()]
    lost = sum(not _is_kept(what, kept.get(int(number))) for what, number in noted)
    overspent = len(Ledger(path).verify().overspent)
    subject = f"{kills} kill -9"
    yield Row(subject=subject, name=f"of {len(noted)} noted steps, missing in the ledger", value=lost, bar=0)
    yield Row(subject=subject, name="accounts overspent in a ledger that verifies", value=overspent, bar=0)


def _is_kept(what: str, progress: Progress | None) -> bool:
    order = [Progress.RESERVED, Progress.BEGUN, Progress.COMMITTED]
    least = {"reserved": 0, "touched": 1, "committed": 2}[what]
    return progress in order[least:]


if __name__ == "__main__":
    sys.exit(main())
