# SPDX-License-Identifier: Apache-2.0
"""How long a command takes to start and answer.

    python benchmarks/startup.py            five runs of each, about a minute
    python benchmarks/startup.py --quick    two runs of each
    python benchmarks/startup.py --json     rows with what, value, bar and met, for a program

Each run is a new process, and a first one, which fills the caches of the disk, is not counted. A value is
the median. CPU seconds, of the process and the system for it, are measured against the bars: the time on the
wall is shown beside them, and depends on what else the machine does. Exit status 1: a bar is missed.
"""

import argparse
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from models.results import Row, report

import sfumato

MOST_SECONDS = 1.5
LEDGER = "--ledger ledger.db"
TABLE = "--type person=number --type age=number --privacy-unit person"
COMMANDS = {
    "sfumato --help": "--help",
    "sfumato account": "account --noise-multiplier 1.1 --sampling-rate 0.01 --steps 1000 --delta 1e-5",
    "sfumato plan": "plan --epsilon 3 --public-size 60000 --expected-batch-size 1024 --epochs 30",
    "sfumato ledger show": f"ledger show people {LEDGER}",
    "sfumato stats ... count": f"stats people.csv count --epsilon 1 {TABLE}",
    "sfumato stats ... mean": f"stats people.csv mean age --bounds 0 100 --epsilon 1 {TABLE}",
    "sfumato stats ... mean, charged": (
        f"stats people.csv mean age --bounds 0 100 --epsilon 0.001 {TABLE} {LEDGER} --account people"
    ),
}
RUN = "import sys, sfumato.cli; sys.argv[0] = 'sfumato'; sfumato.cli.main()"


def main() -> int:
    """Measure, print, and say whether every bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two runs of each")
    parser.add_argument("--json", action="store_true", help="rows for a program: what, value, bar, met")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        rows = measured(Path(folder), runs=2 if chosen.quick else 5)
        return report("Seconds from the start of a process to its end", rows, as_json=chosen.json)


def prepare(folder: Path) -> None:
    """Write a table and a ledger."""
    lines = [f"{person},{20 + person % 50}" for person in range(1000)]
    (folder / "people.csv").write_text("\n".join(["person,age", *lines, ""]))
    budget = sfumato.Budget(epsilon=10, delta=1e-6)
    sfumato.Ledger(folder / "ledger.db").open("people", privacy_unit="person", budget=budget)


def measured(folder: Path, *, runs: int) -> Iterator[Row]:
    """Yield the seconds of each start."""
    starts = {"import sfumato": [sys.executable, "-c", "import sfumato"]}
    starts |= {name: [sys.executable, "-c", RUN, *shlex.split(line)] for name, line in COMMANDS.items()}
    for name, command in starts.items():
        taken = [seconds(command, folder) for _ in range(runs + 1)][1:]
        cpu, wall = (statistics.median(part) for part in zip(*taken, strict=True))
        yield Row(subject=name, name="CPU seconds", value=cpu, bar=MOST_SECONDS)
        yield Row(subject=name, name="seconds", value=wall)


def seconds(command: list[str], folder: Path) -> tuple[float, float]:
    """Return the CPU seconds of one run, and those on the wall."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


if __name__ == "__main__":
    sys.exit(main())
