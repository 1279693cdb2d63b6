# SPDX-License-Identifier: Apache-2.0
"""R2, Section III-A: the private median, by R2's rule and by mechanisms that are private.

R2 gives no numbers. Its rule draws one of the records, with a probability in proportion to |rank - n / 2|: it
has no epsilon, and prefers the ends (errata, R2-1). The others cost epsilon, delta 0, replace-one neighbors.
The error is how far the rank of the answer is from the middle, as a share of the rows; a record drawn evenly
has 0.25. The values are the last bills of credit clients in dollars, with bounds of -1 and 2 million.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sfumato.accounting import Relation
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r2.public_rows import CREDIT, Floats
from sfumato.experiments.r2.raw_columns import raw_parts
from sfumato.experiments.seeds import by_setting, shown
from sfumato.mechanisms import Laplace, SmoothMedian
from sfumato.report import plot_lines
from sfumato.report.spread import mean_of
from sfumato.statistics import median
from sfumato.testing import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

Bounds = tuple[float, float]

EPSILON: Final = 1.0  # of the finding
DRAWN_EVENLY: Final = 0.25  # the error of a record that is drawn without looking
RELATION: Final = Relation.REPLACE_ONE


def _cases(scale: Scale) -> list[Case]:
    sizes = (200,) if scale.quick else (100, 1000, 10_000)
    epsilons = (EPSILON,) if scale.quick else (0.1, 0.3, EPSILON, 3.0, 10.0)
    return [
        {"rows": size, "epsilon": epsilon, "seed": seed}
        for size in sizes
        for epsilon in epsilons
        for seed in range(2 if scale.quick else 20)
    ]


def _values(case: Case, *, quick: bool) -> tuple[Floats, Bounds]:
    """Return some values of one column, and public bounds."""
    place, bounds = (3, (0.0, 3000.0)) if quick else (11, (-1e6, 2e6))  # "area (mean)", BILL_AMT1
    column = raw_parts(quick=quick)[0].features[:, place]
    return np.random.default_rng(case["seed"]).permutation(column)[: case["rows"]], bounds


def _of_report(values: Floats, bounds: Bounds, epsilon: float, seed: int) -> float:
    """Return a record, drawn by R2's rule: whatever epsilon is."""
    ordered = np.sort(values)
    weights = np.abs(np.arange(1, len(ordered) + 1) - len(ordered) / 2)
    return float(np.random.default_rng(seed).choice(ordered, p=weights / weights.sum()))


def _over_intervals(values: Floats, bounds: Bounds, epsilon: float, seed: int) -> float:
    released = median(
        values,
        bounds=bounds,
        epsilon=epsilon,
        relation=RELATION,
        public_size=len(values),
        generator=seeded(seed),
    )
    return released.value


def _smooth(values: Floats, bounds: Bounds, epsilon: float, seed: int) -> float:
    return SmoothMedian(epsilon=epsilon, bounds=bounds).release(values, generator=seeded(seed))


def _global(values: Floats, bounds: Bounds, epsilon: float, seed: int) -> float:
    noise = Laplace.calibrated(epsilon=epsilon, sensitivity=bounds[1] - bounds[0], relation=RELATION)
    middle = float(np.median(np.clip(values, *bounds)))
    return float(np.clip(noise.release(middle, generator=seeded(seed)), *bounds))


REPORT, INTERVALS = "R2's rule (no guarantee)", "exponential, over intervals"
METHODS: Final[dict[str, Callable[[Floats, Bounds, float, int], float]]] = {
    REPORT: _of_report,
    "Laplace, global sensitivity": _global,
    "smooth sensitivity": _smooth,
    INTERVALS: _over_intervals,
}


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    values, bounds = _values(case, quick=scale.quick)
    return {
        name: round(rank_error(values, method(values, bounds, case["epsilon"], case["seed"])), 5)
        for name, method in METHODS.items()
    }


def rank_error(values: Floats, answer: float) -> float:
    """Return how far the ranks that an answer has are from the middle, as a share of the values.

    >>> rank_error(np.array([1.0, 2.0, 2.0, 9.0]), 2.0), rank_error(np.array([1.0, 2.0]), 5.0)
    (0.0, 0.5)
    """
    below, up_to = float((values < answer).mean()), float((values <= answer).mean())
    return max(0.0, below - 0.5, 0.5 - up_to)


def _tables(rows: Sequence[Row]) -> list[Table]:
    found = {name: by_setting(rows, "rows", "epsilon", value=name) for name in METHODS}
    cells = [(*key, *(shown(found[name][key], digits=4) for name in METHODS)) for key in found[REPORT]]
    title = "Error of the rank, as a share of the rows; delta 0, replace-one neighbors"
    return [Table(title, ("rows", "epsilon", *METHODS), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    size = sorted({row["rows"] for row in rows})[len({row["rows"] for row in rows}) // 2]
    some = [row for row in rows if row["rows"] == size]
    drawn = plot_lines(
        {name: by_setting(some, "epsilon", value=name) for name in METHODS},
        title=f"Private medians of {size} bills",
        x_label="epsilon (smaller is more private)",
        y_label="error of the rank",
        log_x=True,
        levels={"a record drawn evenly": DRAWN_EVENLY},
    )
    return {"error": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    report = mean_of([row[REPORT] for row in rows])
    here = [row for row in rows if row["epsilon"] == EPSILON]
    found = by_setting(here, "rows", value=INTERVALS)
    errors = ", ".join(f"{mean_of(values):.4f} for {size} rows" for size, values in found.items())
    sentence = (
        f"A record that R2's rule draws is {report:.3f} of the rows away from the middle, one that is drawn "
        f"evenly {DRAWN_EVENLY:g}, and the rule has no finite epsilon. The exponential mechanism over "
        f"intervals is away by {errors} at epsilon {EPSILON:g}."
    )
    return Finding(Verdict.REFUTED if report >= DRAWN_EVENLY else Verdict.PARTLY, sentence)


EXPERIMENT = Experiment(
    name="r2-median",
    report="R2",
    shows=("Section III-A",),
    title="Private medians",
    claim="Scores |rank - n / 2| over their sum draw values close to the median with a high probability.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=(CREDIT,),
)
