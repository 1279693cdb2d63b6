# SPDX-License-Identifier: Apache-2.0
"""R5, "Clipping Types and Convergence", with noise: a small CNN on MNIST, private, by each style of clipping.

`clipping_kernel` measures the argument of the slides without noise. With noise the question is another one:
all styles have the same noise multiplier, so the same epsilon, and differ in what is left of the gradient.
Global clipping multiplies every gradient by R/Z and keeps noise for R, so Z is what noise is sized by; its
learning rate makes up for the factor. Settings were not searched.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r5 import runs, tasks
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_bars
from sfumato.report.spread import mean_of
from sfumato.training import Clipping, Scaling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

DELTA: Final = 1e-5
NOISE: Final = 1.0
CLIP_NORM: Final = 1.0
DROP_ABOVE: Final = 10.0
NONE: Final = "no clipping, no noise"
STYLES: Final = {
    "local flat": Clipping(clip_norm=CLIP_NORM),
    "local layerwise": Clipping(clip_norm=CLIP_NORM, per_layer=True),
    "global flat": Clipping(clip_norm=CLIP_NORM, scaling=Scaling.GLOBAL, drop_above=DROP_ABOVE),
    "global layerwise": Clipping(
        clip_norm=CLIP_NORM, per_layer=True, scaling=Scaling.GLOBAL, drop_above=DROP_ABOVE
    ),
    "automatic flat": Clipping(clip_norm=CLIP_NORM, scaling=Scaling.AUTOMATIC),
}


def _cases(scale: Scale) -> list[Case]:
    seeds = (1,) if scale.quick else (1, 2, 3, 4, 5)
    return [{"style": style, "seed": seed} for style in (NONE, *STYLES) for seed in seeds]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    task = tasks.images("mnist", scale)
    steps, batch = (8, 100) if scale.quick else (500, 256)
    if case["style"] == NONE:
        plain = runs.plain_run(
            lambda: tasks.convolutional(task),
            task,
            seed=case["seed"],
            scale=scale,
            steps=steps,
            batch_size=batch,
            learning_rate=0.1,
            momentum=0.0,
        )
        return {"accuracy": plain["accuracy"], "loss": plain["loss"], "epsilon": None}
    clipping = STYLES[case["style"]]
    rate = 0.1 if clipping.drop_above is None else 0.1 * clipping.drop_above / CLIP_NORM
    run = runs.private_run(
        lambda: tasks.convolutional(task),
        task,
        seed=case["seed"],
        scale=scale,
        noise_multiplier=NOISE,
        delta=DELTA,
        clipping=clipping,
        expected_batch_size=batch,
        steps=steps,
        optimizer=runs.sgd(rate),
    )
    found = runs.summary(run)
    return {name: found[name] for name in ("accuracy", "loss", "epsilon")}


def _tables(rows: Sequence[Row]) -> list[Table]:
    right, losses = (by_setting(rows, "style", value=name) for name in ("accuracy", "loss"))
    costs = by_setting(rows, "style", value="epsilon")
    cells = [
        (
            style,
            f"{mean_of(costs[style]):.3g}" if style in costs else "no guarantee",
            shown(losses.get(style, []), digits=3),
            shown(right[style], percent=True),
        )
        for style in right
    ]
    title = (
        f"CNN, noise {NOISE}, delta {DELTA:g}, Poisson samples, add-remove, PLD; global: Z = {DROP_ABOVE:g} R"
    )
    return [Table(title, ("clipping", "epsilon", "test loss", "test accuracy, %"), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    bars = by_setting(rows, "style", value="accuracy")
    drawn = plot_bars(
        bars, title=f"CNN, noise {NOISE}, by style of clipping", y_label="test accuracy", percent=True
    )
    return {"accuracy": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    right = by_setting(rows, "style", value="accuracy")
    better = runs.clearly_above(right["global flat"], right["local flat"])
    worse = runs.clearly_above(right["local flat"], right["global flat"])
    verdict = Verdict.CONFIRMED if better else Verdict.REFUTED if worse else Verdict.PARTLY
    told = ", ".join(f"{style} {shown(right[style], percent=True)} %" for style in STYLES)
    return Finding(verdict, f"At the same noise and epsilon: {told}.")


EXPERIMENT = Experiment(
    name="r5-clipping-private",
    report="R5",
    shows=("Local vs. Global Clipping", "Clipping Styles"),
    title="Clipping styles in private training",
    claim="Global clipping converges better than local clipping at the same privacy.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
