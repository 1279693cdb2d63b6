# SPDX-License-Identifier: Apache-2.0
"""How much slower is a private step? Ours, vmap(grad) and Opacus 1.6.0, each over the plain PyTorch step.

    python benchmarks/training.py                  eight networks on one thread, and how cost grows
    python benchmarks/training.py --threads 2      the same on two
    python benchmarks/training.py --device cuda    eight networks on a GPU, with peak memory
    python benchmarks/training.py --quick          few rounds, slow peers left out; a minute, on a GPU eight
    python benchmarks/training.py --only WRN       the cases whose name holds this
    python benchmarks/training.py --json           rows for a program: what, value, bar, met

Step    Private: zero_grad, forward, backward, clip, noise, SGD update. Plain: neither clip nor noise.
Ratio   On the CPU all modes take turns, and a ratio is the median over rounds of mode / plain in the same
        round, with quartiles. On a GPU each mode starts clean, and plain is the plain step compiled, in CUDA
        graphs: the ratio is that of the medians over 20 steps. Memory is the peak from the first byte on,
        trials, compiling and the recording of graphs included.
Clock   One thread: CPU time of the process, so that waiting for a core does not count. More: wall time. GPU:
        device events. The process starts itself anew with glibc's heap kept mapped, for all modes alike:
        page faults would otherwise be most of the time of those that allocate much.
Bars    Each network faster than vmap(grad) and every mode of Opacus that works; at most 1.35 times plain with
        noise included (transformer: 1.2; LSTM and logistic regression at 256: 1.5). They are for our compiled
        step where the network is small (`Case.compiled`), for our eager one elsewhere. On a GPU: time and
        memory as in GPU_BARS, for our step without a flag, as in a long run; 1.15 where each layer is
        clipped, for ViT-S and GPT-2.
Peer    `pip install opacus==1.6.0`. Where it is absent, its rows are left out. It gets networks written as it
        wants them (DPLSTM for LSTM); a mode that cannot run a network is shown as failing, with its error.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from models import networks
from models.modes import OPACUS, opacus_is_installed
from models.networks import Case, LanguageModel
from models.results import Row, command_line, left_out, report
from models.timing import Clock, Seconds, cpu_step, gpu_mode, interleaved

# glibc, read when a process starts: no mapping for large blocks, and nothing handed back.
HEAP = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "200000000",
}
CPU_BAR = 1.35
CPU_BARS = {"logistic regression, 256": 1.5, "transformer, 8 x 128": 1.2, "LSTM, 64 x 64": 1.5}
GPU_BARS = {  # of time and of memory
    "MNIST CNN": (1.1, 1.5),
    "WRN-16-4": (1.5, 1.25),
    "WRN-28-10": (1.6, 1.25),
    "ViT-S/16": (1.3, 1.25),
    "ViT-B/16": (1.25, 1.25),
    "GPT-2,": (1.3, 1.25),
    "GPT-2 medium": (1.25, 1.25),
    "LSTM": (1.3, 1.25),
}
NO_BARS = (None, None)
PLAIN_ON_GPU, NO_FLAG, PER_LAYER = "plain, compiled in graphs", "no flag", "no flag, per layer"
PER_LAYER_BARS = {"ViT-S/16": 1.15, "GPT-2,": 1.15}
ON_GPU = ("plain", "ours, in graphs", "ours")  # shown only
PEERS = ("vmap(grad)", *OPACUS)
QUICK_PEERS = ("vmap(grad)", "Opacus ghost")
SMALL = ("logistic", "MLP", "CNN")  # whose peers are fast enough for a quick run
Bar = TypeVar("Bar")
GROWTH_BAR = 1.1  # exponent of time over size; 1 is linear


def main() -> int:
    """Measure, print, and fail where a bar is not met."""
    parser = command_line(__doc__, quick="few rounds, slow peers left out")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU; more than one: wall time")
    parser.add_argument("--only", default="", help="cases whose name holds this ('growth': only that)")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("this machine, or this build of torch, has no CUDA device.")
    if arguments.device == "cuda":
        title, rows = "Private step over plain step, GPU", on_gpu(arguments.only, quick=arguments.quick)
    else:
        keep_heap_mapped()
        title = f"Private step over plain step, {arguments.threads} thread(s)"
        rows = on_cpu(arguments.only, threads=arguments.threads, quick=arguments.quick)
    return report(title, chain(absent_peer(), rows), as_json=arguments.json)


def keep_heap_mapped() -> None:
    """Start this program anew with the settings of the heap, unless it has them."""
    if any(os.environ.get(name) != value for name, value in HEAP.items()):
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, os.environ | HEAP)


def absent_peer() -> Iterator[Row]:
    """Yield a row that says so where Opacus is not installed."""
    if not opacus_is_installed():
        yield left_out("Opacus", "it is not installed: pip install opacus==1.6.0")


def peers(names: tuple[str, ...]) -> list[str]:
    """Return those that can be measured here."""
    return [name for name in names if name not in OPACUS or opacus_is_installed()]


# --- CPU -------------------------------------------------------------------------------------------------


def on_cpu(only: str, *, threads: int, quick: bool) -> Iterator[Row]:
    """Measure the cases, then growth."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    rounds, turn = (3, 0.02) if quick else (15, 0.1)
    for case in networks.CPU:
        if only in case.name:
            modes = ["plain", *ours(case), *cpu_peers(case, quick=quick)]
            steps = {mode: cpu_step(case, mode) for mode in modes}
            yield from cpu_rows(case, interleaved(steps, rounds=rounds, turn=turn, clock=clock))
    if only in "growth":
        yield from growth(clock, quick=quick)


def ours(case: Case) -> list[str]:
    """Return our modes for a case on a CPU, the one with the bars last."""
    return ["ours", "ours, compiled"] if case.compiled else ["ours"]


def cpu_peers(case: Case, *, quick: bool) -> list[str]:
    """Return the peers of a case; a quick run leaves out the slow ones, and all of the large networks'."""
    if not quick:
        return peers(PEERS)
    return peers(QUICK_PEERS) if any(name in case.name for name in SMALL) else []


def cpu_rows(case: Case, found: Mapping[str, Seconds]) -> Iterator[Row]:
    """Turn times into ratios to plain, and one ratio of ours to the best peer."""
    base = found["plain"]
    yield Row(subject=case.name, name="plain, ms", value=base.median * 1e3)
    for mode, seconds in found.items():
        if mode != "plain":
            bar = CPU_BARS.get(case.name, CPU_BAR) if mode == ours(case)[-1] else None
            yield ratio(case, f"{mode} / plain", seconds, base, bar)
    yield from against_peers(case, found)


def ratio(case: Case, name: str, seconds: Seconds, base: Seconds, bar: float | None) -> Row:
    """Return the median over rounds of a mode's time over another's in the same round."""
    if seconds.error:
        return Row(subject=case.name, name=name, value=None, bar=bar, note=seconds.error)
    ratios = [a / b for a, b in zip(seconds.rounds, base.rounds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Row(subject=case.name, name=name, value=middle, bar=bar, quartiles=(low, high))


def against_peers(case: Case, found: Mapping[str, Seconds]) -> Iterator[Row]:
    """Yield our time over the fastest peer's; ours must be less."""
    measured = {name: found[name] for name in PEERS if name in found and not found[name].error}
    best = found[ours(case)[-1]]
    if measured and not best.error:
        fastest = min(measured, key=lambda name: measured[name].median)
        row = ratio(case, f"{ours(case)[-1]} / fastest peer", best, measured[fastest], 1.0)
        yield replace(row, note=fastest)


# --- growth ----------------------------------------------------------------------------------------------

BATCHES = (64, 128, 256, 512, 1024)
DEPTHS = (2, 4, 8, 16)


def deep_mlp(depth: int) -> Case:
    """Return a network of so many hidden layers."""
    return Case(f"MLP, {depth} layers", partial(networks.mlp, depth, 256), 256, networks.images(784))


def deep_transformer(depth: int) -> Case:
    """Return a network of so many blocks."""
    make = partial(LanguageModel, 100, 64, 128, depth, 4, tied=False)
    return Case(f"transformer, {depth} blocks", make, 8, networks.text(64, 100))


def larger(case: str, make: Callable[[], torch.nn.Module], *shape: int) -> Callable[[int], Case]:
    """Return how to make a case of any batch size."""
    return lambda size: Case(f"{case}, {size}", make, size, networks.images(*shape))


GROWTH: dict[str, tuple[Callable[[int], Case], tuple[int, ...]]] = {
    "MLP over batch size": (larger("MLP", networks.mlp, 784), BATCHES),
    "MNIST CNN over batch size": (larger("MNIST CNN", networks.cnn, 1, 28, 28), BATCHES),
    "MLP over depth": (deep_mlp, DEPTHS),
    "transformer over depth": (deep_transformer, DEPTHS),
}


def growth(clock: Clock, *, quick: bool) -> Iterator[Row]:
    """Yield our step time for growing sizes, and the exponent fitted to it."""
    rounds, turn = (3, 0.02) if quick else (9, 0.1)
    for name, (make, sizes) in GROWTH.items():
        chosen = sizes[: 3 if quick else None]
        steps = {str(size): cpu_step(make(size), "ours") for size in chosen}
        found = interleaved(steps, rounds=rounds, turn=turn, clock=clock)
        times = [found[str(size)].median for size in chosen]
        for size, seconds in zip(chosen, times, strict=True):
            yield Row(subject=f"growth: {name}", name=f"{size}, ms", value=seconds * 1e3)
        exponent = float(np.polyfit(np.log(chosen), np.log(times), 1)[0])
        yield Row(subject=f"growth: {name}", name="exponent", value=exponent, bar=GROWTH_BAR)


# --- GPU -------------------------------------------------------------------------------------------------


def on_gpu(only: str, *, quick: bool) -> Iterator[Row]:
    """Measure the cases; a quick run leaves out all that has no bar."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for case in networks.GPU:
        if only in case.name:
            yield from gpu_rows(case, [] if quick else [*ON_GPU, *peers(PEERS)])


def gpu_rows(case: Case, others: list[str]) -> Iterator[Row]:
    """Yield time and memory of each mode, over those of the plain step."""
    gpu_mode(case, "plain")  # the first run of a shape chooses kernels for all
    base, ours = gpu_mode(case, PLAIN_ON_GPU), gpu_mode(case, NO_FLAG)
    bars = bar_of(case, GPU_BARS) or NO_BARS
    if base.error or ours.error:
        yield Row(subject=case.name, name=NO_FLAG, value=None, bar=bars[0], note=base.error or ours.error)
        return
    yield Row(subject=case.name, name=f"{PLAIN_ON_GPU}, ms", value=base.median * 1e3)
    yield Row(subject=case.name, name=f"{PLAIN_ON_GPU}, MiB", value=base.peak / 2**20)
    yield Row(subject=case.name, name=f"{NO_FLAG}, ms", value=ours.median * 1e3, note=ours.way)
    yield from gpu_ratios(case, NO_FLAG, ours, base, bars)
    if (bar := bar_of(case, PER_LAYER_BARS)) is not None:
        seconds = gpu_mode(case, PER_LAYER)
        yield from gpu_ratios(case, PER_LAYER, seconds, base, (bar, None))
    times = {mode: gpu_mode(case, mode) for mode in others}
    for mode, seconds in times.items():
        yield from gpu_ratios(case, mode, seconds, base, NO_BARS)
    yield from faster_than_peers(case, ours, times)


def bar_of(case: Case, bars: Mapping[str, Bar]) -> Bar | None:
    """Return what stands under the beginning of a case's name."""
    return next((bar for name, bar in bars.items() if case.name.startswith(name)), None)


def gpu_ratios(
    case: Case,
    mode: str,
    seconds: Seconds,
    base: Seconds,
    bars: tuple[float | None, float | None],
) -> Iterator[Row]:
    """Yield the ratios of time and of memory."""
    failed = bool(seconds.error)
    pairs = {"time": (seconds.median, base.median), "memory": (seconds.peak, base.peak)} if not failed else {}
    for quantity, bar in zip(("time", "memory"), bars, strict=True):
        above, under = pairs.get(quantity, (0.0, 1.0))
        yield Row(
            subject=case.name,
            name=f"{mode} / plain, {quantity}",
            value=None if failed else above / under,
            bar=bar,
            note=seconds.error,
        )


def faster_than_peers(case: Case, ours: Seconds, times: Mapping[str, Seconds]) -> Iterator[Row]:
    """Yield our time over the fastest peer's."""
    measured = {name: times[name].median for name in PEERS if name in times and not times[name].error}
    if measured:
        fastest = min(measured, key=lambda name: measured[name])
        value = ours.median / measured[fastest]
        yield Row(subject=case.name, name="no flag / fastest peer, time", value=value, bar=1.0, note=fastest)


if __name__ == "__main__":
    raise SystemExit(main())
