# SPDX-License-Identifier: Apache-2.0
"""R2, Section III-B: the error of a private histogram against the number of its bins.

R2 gives no numbers. The values are the last bills of credit clients, each mapped to 0..1, at epsilon 1. As in
R2, a neighbor replaces a row; Laplace noise has a scale of 2 / epsilon then, and 1 / epsilon where neighbors
add or remove one. "one by one" splits epsilon among the bins, which R2 rightly calls unnecessary.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sfumato.accounting import Relation
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r2 import public_rows
from sfumato.experiments.r2.public_rows import CREDIT, Floats
from sfumato.experiments.seeds import by_setting, shown
from sfumato.mechanisms import DiscreteLaplace
from sfumato.report import plot_lines
from sfumato.report.spread import mean_of
from sfumato.statistics import histogram
from sfumato.testing import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

EPSILON: Final = 1.0
DELTA: Final = 1e-6  # of Gaussian noise
EULER: Final = 0.5772  # the mean of the largest of k Laplace draws is near scale * (log k + this)
NEAR: Final = 0.15  # "logarithmically": within this share of that curve


def _cases(scale: Scale) -> list[Case]:
    bins = (3, 30) if scale.quick else (3, 10, 30, 100, 300, 1000, 3000)
    return [{"bins": count, "seed": seed} for count in bins for seed in range(2 if scale.quick else 20)]


def _counts(relation: Relation, delta: float) -> Callable[[Floats, Floats, int], Floats]:
    def released(values: Floats, edges: Floats, seed: int) -> Floats:
        found = histogram(
            values,
            edges=[float(edge) for edge in edges],
            epsilon=EPSILON,
            delta=delta,
            relation=relation,
            generator=seeded(seed),
        )
        return np.array(found.value.counts, dtype=np.float64)

    return released


def _one_by_one(values: Floats, edges: Floats, seed: int) -> Floats:
    counts, generator = np.histogram(values, edges)[0], seeded(seed)
    each = DiscreteLaplace.calibrated(
        epsilon=EPSILON / len(counts), sensitivity=1, relation=Relation.REPLACE_ONE
    )
    return np.array([each.release(int(count), generator=generator) for count in counts], dtype=np.float64)


REPORT, SPLIT = "Laplace, replace-one (R2)", "one by one, replace-one"
METHODS: Final = {
    REPORT: _counts(Relation.REPLACE_ONE, 0.0),
    "Laplace, add-remove": _counts(Relation.ADD_REMOVE, 0.0),
    f"Gaussian, replace-one, delta {DELTA:g}": _counts(Relation.REPLACE_ONE, DELTA),
    SPLIT: _one_by_one,
}


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    values = public_rows.parts(quick=scale.quick)[0].features[:, 0 if scale.quick else -12]  # BILL_AMT1
    edges = np.linspace(0, 1, case["bins"] + 1)
    true = np.histogram(values, edges)[0]
    return {
        name: float(np.abs(method(values, edges, case["seed"]) - true).max())
        for name, method in METHODS.items()
    }


def _tables(rows: Sequence[Row]) -> list[Table]:
    found = {name: by_setting(rows, "bins", value=name) for name in METHODS}
    cells = [(bins, *(shown(found[name][bins], digits=1) for name in METHODS)) for bins in found[REPORT]]
    return [Table(f"Largest error of a count at epsilon {EPSILON:g}, rows", ("bins", *METHODS), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    drawn = plot_lines(
        {name: by_setting(rows, "bins", value=name) for name in METHODS},
        title=f"Histograms at epsilon {EPSILON:g}",
        x_label="bins",
        y_label="largest error of a count",
        log_x=True,
        log_y=True,
    )
    return {"error": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    found = {bins: mean_of(values) for bins, values in by_setting(rows, "bins", value=REPORT).items()}
    split = {bins: mean_of(values) for bins, values in by_setting(rows, "bins", value=SPLIT).items()}
    few, many = min(found), max(found)
    off = max(abs(error / expected(bins) - 1) for bins, error in found.items() if bins >= 10)
    sentence = (
        f"With Laplace noise of scale 2 / epsilon the largest error grows from {found[few]:.1f} rows for "
        f"{few} bins to {found[many]:.1f} for {many}; from 10 bins on it is within {100 * off:.0f}% of "
        f"2 (log k + {EULER:.2f}) for k bins. Splitting epsilon among {many} bins gives {split[many]:.0f}."
    )
    return Finding(Verdict.CONFIRMED if off <= NEAR else Verdict.REFUTED, sentence)


def expected(bins: int) -> float:
    """Return the mean of the largest of so many Laplace draws of scale 2 / epsilon, nearly.

    >>> round(expected(100), 2)
    10.36
    """
    return 2 / EPSILON * (math.log(bins) + EULER)


EXPERIMENT = Experiment(
    name="r2-histogram",
    report="R2",
    shows=("Section III-B",),
    title="Private histograms with few and many bins",
    claim="Noise need not grow with the number of bins; the error grows with it logarithmically.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=(CREDIT,),
)
