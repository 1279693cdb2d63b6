# SPDX-License-Identifier: Apache-2.0
"""R5, "Improving Efficiency": time and memory of DP-SGD and DP-SGD-JL, a small CNN on MNIST.

As in the slides 500 steps, learning rate 0.1, epsilon 4. DP-SGD is run three ways: with all gradients of
single rows in memory, as libraries did in 2021 and the slides compare with; by sfumato's own engine, which
needs none of them; and with norms estimated by r random projections (DP-SGD-JL). The noise of each meets the
same epsilon. JL needs more, because an estimated norm may be too small; the slides do not say so.

Memory is the peak that tensors of one step take beyond the weights: what is allocated on a GPU, or what
torch's profiler counts on a CPU. Times depend on the machine and on what else it does.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F

from sfumato.accounting import Relation
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r5 import runs, tasks
from sfumato.experiments.r5.memory import peak_bytes
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_bars
from sfumato.report.spread import mean_of
from sfumato.training import (
    Clipping,
    DpSgd,
    Engines,
    NoisyStep,
    PassSettings,
    PoissonSampling,
    PrivateGradients,
    Runtime,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

DELTA: Final = 1e-5
EPSILON: Final = 4.0
LEARNING_RATE: Final = 0.1
PER_ROW, OURS = "DP-SGD, gradients of single rows", "DP-SGD, sfumato's engine"
PLAIN: Final = "SGD, not private"


def _jl(projections: int) -> str:
    return f"DP-SGD-JL, {projections} projections"


def _cases(scale: Scale) -> list[Case]:
    tried = (20,) if scale.quick else (5, 20, 100)
    ways: list[tuple[str, int | None]] = [(PLAIN, None), (PER_ROW, None), (OURS, None)]
    ways += [(_jl(count), count) for count in tried]
    seeds = (1,) if scale.quick else (1, 2, 3)
    return [{"way": way, "projections": count, "seed": seed} for way, count in ways for seed in seeds]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    task = tasks.images("mnist", scale)
    steps, batch = (8, 100) if scale.quick else (500, 256)
    if case["way"] == PLAIN:
        plain = runs.plain_run(
            lambda: tasks.convolutional(task),
            task,
            seed=case["seed"],
            scale=scale,
            steps=steps,
            batch_size=batch,
            learning_rate=LEARNING_RATE,
            momentum=0.0,
        )
        memory = _memory(case, task, scale, batch)
        return {"accuracy": plain["accuracy"], "seconds": plain["seconds"], "noise": None, "memory": memory}
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0), projections=case["projections"]),
        sampling=PoissonSampling(sampling_rate=batch / task.public_size),
        noise=[(1.0, steps)],
        relation=Relation.ADD_REMOVE,
    ).calibrated(epsilon=EPSILON, delta=DELTA)
    begun = time.monotonic()
    run = runs.private_run(
        lambda: tasks.convolutional(task),
        task,
        seed=case["seed"],
        scale=scale,
        mechanism=mechanism,
        delta=DELTA,
        runtime=Runtime(engine=_engine(case), check=False),
        optimizer=runs.sgd(LEARNING_RATE),
        evaluate_every=steps,
    )
    seconds = time.monotonic() - begun
    found = runs.summary(run)
    return {
        "accuracy": found["accuracy"],
        "seconds": seconds,
        "noise": found["noise_multiplier"],
        "epsilon": found["epsilon"],
        "memory": _memory(case, task, scale, batch),
    }


def _engine(case: Case) -> Engines:
    return Engines.FUNCTIONAL if case["way"] == PER_ROW else Engines.AUTO


def _memory(case: Case, task: tasks.Task, scale: Scale, batch: int) -> int:
    """Return the peak of one step over a batch, in bytes, after one that is not counted."""
    device = tasks.device_of(scale)
    model = tasks.with_seed(lambda: tasks.convolutional(task), case["seed"]).to(device)
    x, y = (part[:batch].to(device) for part in task.train)
    if case["way"] == PLAIN:
        return peak_bytes(lambda: torch.autograd.backward(F.cross_entropy(model(x), y)), device)
    private = PrivateGradients(
        model,
        noise_multiplier=1.0,
        expected_batch_size=batch,
        clip_norm=1.0,
        projections=case["projections"],
        passes=PassSettings(engine=_engine(case), check=False),
    )
    return peak_bytes(lambda: private.backward(x, y), device)


def _tables(rows: Sequence[Row]) -> list[Table]:
    found = {name: by_setting(rows, "way", value=name) for name in ("seconds", "memory", "noise", "accuracy")}
    cells = [
        (
            way,
            f"{mean_of(found['noise'][way]):.3f}" if way in found["noise"] else "-",
            shown(found["seconds"][way]),
            f"{mean_of(found['memory'][way]) / 2**20:.1f}",
            shown(found["accuracy"][way], percent=True),
        )
        for way in found["seconds"]
    ]
    heads = ("way", "noise multiplier", "seconds", "peak of a step, MiB", "test accuracy, %")
    title = f"CNN, epsilon {EPSILON:g}, delta {DELTA:g}, Poisson samples, add-remove"
    return [Table(title, heads, cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    seconds = by_setting(rows, "way", value="seconds")
    memory = {
        way: [one / 2**20 for one in values]
        for way, values in by_setting(rows, "way", value="memory").items()
    }
    return {
        "seconds": plot_bars(seconds, title="Time of a run", y_label="seconds"),
        "memory": plot_bars(memory, title="Peak memory of a step", y_label="MiB"),
    }


def _finding(rows: Sequence[Row]) -> Finding:
    seconds, memory = (by_setting(rows, "way", value=name) for name in ("seconds", "memory"))
    counts = sorted({row["projections"] for row in rows if row["projections"] is not None})
    fast = [_jl(count) for count in counts if mean_of(seconds[_jl(count)]) < mean_of(seconds[PER_ROW])]
    small = [_jl(count) for count in counts if mean_of(memory[_jl(count)]) < mean_of(memory[PER_ROW])]
    beats = [way for way in fast if mean_of(seconds[way]) < mean_of(seconds[OURS])]
    verdict = Verdict.PARTLY if fast or small else Verdict.REFUTED
    if len(fast) == len(small) == len(beats) == len(counts):
        verdict = Verdict.CONFIRMED
    noise = by_setting(rows, "way", value="noise")
    some = _jl(counts[len(counts) // 2])
    return Finding(
        verdict,
        f"{some}: {mean_of(seconds[some]):.1f} s and {mean_of(memory[some]) / 2**20:.0f} MiB a step; "
        f"gradients of single rows: {mean_of(seconds[PER_ROW]):.1f} s and "
        f"{mean_of(memory[PER_ROW]) / 2**20:.0f} MiB; "
        f"sfumato's engine, with exact norms: {mean_of(seconds[OURS]):.1f} s and "
        f"{mean_of(memory[OURS]) / 2**20:.0f} MiB. Of {len(counts)} numbers of projections "
        f"{len(fast)} are "
        f"faster than gradients of single rows, {len(small)} smaller, and {len(beats)} faster than sfumato's "
        f"engine. At epsilon {EPSILON:g} JL needs noise {mean_of(noise[some]):.3f} in place of "
        f"{mean_of(noise[OURS]):.3f}.",
    )


EXPERIMENT = Experiment(
    name="r5-jl",
    report="R5",
    shows=("Improving Efficiency (a)",),
    title="Time and memory of DP-SGD and DP-SGD-JL",
    claim="DP-SGD-JL trains faster and with less memory than DP-SGD.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
