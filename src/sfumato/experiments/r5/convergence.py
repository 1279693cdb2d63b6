# SPDX-License-Identifier: Apache-2.0
"""R5, "Effect of Noise on Convergence": the loss of a small CNN over 500 steps, for several noises.

The slides draw the loss of DP-SGD on MNIST with local clipping and give no settings. Here: SGD without
momentum, learning rate 0.1 (that of the slides' figure of speed), clip norm 1, batches of 256. Shown is the
loss on test rows; that on training rows is private in general, and here much the same.
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
LEARNING_RATE: Final = 0.1
NONE: Final = "no clipping, no noise"


def _cases(scale: Scale) -> list[Case]:
    noises: tuple[float | None, ...] = (None, 1.0) if scale.quick else (None, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    seeds = (1,) if scale.quick else (1, 2, 3, 4, 5)
    return [{"noise": noise, "seed": seed} for noise in noises for seed in seeds]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    task = tasks.images("mnist", scale)
    steps, batch, every = (12, 100, 3) if scale.quick else (500, 256, 25)
    if case["noise"] is None:
        found = runs.plain_run(
            lambda: tasks.convolutional(task),
            task,
            seed=case["seed"],
            scale=scale,
            steps=steps,
            batch_size=batch,
            learning_rate=LEARNING_RATE,
            momentum=0.0,
            evaluate_every=every,
        )
        curve = [[point["step"], point["loss"]] for point in found["history"]]
        return {"accuracy": found["accuracy"], "loss": found["loss"], "epsilon": None, "curve": curve}
    run = runs.private_run(
        lambda: tasks.convolutional(task),
        task,
        seed=case["seed"],
        scale=scale,
        noise_multiplier=case["noise"],
        delta=DELTA,
        clip_norm=1.0,
        expected_batch_size=batch,
        steps=steps,
        optimizer=runs.sgd(LEARNING_RATE),
        evaluate_every=every,
    )
    found = runs.summary(run)
    curve = [[row.step, row.to_dict()["loss"]] for row in run.history]
    return {name: found[name] for name in ("accuracy", "loss", "epsilon")} | {"curve": curve}


def _name(noise: float | None) -> str:
    return NONE if noise is None else f"noise {noise:g}"


def _tables(rows: Sequence[Row]) -> list[Table]:
    losses, right = (by_setting(rows, "noise", value=name) for name in ("loss", "accuracy"))
    costs = by_setting(rows, "noise", value="epsilon")
    cells = [
        (
            _name(noise),
            f"{mean_of(costs[noise]):.3g}" if noise in costs else "no guarantee",
            shown(losses[noise], digits=3),
            shown(right[noise], percent=True),
        )
        for noise in losses
    ]
    title = f"CNN after the last step, clip norm 1, delta {DELTA:g}, Poisson samples, add-remove, PLD"
    return [Table(title, ("noise multiplier", "epsilon", "test loss", "test accuracy, %"), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    lines: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        line = lines.setdefault(_name(row["noise"]), {})
        for step, loss in row["curve"]:
            if loss is not None:
                line.setdefault(step, []).append(loss)
    drawn = plot_lines(
        lines,
        title="CNN, 2 convolutions and 2 linear layers",
        x_label="steps",
        y_label="test loss",
        log_y=True,
    )
    return {"loss": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    losses = by_setting(rows, "noise", value="loss")
    noises = sorted(noise for noise in losses if noise is not None)
    low, high = noises[0], noises[-1]
    slower = runs.clearly_above(losses[high], losses[low])
    harmless = [noise for noise in noises if not runs.clearly_above(losses[noise], losses[low])]
    return Finding(
        Verdict.CONFIRMED if slower else Verdict.REFUTED,
        f"After the last step the test loss is {shown(losses[low], digits=3)} with noise {low:g}, "
        f"{shown(losses[high], digits=3)} with noise {high:g} and {shown(losses[None], digits=3)} without "
        f"clipping and noise. Up to noise {max(harmless):g} it cannot be told from that with noise {low:g}.",
    )


EXPERIMENT = Experiment(
    name="r5-cnn-noise",
    report="R5",
    shows=("Effect of Noise on Convergence",),
    title="Convergence of a small CNN on MNIST, for several noises",
    claim="More noise makes DP-SGD converge more slowly.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
