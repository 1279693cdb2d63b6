# SPDX-License-Identifier: Apache-2.0
"""R5, "Improving Efficiency": microbatches, whose average is clipped in place of the gradient of each row.

One row can turn the clipped average of its microbatch into any other vector of that norm, so the sum moves by
twice the clip norm and the noise counts half. Measured are both runs: the one whose noise was chosen as if
rows were clipped one by one, with the epsilon that it claims and the one that holds; and the one whose noise
keeps the claim. The budget is that of the slides' figure of speed, epsilon 4. Sums of averages are divided by
the number of rows, so the learning rate is 0.1 times the size of a microbatch.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sfumato.accounting import Relation
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r5 import runs, tasks
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_lines
from sfumato.report.spread import mean_of
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

DELTA: Final = 1e-5
EPSILON: Final = 4.0
CLAIMED, HELD = "noise for single rows", "noise for microbatches"


def _cases(scale: Scale) -> list[Case]:
    sizes = (1, 4) if scale.quick else (1, 2, 4, 16, 64)
    seeds = (1,) if scale.quick else (1, 2, 3, 4, 5)
    ways = [(size, way) for size in sizes for way in ((HELD,) if size == 1 else (CLAIMED, HELD))]
    return [{"size": size, "noise_for": way, "seed": seed} for size, way in ways for seed in seeds]


def _mechanism(size: int, *, rate: float, steps: int) -> DpSgd:
    return DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0), group_size=size),
        sampling=PoissonSampling(sampling_rate=rate),
        noise=[(1.0, steps)],
        relation=Relation.ADD_REMOVE,
    )


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    task = tasks.images("mnist", scale)
    steps, batch = (8, 100) if scale.quick else (500, 256)
    rate = batch / task.public_size
    mechanism = _mechanism(case["size"], rate=rate, steps=steps)
    if case["noise_for"] == CLAIMED:
        single = _mechanism(1, rate=rate, steps=steps).calibrated(epsilon=EPSILON, delta=DELTA)
        mechanism = mechanism.scaled(single.noise_multiplier(0))
    else:
        mechanism = mechanism.calibrated(epsilon=EPSILON, delta=DELTA)
    begun = time.monotonic()
    run = runs.private_run(
        lambda: tasks.convolutional(task),
        task,
        seed=case["seed"],
        scale=scale,
        mechanism=mechanism,
        delta=DELTA,
        optimizer=runs.sgd(0.1 * case["size"]),
        evaluate_every=steps,
    )
    return {**runs.summary(run), "seconds": time.monotonic() - begun}


def _of(rows: Sequence[Row], way: str, value: str) -> dict[int, list[float]]:
    """Return values by size; single rows are the first point of both ways."""
    return by_setting(
        [row for row in rows if row["noise_for"] == way or row["size"] == 1], "size", value=value
    )


def _tables(rows: Sequence[Row]) -> list[Table]:
    cells = [
        (
            size,
            way,
            f"{mean_of(_of(rows, way, 'noise_multiplier')[size]):.3f}",
            f"{EPSILON:g}",
            f"{mean_of(_of(rows, way, 'epsilon')[size]):.3g}",
            shown(accuracies, percent=True),
            shown(_of(rows, way, "seconds")[size]),
        )
        for way in (CLAIMED, HELD)
        for size, accuracies in _of(rows, way, "accuracy").items()
        if size > 1 or way == HELD
    ]
    heads = ("microbatch", "noise", "noise multiplier", "claimed epsilon", "honest epsilon")
    heads = (*heads, "test accuracy, %", "seconds")
    return [Table(f"CNN, delta {DELTA:g}, clip norm 1, Poisson samples, add-remove, PLD", heads, cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    drawn = plot_lines(
        {way: _of(rows, way, "accuracy") for way in (CLAIMED, HELD)},
        title=f"CNN, microbatches, claimed epsilon {EPSILON:g}",
        x_label="rows in a microbatch",
        y_label="test accuracy",
        log_x=True,
        percent=True,
    )
    return {"accuracy": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    right, seconds = (_of(rows, HELD, name) for name in ("accuracy", "seconds"))
    largest = max(right)
    paid = _of(rows, CLAIMED, "epsilon")
    faster = mean_of(seconds[largest]) < mean_of(seconds[1])
    worse = runs.clearly_above(right[1], right[largest])
    verdict = Verdict.REFUTED if not faster else Verdict.PARTLY if worse else Verdict.CONFIRMED
    return Finding(
        verdict,
        f"With noise for single rows, microbatches claim epsilon {EPSILON:g} and cost "
        f"{mean_of(paid[largest]):.3g}. At an honest epsilon of {EPSILON:g} accuracy goes from "
        f"{shown(right[1], percent=True)} % with single rows to {shown(right[largest], percent=True)} % with "
        f"microbatches of {largest}, and a run from {mean_of(seconds[1]):.1f} to "
        f"{mean_of(seconds[largest]):.1f} seconds.",
    )


EXPERIMENT = Experiment(
    name="r5-microbatches",
    report="R5",
    shows=("Improving Efficiency: Microbatching",),
    title="Clipping microbatches in place of rows",
    claim="Clipping microbatches rather than single rows makes DP-SGD more efficient.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
