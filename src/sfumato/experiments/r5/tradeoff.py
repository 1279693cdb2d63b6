# SPDX-License-Identifier: Apache-2.0
"""R5, "Accuracy-Privacy Trade-off": accuracy against epsilon during one training run, noise 0.7.

Every point is the same run after more steps: epsilon grows with the steps, and so does accuracy, up to where
the noise holds it. For comparison other runs spend each of these epsilons in as many steps as the longest
one, with the noise that this needs.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r5 import runs, tasks
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_tradeoff
from sfumato.report.spread import mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

DELTA: Final = 1e-5
CLIP_NORM: Final = 0.5
NOISE: Final = 0.7  # of the run that the slides draw
DURING, AFRESH = "one run, while it is trained", "a run for each epsilon"


def _cases(scale: Scale) -> list[Case]:
    seeds = (1,) if scale.quick else (1, 2, 3, 4, 5)
    epsilons = (2.0,) if scale.quick else (0.5, 1.0, 2.0, 4.0)
    drawn: list[Case] = [{"way": DURING, "epsilon": None, "seed": seed} for seed in seeds]
    return drawn + [{"way": AFRESH, "epsilon": e, "seed": seed} for e in epsilons for seed in seeds]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    task = tasks.images("fashion-mnist", scale)
    epochs = 3 if scale.quick else 10
    batch = 120 if scale.quick else 256
    spent: dict[str, Any] = {"epsilon": case["epsilon"]}
    if case["epsilon"] is None:
        spent = {"noise_multiplier": NOISE}
    run = runs.private_run(
        lambda: tasks.logistic(task),
        task,
        seed=case["seed"],
        scale=scale,
        delta=DELTA,
        clip_norm=CLIP_NORM,
        expected_batch_size=batch,
        epochs=epochs,
        learning_rate=0.2,
        evaluate_every=max(1, round(epochs * task.public_size / batch) // 20),
        **spent,
    )
    points = [[round(row.epsilon, 4), row.accuracy] for row in run.history]
    kept = points if case["epsilon"] is None else points[-1:]
    return {"spent": run.epsilon, "accuracy": run.accuracy, "points": kept}


def _line(rows: Sequence[Row], way: str) -> dict[float, list[float]]:
    """Return from epsilon to the accuracies of all seeds. An epsilon does not depend on the seed."""
    found: dict[float, list[float]] = {}
    for row in rows:
        for epsilon, accuracy in row["points"] if row["way"] == way else ():
            found.setdefault(row["epsilon"] or epsilon, []).append(accuracy)
    return found


def _tables(rows: Sequence[Row]) -> list[Table]:
    cells = [
        (way, f"{epsilon:.3g}", shown(values, percent=True))
        for way in (DURING, AFRESH)
        for epsilon, values in _line(rows, way).items()
    ]
    title = f"Logistic regression, delta {DELTA:g}, clip norm {CLIP_NORM}, Poisson samples, add-remove, PLD"
    return [Table(title, ("way", "epsilon", "test accuracy, %"), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    lines = {f"{way} (noise {NOISE})" if way == DURING else way: _line(rows, way) for way in (DURING, AFRESH)}
    return {"accuracy": plot_tradeoff(lines, title=f"Logistic regression, delta {DELTA:g}")}


def _finding(rows: Sequence[Row]) -> Finding:
    line = _line(rows, DURING)
    best = max(line, key=lambda epsilon: mean_of(line[epsilon]))
    first, last = min(line), max(line)
    rises = runs.clearly_above(line[best], line[first])
    enough = min(epsilon for epsilon in line if mean_of(line[epsilon]) >= mean_of(line[last]) - 0.01)
    fresh = by_setting([row for row in rows if row["way"] == AFRESH], "epsilon", value="accuracy")
    least = min(fresh)
    return Finding(
        Verdict.CONFIRMED if rises else Verdict.REFUTED,
        f"Accuracy goes from {shown(line[first], percent=True)} % at epsilon {first:.3g} to "
        f"{shown(line[last], percent=True)} % at {last:.3g}, but is within one percent of that from epsilon "
        f"{enough:.3g} on. More noise is the better bargain: a run made for epsilon {least:g} reaches "
        f"{shown(fresh[least], percent=True)} %.",
    )


EXPERIMENT = Experiment(
    name="r5-tradeoff",
    report="R5",
    shows=("Accuracy-Privacy Trade-off",),
    title="Accuracy against epsilon while a logistic regression is trained",
    claim="Accuracy rises with the epsilon that training has spent.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("fashion-mnist",),
)
