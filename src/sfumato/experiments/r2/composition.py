# SPDX-License-Identifier: Apache-2.0
"""R2, Figure 1: what many releases cost together, by five ways to add them up.

The report draws basic against advanced composition and gives no numbers. Here each release adds Laplace noise
for epsilon 0.1, and the tightest known answers are drawn as well.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sfumato.accounting import Accountant, price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.seeds import by_setting
from sfumato.report import plot_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

EPSILON: Final = 0.1  # of one release
DELTA: Final = 1e-5
WAYS: Final = {
    "basic": Accountant.BASIC,
    "advanced": Accountant.ADVANCED,
    "optimal": Accountant.OPTIMAL,
    "RDP": Accountant.RDP,
    "PLD": Accountant.PLD,
}


def _cases(scale: Scale) -> list[Case]:
    counts = (1, 10, 100) if scale.quick else (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
    return [{"releases": count, "way": way} for way in WAYS for count in counts]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    event = dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1 / EPSILON), case["releases"])
    return {"epsilon": price(event, delta=DELTA, accountant=WAYS[case["way"]]).epsilon}


def _tables(rows: Sequence[Row]) -> list[Table]:
    found = _epsilons(rows)
    cells = [[count, *(f"{found[way, count]:.4g}" for way in WAYS)] for count in _counts(rows)]
    terms = f"delta {DELTA:g}, add-remove neighbors"
    title = f"Epsilon of releases of epsilon {EPSILON} each (Laplace noise), {terms}"
    return [Table(title, ("releases", *WAYS), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    found = _epsilons(rows)
    lines = {way: {count: found[way, count] for count in _counts(rows)} for way in WAYS}
    drawn = plot_lines(
        lines,
        title=f"Releases of epsilon {EPSILON} each, delta {DELTA:g}",
        x_label="releases",
        y_label="epsilon of all",
        log_x=True,
        log_y=True,
    )
    return {"epsilon": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    found, counts = _epsilons(rows), _counts(rows)
    crossing = next(count for count in counts if found["advanced", count] < found["basic", count])
    last = counts[-1]
    return Finding(
        Verdict.PARTLY,
        f"Advanced composition is the smaller one from {crossing} releases on, not before. For {last} it "
        f"says {found['advanced', last]:.3g}, basic composition {found['basic', last]:.3g}, and the loss "
        f"distribution (PLD) {found['PLD', last]:.3g}.",
    )


def _epsilons(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    return {key: values[0] for key, values in by_setting(rows, "way", "releases", value="epsilon").items()}


def _counts(rows: Sequence[Row]) -> list[int]:
    return sorted({row["releases"] for row in rows})


EXPERIMENT = Experiment(
    name="r2-composition",
    report="R2",
    shows=("Figure 1",),
    title="Basic, advanced and optimal composition, RDP and PLD",
    claim="Advanced composition grows with the square root of the number of releases, basic with the number.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
)
