# SPDX-License-Identifier: Apache-2.0
"""R4, Figure 6.6: ROC curves of classifiers that learned from DP-CGAN's images, and the table of AUROCs.

The figure of R4 has no number. Its DP-CGAN is that of Torkzadehmahani, Kairouz and Paten 2019 (CVPR workshop,
arXiv:2001.09700), who report the AUROC at epsilon 9.6 and delta 1e-5: theirs are the numbers to compare with.
AUROC is the mean over classes of one class against the rest; theirs may be averaged otherwise, which they do
not say. The classifiers are ours: neither text states theirs.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r4 import generators
from sfumato.experiments.seeds import by_setting, shown
from sfumato.generative.evaluation import ClassifierScore
from sfumato.report import plot_lines
from sfumato.report.spread import mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

PAPER: Final = {  # AUROC after learning from DP-CGAN's images, and from real ones
    "logistic regression": {"dp-cgan": 0.8757, "real": 0.9217},
    "MLP": {"dp-cgan": 0.8816, "real": 0.9760},
}
NAMES: Final = {"real": "real images", "dp-cgan": "DP-CGAN"}
_RATES: Final = (0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100)  # false positives, in %


def _cases(scale: Scale) -> list[Case]:
    return [{"images": name, "seed": seed} for name in NAMES for seed in generators.seeds(scale)]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    seed, promised = case["seed"], {"epsilon": None, "delta": None, "relation": None}
    if case["images"] == "real":
        synthetic, holdout = generators.real_images(scale)
    else:
        made = generators.drawn_images("dp-cgan", scale, seed=seed)
        synthetic, holdout = made.synthetic, made.holdout
        promised = generators.guarantee_of(made.generator)
    scores = generators.scored(synthetic, holdout, scale, seed=seed, names=tuple(PAPER))
    return {
        **promised,
        **{f"{name}, AUROC": score.auroc for name, score in scores.items()},
        **{f"{name}, accuracy": score.accuracy for name, score in scores.items()},
        "curves": {name: _curve(score) for name, score in scores.items()},
    }


def _curve(score: ClassifierScore) -> list[float]:
    """Return the true-positive rate at each of some false-positive rates."""
    rates = {round(100 * false): true for false, true in score.curve}  # the last of equal ones is the higher
    return [round(rates[rate], 4) for rate in _RATES]


def _tables(rows: Sequence[Row]) -> list[Table]:
    promised = next(row for row in rows if row["images"] == "dp-cgan")
    cells: list[list[str]] = []
    for judge, published in PAPER.items():
        found = by_setting(rows, "images", value=f"{judge}, AUROC")
        right = by_setting(rows, "images", value=f"{judge}, accuracy")
        cells += [
            [
                judge,
                NAMES[name],
                f"{published[name]:.4f}",
                shown(found[name], digits=4),
                shown(right[name], percent=True),
            ]
            for name in NAMES
        ]
    title = (
        f"AUROC on test images: DP-CGAN at epsilon {promised['epsilon']:.2f} (the paper claims 9.6), delta "
        f"{promised['delta']:g}, {promised['relation']} neighbors, Poisson samples"
    )
    return [Table(title, ("classifier", "learns from", "paper's AUROC", "AUROC", "accuracy, %"), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    lines: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        for judge, curve in row["curves"].items():
            line = lines.setdefault(f"{judge}, {NAMES[row['images']]}", {})
            for rate, true in zip(_RATES, curve, strict=True):
                line.setdefault(rate / 100, []).append(true)
    drawn = plot_lines(
        lines,
        title="ROC curves on test images, mean of the classes",
        x_label="false-positive rate",
        y_label="true-positive rate",
    )
    return {"roc": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    found = {judge: by_setting(rows, "images", value=f"{judge}, AUROC")["dp-cgan"] for judge in PAPER}
    reached = [mean_of(found[judge]) >= PAPER[judge]["dp-cgan"] for judge in PAPER]
    verdict = Verdict.CONFIRMED if all(reached) else Verdict.PARTLY if any(reached) else Verdict.REFUTED
    epsilon = max(row["epsilon"] for row in rows if row["epsilon"] is not None)
    numbers = " and ".join(
        f"{shown(values, digits=4)} ({judge}; the paper has {PAPER[judge]['dp-cgan']:.4f})"
        for judge, values in found.items()
    )
    return Finding(
        verdict, f"The AUROC is {numbers} at epsilon {epsilon:.2f}. Figure 6.6 itself states no number."
    )


EXPERIMENT = Experiment(
    name="r4-auroc",
    report="R4",
    shows=("Figure 6.6",),
    title="ROC curves and AUROC of classifiers that learned from DP-CGAN's images",
    claim="At epsilon 9.6 classifiers reach an AUROC of 0.8757 and 0.8816 on DP-CGAN's images (the paper).",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
