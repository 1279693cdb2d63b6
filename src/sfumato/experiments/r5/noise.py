# SPDX-License-Identifier: Apache-2.0
"""R5, "Experimental Results": epsilon and test accuracy against the noise, logistic regression.

The slides fix delta 1e-5 and a clip norm of 0.5 and draw both figures without numbers; they account by RDP.
Batch size, learning rate and epochs are not stated; they are ours. The tight epsilon (PLD) stands beside the
one that RDP gives for the same run.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sfumato.accounting import Accountant, price
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


def _cases(scale: Scale) -> list[Case]:
    noises = (0.7, 4.0) if scale.quick else (0.5, 0.7, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0)
    seeds = (1,) if scale.quick else (1, 2, 3, 4, 5)
    return [{"noise": noise, "seed": seed} for noise in noises for seed in seeds]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    task = tasks.images("fashion-mnist", scale)
    run = runs.private_run(
        lambda: tasks.logistic(task),
        task,
        seed=case["seed"],
        scale=scale,
        noise_multiplier=case["noise"],
        delta=DELTA,
        clip_norm=CLIP_NORM,
        expected_batch_size=120 if scale.quick else 256,
        epochs=4 if scale.quick else 10,
        learning_rate=0.2,
    )
    by_rdp = price(run.mechanism.event(), delta=DELTA, accountant=Accountant.RDP)
    return {**runs.summary(run), "epsilon_rdp": by_rdp.epsilon}


def _tables(rows: Sequence[Row]) -> list[Table]:
    found = {name: by_setting(rows, "noise", value=name) for name in ("epsilon_rdp", "epsilon", "accuracy")}
    cells = [
        (
            noise,
            f"{mean_of(found['epsilon_rdp'][noise]):.3g}",
            f"{mean_of(found['epsilon'][noise]):.3g}",
            shown(found["accuracy"][noise], percent=True),
        )
        for noise in found["epsilon"]
    ]
    heads = ("noise multiplier", "epsilon by RDP, as in the slides", "epsilon by PLD", "test accuracy, %")
    title = f"Logistic regression, delta {DELTA:g}, clip norm {CLIP_NORM}, Poisson samples, add-remove"
    return [Table(title, heads, cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    epsilons = {
        "RDP": by_setting(rows, "noise", value="epsilon_rdp"),
        "PLD": by_setting(rows, "noise", value="epsilon"),
    }
    cost = plot_lines(
        epsilons,
        title=f"Cost of a run, delta {DELTA:g}",
        x_label="noise multiplier",
        y_label="epsilon",
        log_x=True,
        log_y=True,
    )
    accuracy = plot_lines(
        {"DP-SGD": by_setting(rows, "noise", value="accuracy")},
        title=f"Logistic regression, clip norm {CLIP_NORM}",
        x_label="noise multiplier",
        y_label="accuracy on test rows",
        log_x=True,
        percent=True,
    )
    return {"epsilon": cost, "accuracy": accuracy}


def _finding(rows: Sequence[Row]) -> Finding:
    cost, right = (by_setting(rows, "noise", value=name) for name in ("epsilon", "accuracy"))
    low, high = min(cost), max(cost)
    cheaper = mean_of(cost[high]) < mean_of(cost[low])
    worse = runs.clearly_above(right[low], right[high])
    verdicts = {2: Verdict.CONFIRMED, 1: Verdict.PARTLY, 0: Verdict.REFUTED}
    return Finding(
        verdicts[cheaper + worse],
        f"From noise {low:g} to {high:g} epsilon goes from {mean_of(cost[low]):.3g} to "
        f"{mean_of(cost[high]):.3g}, and accuracy from {shown(right[low], percent=True)} % to "
        f"{shown(right[high], percent=True)} %. RDP, which the slides use, states "
        f"{max(row['epsilon_rdp'] / row['epsilon'] for row in rows):.2f} times the tight epsilon at most.",
    )


EXPERIMENT = Experiment(
    name="r5-noise",
    report="R5",
    shows=("Experimental Results (a)", "Experimental Results (b)"),
    title="Epsilon and accuracy against the noise, logistic regression",
    claim="More noise means a smaller epsilon and a lower accuracy.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("fashion-mnist",),
)
