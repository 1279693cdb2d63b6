# SPDX-License-Identifier: Apache-2.0
"""How fast is noise? Draws a second on one core: our secure streams, our exact integers, and the peers.

    python benchmarks/noise.py [--quick] [--json]

The bar is 50 million secure Gaussian draws a second on one core in float64, and 200 million in float32. Noise
for a network has the sizes of its parameters: 4 tensors of a perceptron, 8 of a small convolutional network,
60 of a wide residual one, each by one call. A GPU, if there is one, has 1.5 milliseconds for the 124 million
parameters of GPT-2. Peers run in the same process on the same core; torch and numpy are not cryptographic, so
they are what security costs against. Each row is the best of several repetitions: other work on the machine
can only slow one down.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from sfumato.mechanisms import FastGenerator, SecureGenerator, discrete_gaussian, discrete_laplace
from sfumato.mechanisms.random import words
from sfumato.mechanisms.tensors import add_gaussian_, add_gaussian_many_, gaussian, laplace

BAR = 50e6  # draws a second, secure Gaussian, one core
SINGLE_BAR = 200e6  # the same in float32
GPU_COUNT, GPU_BAR = 124_000_000, 124e6 / 1.5e-3
NETWORKS = {
    "perceptron, 4 tensors": [128 * 784, 128, 10 * 128, 10],
    "small convolutional, 8 tensors": [16 * 64, 16, 32 * 256, 32, 32 * 512, 32, 320, 10],
    "wide residual, 60 tensors": [45_000] * 60,
}
SINGLE, DOUBLE = torch.float32, torch.float64


@dataclass(frozen=True)
class Row:
    """One measurement; `bar` is None where there is nothing to reach."""

    what: str
    value: float
    bar: float | None

    @property
    def met(self) -> bool | None:
        """Whether the bar is reached."""
        return None if self.bar is None else self.value >= self.bar


def rate(draw: Callable[[], object], count: int, seconds: float) -> float:
    """Return draws a second, the best of as many repetitions as fit into `seconds` (three at least)."""
    draw()  # tables are built and memory is touched before the clock starts
    best, repetitions, end = 0.0, 0, time.perf_counter() + seconds
    while repetitions < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        draw()
        best = max(best, count / (time.perf_counter() - start))
        repetitions += 1
    return best


def cases(count: int) -> list[tuple[str, Callable[[], object], float | None]]:
    """Return what is measured: a name, a call that makes `count` draws, and the bar."""
    secure, fast, peer = SecureGenerator(), FastGenerator(), np.random.default_rng()
    total = torch.zeros(count)
    return [
        (
            "secure Gaussian, float32",
            lambda: gaussian((count,), stddev=1.0, generator=secure, dtype=SINGLE),
            SINGLE_BAR,
        ),
        (
            "secure Gaussian, float64",
            lambda: gaussian((count,), stddev=1.0, generator=secure, dtype=DOUBLE),
            BAR,
        ),
        (
            "secure Gaussian, added in place, float32",
            lambda: add_gaussian_(total, stddev=1.0, generator=secure),
            SINGLE_BAR,
        ),
        ("secure Laplace, float32", lambda: laplace((count,), scale=1.0, generator=secure), None),
        ("secure 64-bit words", lambda: words(count, secure), None),
        ("exact discrete Gaussian, stddev 10", lambda: discrete_gaussian((count,), stddev=10.0), None),
        ("exact discrete Gaussian, stddev 500", lambda: discrete_gaussian((count,), stddev=500.0), None),
        ("exact discrete Gaussian, stddev 1e6", lambda: discrete_gaussian((count,), stddev=1e6), None),
        ("exact discrete Laplace, scale 10", lambda: discrete_laplace((count,), scale=10.0), None),
        ("fast Gaussian (not secure), float32", lambda: gaussian((count,), stddev=1.0, generator=fast), None),
        ("torch.randn (not secure), float32", lambda: torch.randn(count), None),
        ("torch.randn (not secure), float64", lambda: torch.randn(count, dtype=DOUBLE), None),
        (
            "numpy standard_normal (not secure), float32",
            lambda: peer.standard_normal(count, dtype=np.float32),
            None,
        ),
        ("numpy standard_normal (not secure), float64", lambda: peer.standard_normal(count), None),
    ]


def networks(seconds: float) -> list[Row]:
    """Add noise to all parameters of a network at once, as a training step does."""
    rows: list[Row] = []
    for name, sizes in NETWORKS.items():
        sums = [torch.zeros(size) for size in sizes]
        draws = rate(lambda sums=sums: add_gaussian_many_(sums, stddev=1.0), sum(sizes), seconds)
        rows.append(Row(f"secure Gaussian, {name}, float32", draws, None))
    return rows


def gpu(seconds: float) -> list[Row]:
    """Add noise on the GPU, if there is one: secure noise and torch's own."""
    if not torch.cuda.is_available():
        return []
    total = torch.zeros(GPU_COUNT, device="cuda")

    def waited(draw: Callable[[], object]) -> Callable[[], object]:
        return lambda: (draw(), torch.cuda.synchronize())

    secure = rate(waited(lambda: add_gaussian_(total, stddev=1.0)), GPU_COUNT, seconds)
    fast = rate(waited(lambda: total.normal_()), GPU_COUNT, seconds)
    return [
        Row("secure Gaussian on the GPU, added in place, float32", secure, GPU_BAR),
        Row("torch normal_ on the GPU (not secure), float32", fast, None),
    ]


def measure(quick: bool) -> list[Row]:
    """Run every case on one core, and on the GPU."""
    torch.set_num_threads(1)
    count, seconds = (1 << 21, 0.5) if quick else (1 << 23, 4.0)
    rows = [Row(what, rate(draw, count, seconds), bar) for what, draw, bar in cases(count)]
    return rows + networks(seconds) + gpu(seconds)


def show(rows: list[Row]) -> None:
    """Print a table for people."""
    table = Table(title="Noise: million draws a second, one core")
    table.add_column("what")
    table.add_column("M/s", justify="right")
    table.add_column("bar", justify="right")
    table.add_column("met")
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar / 1e6:.0f}"
        met = "" if row.met is None else "yes" if row.met else "NO"
        table.add_row(row.what, f"{row.value / 1e6:.1f}", bar, met)
    Console().print(table)


def main() -> int:
    """Measure, print, and fail where a bar is not met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", action="store_true", help="rows for a program: what, value, bar, met")
    arguments = parser.parse_args()
    rows = measure(arguments.quick)
    if arguments.json:
        print(json.dumps([asdict(row) | {"met": row.met} for row in rows], indent=2))
    else:
        show(rows)
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
