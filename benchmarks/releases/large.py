# SPDX-License-Identifier: Apache-2.0
"""A process of its own for one large table: the seconds of each release and the peak of memory, as JSON."""

import json
import sys
import time
from pathlib import Path

from releases.questions import RELEASES, column


def peak() -> float:
    """Return the most memory this process ever had, in GiB, as Linux counts it.

    Not getrusage: its number starts with that of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    kibibytes = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kibibytes) / 2**20


def main() -> None:
    """Ask everything once."""
    values, before = column(Path(sys.argv[1]), threads=None), peak()
    seconds: dict[str, float] = {}
    for name, ask in RELEASES.items():
        start = time.perf_counter()
        ask(values)
        seconds[name] = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "before": before, "peak": peak()}))


if __name__ == "__main__":
    main()
