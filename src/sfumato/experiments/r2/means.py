# SPDX-License-Identifier: Apache-2.0
"""R2, Section III-C: the private mean of Gaussian data, if only loose bounds on the mean are known.

R2 gives no numbers. 1000 draws of a Gaussian with standard deviation 1 and a mean at a third of the bound R:
values are clipped to the bounds, or clipped around a place that Karwa-Vadhan or CoinPress found first. All
releases cost epsilon 1 at delta 1e-6, replace-one neighbors, the number of rows being public. The error is
the distance to the true mean, so that sampling is in it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r2.public_rows import Floats
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_lines
from sfumato.report.spread import mean_of
from sfumato.statistics import coinpress_mean, karwa_vadhan_mean, mean
from sfumato.testing import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

EPSILON: Final = 1.0
DELTA: Final = 1e-6
ROWS: Final = 1000
FLAT: Final = 3.0  # "logarithmic": an error grows by at most this factor, where bounds grow by 1000

Released = Callable[[Floats, float, int], float]


def _cases(scale: Scale) -> list[Case]:
    bounds = (5, 500) if scale.quick else (5, 15, 50, 150, 500, 1500, 5000)
    sizes = () if scale.quick else (100, 300, 3000, 10_000)
    settings = [(ROWS, bound) for bound in bounds] + [(size, 500) for size in sizes]
    seeds = range(2 if scale.quick else 20)
    return [{"rows": size, "bound": bound, "seed": seed} for size, bound in settings for seed in seeds]


def _not_private(values: Floats, bound: float, seed: int) -> float:
    return float(values.mean())


def _clipped(values: Floats, bound: float, seed: int) -> float:
    released = mean(
        values,
        bounds=(-bound, bound),
        epsilon=EPSILON,
        delta=DELTA,
        relation="replace-one",
        public_size=len(values),
        generator=seeded(seed),
    )
    return 0.0 if released.value is None else released.value


def _by(release: Callable[..., Any]) -> Released:
    def released(values: Floats, bound: float, seed: int) -> float:
        found = release(
            values,
            bounds=(-bound, bound),
            stddev=1.0,
            epsilon=EPSILON,
            delta=DELTA,
            relation="replace-one",
            public_size=len(values),
            generator=seeded(seed),
        )
        return float(found.value)

    return released


PLAIN, CLIPPED, HISTOGRAM, COINPRESS = "not private", "clipped", "Karwa-Vadhan", "CoinPress"
METHODS: Final[dict[str, Released]] = {
    PLAIN: _not_private,
    CLIPPED: _clipped,
    HISTOGRAM: _by(karwa_vadhan_mean),
    COINPRESS: _by(coinpress_mean),
}


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    center = case["bound"] / 3
    values = np.random.default_rng(case["seed"]).normal(center, 1.0, case["rows"])
    return {
        name: round(abs(method(values, float(case["bound"]), case["seed"]) - center), 5)
        for name, method in METHODS.items()
    }


def _tables(rows: Sequence[Row]) -> list[Table]:
    found = {name: by_setting(rows, "rows", "bound", value=name) for name in METHODS}
    cells = [(*key, *(shown(found[name][key], digits=3) for name in METHODS)) for key in found[PLAIN]]
    title = f"Error of the mean in standard deviations, epsilon {EPSILON:g}, delta {DELTA:g}, replace-one"
    return [Table(title, ("rows", "bound R", *METHODS), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    drawn: dict[str, Figure] = {}
    for name, label in (("bound", "bound R on the mean, in standard deviations"), ("rows", "rows")):
        other = "rows" if name == "bound" else "bound"
        most = max({row[other] for row in rows}, key=lambda value: sum(row[other] == value for row in rows))
        some = [row for row in rows if row[other] == most]
        drawn[name] = plot_lines(
            {method: by_setting(some, name, value=method) for method in METHODS},
            title=f"Private means, {other} {most}",
            x_label=label,
            y_label="error in standard deviations",
            log_x=True,
            log_y=True,
        )
    return drawn


def _finding(rows: Sequence[Row]) -> Finding:
    some = [row for row in rows if row["rows"] == ROWS]
    bounds = sorted({row["bound"] for row in some})
    tight, loose = bounds[0], bounds[-1]
    found = {name: by_setting(some, "bound", value=name) for name in METHODS}
    error = {name: (mean_of(found[name][tight]), mean_of(found[name][loose])) for name in METHODS}
    growth = {name: last / first for name, (first, last) in error.items()}
    linear = growth[CLIPPED] >= loose / tight / 3
    flat = all(growth[name] <= FLAT for name in (HISTOGRAM, COINPRESS))
    shown_errors = "; ".join(f"{name} {a:.3f} and {b:.3f}" for name, (a, b) in error.items())
    sentence = (
        f"Errors at bounds of {tight} and {loose} standard deviations: {shown_errors}. The error of clipping "
        f"grows by a factor of {growth[CLIPPED]:.0f} as the bounds grow by {loose / tight:g}; that of "
        f"Karwa-Vadhan by {growth[HISTOGRAM]:.1f} and that of CoinPress by {growth[COINPRESS]:.1f}."
    )
    if linear and flat:
        return Finding(Verdict.CONFIRMED, sentence)
    return Finding(Verdict.PARTLY if linear or flat else Verdict.REFUTED, sentence)


EXPERIMENT = Experiment(
    name="r2-mean",
    report="R2",
    shows=("Section III-C",),
    title="Private means: clipped, Karwa-Vadhan and CoinPress",
    claim=(
        "If values are clipped, the rows that are needed grow linearly with the bound on the mean; with "
        "Karwa-Vadhan logarithmically; CoinPress gives a good estimate in a few steps."
    ),
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
)
