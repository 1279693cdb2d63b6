# SPDX-License-Identifier: Apache-2.0
"""R5, "Effects of Batch Size": epsilon and accuracy against the batch size, noise 0.7.

The slides do not say what is held fixed. Three answers are measured: the number of epochs, the number of
steps, and epsilon (the noise follows; epochs are fixed). For the first two the learning rate is the same for
all batch sizes. For the last it is proportional to the batch size, so that small and large batches can go as
far in an epoch.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r5 import runs, tasks
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_lines
from sfumato.report.spread import mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

DELTA: Final = 1e-5
CLIP_NORM: Final = 0.5
NOISE: Final = 0.7
BUDGET: Final = 1.0  # where epsilon is held fixed
EPOCHS, STEPS, EPSILON = "same epochs", "same steps", f"same epsilon ({BUDGET:g})"


def _cases(scale: Scale) -> list[Case]:
    sizes = (30, 240) if scale.quick else (64, 128, 256, 512, 1024, 2048)
    seeds = (1,) if scale.quick else (1, 2, 3, 4, 5)
    fixed = (EPOCHS, STEPS, EPSILON)
    return [{"fixed": what, "batch": size, "seed": s} for what in fixed for size in sizes for s in seeds]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    task = tasks.images("fashion-mnist", scale)
    epochs: dict[str, Any] = {"epochs": 2 if scale.quick else 10}
    length: dict[str, Any] = {"steps": 10 if scale.quick else 600} if case["fixed"] == STEPS else epochs
    noise: dict[str, Any] = {"epsilon": BUDGET} if case["fixed"] == EPSILON else {"noise_multiplier": NOISE}
    larger = case["batch"] / (120 if scale.quick else 256)
    run = runs.private_run(
        lambda: tasks.logistic(task),
        task,
        seed=case["seed"],
        scale=scale,
        delta=DELTA,
        clip_norm=CLIP_NORM,
        expected_batch_size=case["batch"],
        learning_rate=0.2 * larger if case["fixed"] == EPSILON else 0.2,
        **length,
        **noise,
    )
    return runs.summary(run)


def _of(rows: Sequence[Row], fixed: str, value: str) -> dict[int, list[float]]:
    return by_setting([row for row in rows if row["fixed"] == fixed], "batch", value=value)


def _tables(rows: Sequence[Row]) -> list[Table]:
    cells = [
        (
            fixed,
            batch,
            f"{mean_of(_of(rows, fixed, 'noise_multiplier')[batch]):.3g}",
            f"{mean_of(_of(rows, fixed, 'steps')[batch]):.0f}",
            f"{mean_of(_of(rows, fixed, 'epsilon')[batch]):.3g}",
            shown(accuracies, percent=True),
        )
        for fixed in (EPOCHS, STEPS, EPSILON)
        for batch, accuracies in _of(rows, fixed, "accuracy").items()
    ]
    heads = ("held fixed", "expected batch size", "noise", "steps", "epsilon", "test accuracy, %")
    title = f"Logistic regression, delta {DELTA:g}, clip norm {CLIP_NORM}, Poisson samples, add-remove, PLD"
    return [Table(title, heads, cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    cost = plot_lines(
        {fixed: _of(rows, fixed, "epsilon") for fixed in (EPOCHS, STEPS, EPSILON)},
        title=f"Cost, noise {NOISE}, delta {DELTA:g}",
        x_label="expected batch size",
        y_label="epsilon",
        log_x=True,
        log_y=True,
    )
    accuracy = plot_lines(
        {fixed: _of(rows, fixed, "accuracy") for fixed in (EPOCHS, STEPS, EPSILON)},
        title="Accuracy against the batch size",
        x_label="expected batch size",
        y_label="accuracy on test rows",
        log_x=True,
        percent=True,
    )
    return {"epsilon": cost, "accuracy": accuracy}


def _finding(rows: Sequence[Row]) -> Finding:
    cost = {fixed: _of(rows, fixed, "epsilon") for fixed in (EPOCHS, STEPS)}
    right = {fixed: _of(rows, fixed, "accuracy") for fixed in (EPOCHS, STEPS, EPSILON)}
    small, large = min(right[EPOCHS]), max(right[EPOCHS])
    dearer = all(mean_of(one[large]) > mean_of(one[small]) for one in cost.values())
    better = {fixed: runs.clearly_above(one[large], one[small]) for fixed, one in right.items()}
    verdict = Verdict.REFUTED if not dearer else Verdict.PARTLY
    if dearer and all(better.values()):
        verdict = Verdict.CONFIRMED
    told = "; ".join(
        f"{fixed}: {shown(one[small], percent=True)} to {shown(one[large], percent=True)} %, best at "
        f"{max(one, key=lambda size: mean_of(one[size]))}"
        for fixed, one in right.items()
    )
    costs = " and ".join(
        f"{mean_of(one[small]):.3g} to {mean_of(one[large]):.3g} ({fixed})" for fixed, one in cost.items()
    )
    return Finding(
        verdict, f"From batches of {small} to {large} epsilon goes from {costs}. Accuracy: {told}."
    )


EXPERIMENT = Experiment(
    name="r5-batch-size",
    report="R5",
    shows=("Effects of Batch Size (a)", "Effects of Batch Size (b)"),
    title="Epsilon and accuracy against the batch size",
    claim="Larger batches cost more privacy and give more accuracy (drawn, not said).",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("fashion-mnist",),
)
