# SPDX-License-Identifier: Apache-2.0
"""R4, Figures 6.2 and 6.3: images of PATE-CGAN.

R4 has ten teachers, and its Algorithm 8 gives private images to the student (docs/errata.md, R4-7). Here
teachers vote on generated images only. Three ways are compared: as R4 describes it otherwise; with what
`PateCGAN` adds, a start from noisy means and relative votes; and the same with 250 teachers.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r4 import generators
from sfumato.experiments.r4.image_worth import measured_images
from sfumato.experiments.r4.pictures import as_gray
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_pictures
from sfumato.report.spread import mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

NAMES: Final = {
    "pate-r4": "10 teachers, as in R4",
    "pate-10": "10 teachers, with a start",
    "pate-250": "250 teachers, with a start",
}


def _cases(scale: Scale) -> list[Case]:
    return [{"generator": name, "seed": seed} for name in NAMES for seed in generators.seeds(scale)]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    return {**measured_images(case, scale), "queries": generators.planned_queries(case["generator"], scale)}


def _tables(rows: Sequence[Row]) -> list[Table]:
    accuracies = by_setting(rows, "generator", value="accuracy")
    distances = by_setting(rows, "generator", value="distance")
    cells = [
        [
            NAMES[name],
            "not stated",
            f"{max(row['epsilon'] for row in rows if row['generator'] == name):.2f}",
            _queries(rows, name),
            shown(accuracies[name], percent=True),
            shown(distances[name], digits=3),
        ]
        for name in NAMES
    ]
    title = (
        f"Images of PATE-CGAN (budget: epsilon 10, delta {rows[0]['delta']:g}, {rows[0]['relation']} "
        "neighbors, each private image with one teacher)"
    )
    heads = ("generator", "R4's epsilon", "epsilon", "queries", "accuracy of a CNN, %", "Frechet distance")
    return [Table(title, heads, cells)]


def _queries(rows: Sequence[Row], name: str) -> int:
    return next(row["queries"] for row in rows if row["generator"] == name)


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    grids = {NAMES[row["generator"]]: as_gray(row["pictures"]) for row in rows if row["pictures"]}
    return {"samples": plot_pictures(grids, title="Images of PATE-CGAN, budget of epsilon 10")}


def _finding(rows: Sequence[Row]) -> Finding:
    found = by_setting(rows, "generator", value="accuracy")
    as_described = mean_of(found["pate-r4"]) >= generators.RECOGNIZED
    started = mean_of(found["pate-10"]) >= generators.RECOGNIZED
    verdict = Verdict.CONFIRMED if as_described else Verdict.PARTLY if started else Verdict.REFUTED
    return Finding(
        verdict,
        f"Ten teachers answer {_queries(rows, 'pate-r4')} queries within epsilon 10. A network that learned "
        f"from the images is right for {shown(found['pate-r4'], percent=True)}% of the test images. With a "
        f"start from noisy means, which leaves {_queries(rows, 'pate-10')}, it is "
        f"{shown(found['pate-10'], percent=True)}%, and with 250 teachers and "
        f"{_queries(rows, 'pate-250')} queries {shown(found['pate-250'], percent=True)}%. The report "
        "states no epsilon.",
    )


EXPERIMENT = Experiment(
    name="r4-pate-cgan",
    report="R4",
    shows=("Figure 6.2", "Figure 6.3"),
    title="Images of PATE-CGAN with 10 and with 250 teachers",
    claim="A generator that learns from ten teacher discriminators by PATE draws digits.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
