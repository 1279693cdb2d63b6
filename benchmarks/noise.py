# SPDX-License-Identifier: Apache-2.0
"""How fast is noise? Our secure streams and exact integers beside the noise of torch and numpy.

    python benchmarks/noise.py            about a minute
    python benchmarks/noise.py --quick    fewer draws, fewer turns
    python benchmarks/noise.py --json     rows for a program: what, value, bar, met

Speed   Million draws a second on one core, in CPU time, the best of all turns: other work only slows it down.
Ratio   Our secure Gaussian over `torch.randn` of the same type, which is not cryptographic: what security
        costs. All calls take turns, so that whatever slows one slows all; a ratio is the median over turns.
Bars    At least half as fast as `torch.randn` in float32, drawn and added in place, and at least as fast in
        float64: noise of a private step then takes at most twice as long as noise that is not secure.
Sizes   Noise for a network has the sizes of its parameters: 4 tensors of a perceptron, 8 of a small
        convolutional network, 60 of a wide residual one, each by one call.
GPU     Where there is one: the 124 million parameters of GPT-2, by wall time, over `Tensor.normal_`; no bar.
"""

import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from models.results import Row, command_line, report
from releases.clocks import taking_turns

from sfumato.mechanisms import FastGenerator, SecureGenerator, discrete_gaussian, discrete_laplace
from sfumato.mechanisms.random import words
from sfumato.mechanisms.tensors import add_gaussian_, add_gaussian_many_, gaussian, laplace

SINGLE, DOUBLE = torch.float32, torch.float64
PEER = "torch.randn (not secure), {}"
# what is compared, with its type: the least that its speed may be, over torch.randn's
BARS = {
    ("secure Gaussian, float32", "float32"): 0.5,
    ("secure Gaussian, added in place, float32", "float32"): 0.5,
    ("secure Gaussian, float64", "float64"): 1.0,
}
NETWORKS = {
    "perceptron, 4 tensors": [128 * 784, 128, 10 * 128, 10],
    "small convolutional, 8 tensors": [16 * 64, 16, 32 * 256, 32, 32 * 512, 32, 320, 10],
    "wide residual, 60 tensors": [45_000] * 60,
}
GPU_COUNT = 124_000_000

Draw = Callable[[], object]


def cases(count: int) -> dict[str, Draw]:
    """Return calls that make `count` draws each."""
    secure, fast, peer = SecureGenerator(), FastGenerator(), np.random.default_rng()
    shape, total = (count,), torch.zeros(count)
    return {
        "secure Gaussian, float32": lambda: gaussian(shape, stddev=1.0, generator=secure, dtype=SINGLE),
        "secure Gaussian, float64": lambda: gaussian(shape, stddev=1.0, generator=secure, dtype=DOUBLE),
        "secure Gaussian, added in place, float32": lambda: add_gaussian_(
            total, stddev=1.0, generator=secure
        ),
        PEER.format("float32"): lambda: torch.randn(count),
        PEER.format("float64"): lambda: torch.randn(count, dtype=DOUBLE),
        "numpy standard_normal (not secure), float32": lambda: peer.standard_normal(count, dtype=np.float32),
        "numpy standard_normal (not secure), float64": lambda: peer.standard_normal(count),
        "fast Gaussian (not secure), float32": lambda: gaussian(shape, stddev=1.0, generator=fast),
        "secure Laplace, float32": lambda: laplace(shape, scale=1.0, generator=secure),
        "secure 64-bit words": lambda: words(count, secure),
        "exact discrete Gaussian, stddev 10": lambda: discrete_gaussian(shape, stddev=10.0),
        "exact discrete Gaussian, stddev 500": lambda: discrete_gaussian(shape, stddev=500.0),
        "exact discrete Gaussian, stddev 1e6": lambda: discrete_gaussian(shape, stddev=1e6),
        "exact discrete Laplace, scale 10": lambda: discrete_laplace(shape, scale=10.0),
    }


def on_one_core(count: int, turns: int) -> Iterator[Row]:
    """Yield the speed of every case, then the ratios."""
    taken = taking_turns(cases(count), rounds=turns, clock=time.process_time)
    for name, seconds in taken.items():
        yield _speed("million draws a second, one core", name, count, seconds)
    for (name, kind), bar in BARS.items():
        ratios = taken[PEER.format(kind)] / taken[name]
        yield Row(
            subject="speed over that of torch.randn in the same run",
            name=name,
            value=float(np.median(ratios)),
            bar=bar,
            at_least=True,
            quartiles=(float(np.quantile(ratios, 0.25)), float(np.quantile(ratios, 0.75))),
        )


def networks(turns: int) -> Iterator[Row]:
    """Add noise to all parameters of a network at once, as a training step does."""
    for name, sizes in NETWORKS.items():
        sums = [torch.zeros(size) for size in sizes]
        calls: Mapping[str, Draw] = {name: lambda sums=sums: add_gaussian_many_(sums, stddev=1.0)}
        seconds = taking_turns(calls, rounds=turns, clock=time.perf_counter)[name]
        subject = "million draws a second into the gradients of a network, float32"
        yield _speed(subject, name, sum(sizes), seconds)


def gpu(turns: int) -> Iterator[Row]:
    """Add noise on the GPU, if there is one: secure noise and torch's own."""
    if not torch.cuda.is_available():
        return
    total = torch.zeros(GPU_COUNT, device="cuda")

    def waited(draw: Draw) -> Draw:
        return lambda: (draw(), torch.cuda.synchronize())

    calls = {
        "secure Gaussian, added in place": waited(lambda: add_gaussian_(total, stddev=1.0)),
        "torch normal_ (not secure)": waited(lambda: total.normal_()),
    }
    taken = taking_turns(calls, rounds=turns, clock=time.perf_counter)
    for name, seconds in taken.items():
        yield _speed("million draws a second on the GPU, float32", name, GPU_COUNT, seconds)
    ours, peer = taken.values()
    yield Row(
        subject="speed on the GPU over that of normal_",
        name="secure Gaussian, added in place",
        value=float(np.median(peer / ours)),
    )


def _speed(subject: str, name: str, count: int, seconds: np.ndarray) -> Row:
    return Row(subject=subject, name=name, value=count / float(seconds.min()) / 1e6)


def measured(*, quick: bool) -> Iterator[Row]:
    """Run every case on one core, and on the GPU."""
    torch.set_num_threads(1)
    count, turns = (1 << 21, 15) if quick else (1 << 23, 31)
    yield from on_one_core(count, turns)
    yield from networks(10 * turns)
    yield from gpu(turns)


def main() -> int:
    """Measure, print, and fail where a bar is not met."""
    options = command_line(__doc__, quick="fewer draws, fewer turns").parse_args()
    return report("Noise", measured(quick=options.quick), as_json=options.json)


if __name__ == "__main__":
    raise SystemExit(main())
