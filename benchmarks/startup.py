# SPDX-License-Identifier: Apache-2.0
"""How long a command takes to start and answer.

    python benchmarks/startup.py            five runs of each, about a minute
    python benchmarks/startup.py --quick    three runs of each
    python benchmarks/startup.py --json     rows with what, value, bar and met, for a program

Each run is a new process; a first one, which fills the caches of the disk, is not counted. All take turns.

Seconds   CPU time of the process and of the system for it, the median; and the time on the wall.
Ratio     That CPU time over the one of `python -c "import numpy"`, turn by turn, the median. Bar: 15.
Import    `import sfumato` has an absolute bar, one second: it is what users are promised, and far away.
Exit status 1: a bar is missed.
"""

import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from models.results import Row, command_line, report

import sfumato

MOST_TIMES = 15.0  # the start of numpy
MOST_IMPORT_SECONDS = 1.0  # a promise to users, so it is absolute
BASELINE, IMPORT = "import numpy", "import sfumato"
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
    chosen = command_line(__doc__, quick="three runs of each").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        rows = measured(Path(folder), runs=3 if chosen.quick else 5)
        return report("Seconds from the start of a process to its end", rows, as_json=chosen.json)


def prepare(folder: Path) -> None:
    """Write a table and a ledger."""
    lines = [f"{person},{20 + person % 50}" for person in range(1000)]
    (folder / "people.csv").write_text("\n".join(["person,age", *lines, ""]))
    budget = sfumato.Budget(epsilon=10, delta=1e-6)
    sfumato.Ledger(folder / "ledger.db").open("people", privacy_unit="person", budget=budget)


def measured(folder: Path, *, runs: int) -> Iterator[Row]:
    """Yield the seconds of each start, and how they compare."""
    starts = {name: [sys.executable, "-c", name] for name in (BASELINE, IMPORT)}
    starts |= {name: [sys.executable, "-c", RUN, *shlex.split(line)] for name, line in COMMANDS.items()}
    turns = [{name: seconds(command, folder) for name, command in starts.items()} for _ in range(runs + 1)]
    for name in starts:
        cpu, wall = (statistics.median(turn[name][part] for turn in turns[1:]) for part in (0, 1))
        bar = MOST_IMPORT_SECONDS if name == IMPORT else None
        yield Row(subject=name, name="CPU seconds", value=cpu, bar=bar)
        yield Row(subject=name, name="seconds", value=wall)
        if name in COMMANDS:
            value = statistics.median(turn[name][0] / turn[BASELINE][0] for turn in turns[1:])
            yield Row(subject=name, name=f"times {BASELINE}", value=value, bar=MOST_TIMES)


def seconds(command: list[str], folder: Path) -> tuple[float, float]:
    """Return the CPU seconds of one run, and those on the wall."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


if __name__ == "__main__":
    sys.exit(main())
