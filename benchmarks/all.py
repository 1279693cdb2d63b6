# SPDX-License-Identifier: Apache-2.0
"""Run every benchmark of this folder, one after the other, and end with one table.

    python benchmarks/all.py --quick           small sizes, as `make bench-quick`
    python benchmarks/all.py                   in full, as `make bench`: hours
    python benchmarks/all.py noise ledger      some files
    python benchmarks/all.py --json            what each file found, for a program

Runs      Each file has a process of its own. What it prints while it runs is shown, and its rows are read
          from its `--json`. What a file leaves running is ended with it.
Threads   A quick run sets OMP_NUM_THREADS to 1 unless it is set: small tasks on two threads mostly wait.
Goes on   After a missed bar, a file that fails, and a part whose data or peer is absent: the end names each.
Seconds   On the wall, and CPU seconds of the file and what it started, which other work disturbs less.
Ctrl-C    Ends the file that runs, and shows what was found so far.
Status    0: every bar is met. 1: a bar is missed or a file failed. 130: interrupted.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import IO, Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve()
KEYS = ("what", "value", "bar", "met")  # of every row
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
INTERRUPTED, NOT_RUN = "interrupted", "not run"
GRACE = 10.0  # seconds for a file that is interrupted to remove what it wrote
SHOWN = 120  # characters of why something was left out
TAIL = 4000  # bytes of what a file printed last: the reason of a failure stands there


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one file."""

    file: str
    rows: Sequence[dict[str, Any]] = ()
    error: str = ""  # why there are no rows
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it ran and did not say what it found."""
        return self.error not in ("", INTERRUPTED, NOT_RUN)

    @property
    def barred(self) -> list[dict[str, Any]]:
        """The rows that have a bar."""
        return [row for row in self.rows if row["met"] is not None]

    @property
    def missed(self) -> list[dict[str, Any]]:
        """The rows whose bar is not reached."""
        return [row for row in self.barred if not row["met"]]

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """The rows that say what could not be measured here."""
        return [row for row in self.rows if row.get("left_out")]


def main() -> int:
    """Run what was asked for, and return the exit status."""
    known = {path.stem: path for path in sorted(HERE.parent.glob("*.py")) if path != HERE}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes; each file under a minute")
    parser.add_argument("--json", action="store_true", help="what each file found, for a program")
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"some of: {', '.join(known)}")
    chosen = parser.parse_args()
    names = [Path(name).stem for name in chosen.files] or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no benchmark is called {', '.join(unknown)}. There are: {', '.join(known)}")
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell ignores the first for us
        signal.signal(number, signal.default_int_handler)
    found = outcomes([known[name] for name in names], quick=chosen.quick)
    print(json.dumps([asdict(each) for each in found], indent=2)) if chosen.json else show(found)
    if any(each.error == INTERRUPTED for each in found):
        return 128 + signal.SIGINT
    return 1 if any(each.missed or each.failed for each in found) else 0


def outcomes(paths: Sequence[Path], *, quick: bool) -> list[Outcome]:
    """Run the files in turn; after an interruption the others are not run."""
    found: list[Outcome] = []
    for place, path in enumerate(paths, start=1):
        print(f"== {path.name}, {place} of {len(paths)}", file=sys.stderr, flush=True)
        found.append(run(path, quick=quick))
        if found[-1].error == INTERRUPTED:
            return found + [Outcome(file=left.name, error=NOT_RUN) for left in paths[place:]]
    return found


# --- one file ---------------------------------------------------------------------------------------------


def run(path: Path, *, quick: bool) -> Outcome:
    """Run one file, and say what it found, or why nothing."""
    command = [sys.executable, str(path), "--json", *(["--quick"] if quick else [])]
    began, before = time.perf_counter(), _cpu_seconds()
    with tempfile.TemporaryFile() as output:
        try:
            status, printed = _watched(command, output, env=(ONE_THREAD if quick else {}) | os.environ)
        except KeyboardInterrupt:
            rows, error = [], INTERRUPTED
        else:
            output.seek(0)
            rows, error = judged(status, output.read().decode(errors="replace"), printed)
    return Outcome(
        file=path.name,
        rows=rows,
        error=error,
        seconds=round(time.perf_counter() - began, 2),
        cpu_seconds=round(_cpu_seconds() - before, 2),
    )


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _watched(command: Sequence[str], output: IO[bytes], env: Mapping[str, str]) -> tuple[int, str]:
    """Run a command, show its standard error, and return its exit status and what it printed there last."""
    process = subprocess.Popen(
        command, stdout=output, stderr=subprocess.PIPE, env=env, start_new_session=True
    )
    assert process.stderr is not None
    printed = bytearray()
    reader = threading.Thread(target=_shown, args=(process.stderr.fileno(), printed), daemon=True)
    reader.start()
    try:
        _wait_for(process)
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        _end(process)
        raise
    finally:
        # Before it is reaped: until then no other process can have its number.
        os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        reader.join(GRACE)
    return status, printed.decode(errors="replace")


def _wait_for(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process, and leave it to be reaped."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for an interrupted process, for as long as it may take to clean up."""
    until = time.monotonic() + GRACE
    while time.monotonic() < until:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return
        time.sleep(0.05)


def _shown(source: int, printed: bytearray) -> None:
    """Pass on what a file prints, and keep the end of it."""
    while part := os.read(source, 1 << 16):
        os.write(sys.stderr.fileno(), part)
        printed += part
        del printed[:-TAIL]


def judged(status: int, output: str, printed: str) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a file, and why it counts as failed if it does."""
    last = next((line.strip() for line in reversed(printed.splitlines()) if line.strip()), "")
    if status < 0:
        return [], f"ended by {signal.Signals(-status).name}"
    try:
        rows = rows_of(output)
    except ValueError as error:
        return [], f"exit status {status}: {last or error}" if status else str(error)
    if status and not any(row["met"] is False for row in rows):
        return rows, f"exit status {status}, though no bar is missed: {last}"
    return rows, ""


def rows_of(output: str) -> list[dict[str, Any]]:
    """Read the rows that a file printed, or raise ValueError with what is wrong with them."""
    try:
        rows = json.loads(output)
    except json.JSONDecodeError:
        raise ValueError(f"--json printed no JSON: {output[:60]!r}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("--json printed JSON that is no list of rows")
    for row in rows:
        if absent := [key for key in KEYS if key not in row]:
            raise ValueError(f"--json printed a row without {', '.join(absent)}")
    return rows


# --- the summary ------------------------------------------------------------------------------------------


def show(found: Sequence[Outcome]) -> None:
    """Print the table, then each missed bar, each failure, and what was left out."""
    console = Console()
    console.print(table(found))
    for title, lines in (
        ("Bars missed", [line for each in found for line in missed_lines(each)]),
        ("Failed", [f"{each.file}: {each.error}" for each in found if each.failed]),
        ("Left out", [f"{each.file}: {_left_out(row)}" for each in found for row in each.left_out]),
    ):
        if lines:
            text = "\n".join((f"{title}:", *(f"  {line}" for line in lines)))
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def table(found: Sequence[Outcome]) -> Table:
    """Return a row for each file, and one for all."""
    shown = Table(title="Benchmarks")
    shown.add_column("file", no_wrap=True)
    for name in ("bars", "met", "missed", "left out", "s", "CPU s"):
        shown.add_column(name, justify="right")
    shown.add_column("", no_wrap=True)
    for each in found:
        state = "failed" if each.failed else each.error
        shown.add_row(each.file, *_numbers([each]), state)
    shown.add_section()
    shown.add_row("all", *_numbers(found), "")
    return shown


def _numbers(found: Sequence[Outcome]) -> Iterator[str]:
    bars, missed, left_out = (
        sum(len(rows) for rows in part)
        for part in zip(*((each.barred, each.missed, each.left_out) for each in found), strict=True)
    )
    yield from map(str, (bars, bars - missed, missed, left_out))
    yield f"{sum(each.seconds for each in found):.0f}"
    yield f"{sum(each.cpu_seconds for each in found):.0f}"


def missed_lines(outcome: Outcome) -> Iterator[str]:
    """Yield each missed row with its value and bar."""
    for row in outcome.missed:
        value = "no value" if row["value"] is None else f"{row['value']:.4g}"
        yield f"{outcome.file}: {row['what']}: {value}, bar {row.get('limit') or row['bar']}"


def _left_out(row: dict[str, Any]) -> str:
    why = row.get("note") or "no reason is given"  # in full above, and in --json
    return f"{row.get('subject') or row['what']}: {shorten(why, SHOWN, placeholder=' ...')}"


if __name__ == "__main__":
    raise SystemExit(main())
