# SPDX-License-Identifier: Apache-2.0
"""What Tables 2 and 3 share: five noises, each with the epsilon that R1 claims for it and the honest one."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sfumato.experiments.experiment import Case, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r1.reported import NOISE
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_lines, plot_tradeoff
from sfumato.report.spread import mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["AS_WRITTEN", "PUBLISHED", "cases_of", "figures_of", "finding_of", "table_of"]

AS_WRITTEN, PUBLISHED = "as written", "published code"
_SEEDS: Final = (11, 12, 13)
_SAME_ACCURACY: Final = 0.01  # one point: what a change of seed can make
_MANY: Final = 1e6  # an epsilon above it is not worth its digits


def cases_of(scale: Scale) -> list[Case]:
    """Return a case for each noise, way and seed."""
    claimed, seeds = ((0.1, 1.0), _SEEDS[:1]) if scale.quick else (tuple(NOISE), _SEEDS)
    return [
        {"claimed": epsilon, "noise": NOISE[epsilon], "way": way, "seed": seed}
        for way in (AS_WRITTEN, PUBLISHED)
        for epsilon in claimed
        for seed in seeds
    ]


def table_of(rows: Sequence[Row], reported: Mapping[float, float], title: str, relation: str) -> Table:
    """Return a line for each noise: what is claimed, what holds, and the accuracies."""
    accuracy = by_setting(rows, "claimed", "way", value="accuracy")
    epsilon, fixed = _first(rows, "epsilon"), _first(rows, "epsilon_fixed")
    heads = (
        "noise multiplier",
        "epsilon, R1",
        f"epsilon, Poisson batches, {relation}",
        "epsilon, batches of a fixed size, replace",
        "epsilon, published code, replace",
        "accuracy %, R1",
        "accuracy %, algorithm as written",
        "accuracy %, published code",
    )
    cells = [
        (
            f"{NOISE[claimed]:g}",
            f"{claimed:g}",
            _digits(epsilon[claimed, AS_WRITTEN]),
            _digits(fixed[claimed, AS_WRITTEN]),
            _digits(epsilon[claimed, PUBLISHED]),
            f"{100 * reported[claimed]:.2f}",
            shown(accuracy[claimed, AS_WRITTEN], percent=True),
            shown(accuracy[claimed, PUBLISHED], percent=True),
        )
        for claimed in _claimed(rows)
    ]
    return Table(title, heads, cells)


def figures_of(rows: Sequence[Row], reported: Mapping[float, float], title: str) -> dict[str, "Figure"]:
    """Return accuracy against claimed and honest epsilon, and accuracy during training."""
    accuracy = by_setting(rows, "claimed", "way", value="accuracy")
    epsilon = _first(rows, "epsilon")
    claimed = _claimed(rows)
    lines = {
        "R1, at the epsilon it claims": {one: reported[one] for one in claimed},
        "same settings, at the honest epsilon": {
            epsilon[one, AS_WRITTEN]: accuracy[one, AS_WRITTEN] for one in claimed
        },
    }
    return {
        "epsilon": plot_tradeoff(lines, title=title),
        "training": plot_lines(
            _curves(rows), title=title, x_label="steps", y_label="accuracy on test rows", percent=True
        ),
    }


def finding_of(rows: Sequence[Row], reported: Mapping[float, float]) -> Finding:
    """Return in how many rows the algorithm as written has both the epsilon and the accuracy."""
    epsilon, claimed = _first(rows, "epsilon"), _claimed(rows)
    honest = {one: epsilon[one, AS_WRITTEN] for one in claimed}
    means = {key: mean_of(v) for key, v in by_setting(rows, "claimed", "way", value="accuracy").items()}
    held = [
        one
        for one in claimed
        if honest[one] <= one and means[one, AS_WRITTEN] >= reported[one] - _SAME_ACCURACY
    ]
    verdict = {len(claimed): Verdict.CONFIRMED, 0: Verdict.REFUTED}.get(len(held), Verdict.PARTLY)
    return Finding(
        verdict,
        f"{len(held) or 'None'} of {len(claimed)} rows hold for the algorithm as written: its epsilon is "
        f"{', '.join(_digits(honest[one]) for one in claimed)} in place of "
        f"{', '.join(f'{one:g}' for one in claimed)}, and it reaches "
        f"{_range([means[one, AS_WRITTEN] for one in claimed])} where the report has "
        f"{_range([reported[one] for one in claimed])}. The published code, which clips the mean of a batch "
        f"in place of each row, reaches {_range([means[one, PUBLISHED] for one in claimed])}, for an epsilon "
        f"of {_digits(epsilon[claimed[0], PUBLISHED])} and more.",
    )


def _range(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.1f}% to {100 * max(shares):.1f}%"


def _digits(epsilon: float) -> str:
    return f"{epsilon:.0e}" if epsilon >= _MANY else f"{epsilon:.4g}"


def _claimed(rows: Sequence[Row]) -> list[float]:
    return sorted({row["claimed"] for row in rows})


def _first(rows: Sequence[Row], value: str) -> dict[tuple[float, str], float]:
    found = by_setting(rows, "claimed", "way", value=value)
    return {key: values[0] for key, values in found.items()}


def _curves(rows: Sequence[Row]) -> dict[str, dict[int, list[float]]]:
    """Return accuracies by step, for each noise of the algorithm as written."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row["way"] == AS_WRITTEN:
            curve = found.setdefault(f"noise multiplier {row['noise']:g}", {})
            for step, accuracy in row["curve"]:
                curve.setdefault(step, []).append(accuracy)
    return found
