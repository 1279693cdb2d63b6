# SPDX-License-Identifier: Apache-2.0
"""R3, objective 2: epsilon against the standard deviation of the noise, and is the relationship inverse?

The poster draws a falling curve and calls it an inverse relationship. Where epsilon is inverse to the noise,
doubling the noise halves epsilon.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sfumato.accounting import Relation, dp_sgd, price
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.report import plot_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "NOISES", "RELEASES", "doubled", "epsilon_of"]

NOISES: Final = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
# From name to sampling rate, number of releases, and delta.
RELEASES: Final[Mapping[str, tuple[float, int, float]]] = {
    "one release": (1.0, 1, 1e-5),
    "30 rounds, half of the clients in each": (0.5, 30, 1e-3),
    "40 rounds, a fifth of the clients in each": (0.2, 40, 1e-3),
    "1000 steps, a hundredth of the rows in each": (0.01, 1000, 1e-5),
}
RELATIONS: Final = (Relation.ADD_REMOVE, Relation.REPLACE_ONE)
_NEARLY: Final = 0.1  # how far from 2 a quotient may be to be called inverse


def epsilon_of(noise: float, releases: str, relation: Relation = Relation.ADD_REMOVE) -> float:
    """Return the epsilon of a noise multiplier: the standard deviation divided by the clip norm."""
    rate, steps, delta = RELEASES[releases]
    event = dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)
    return price(event, delta=delta, relation=relation).epsilon


def doubled(points: Mapping[float, float]) -> list[float]:
    """Return by how much epsilon is divided where the noise is doubled; 2 is an inverse relationship.

    >>> doubled({1.0: 4.0, 1.5: 3.0, 2.0: 2.0, 4.0: 0.5})
    [2.0, 4.0]
    """
    return [points[noise] / points[2 * noise] for noise in sorted(points) if 2 * noise in points]


def _cases(scale: Scale) -> list[Case]:
    noises = (0.5, 1.0, 2.0) if scale.quick else NOISES
    return [
        {"releases": releases, "relation": relation.value, "noise": noise}
        for releases in (list(RELEASES)[:2] if scale.quick else RELEASES)
        for relation in RELATIONS
        for noise in noises
    ]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    return {"epsilon": epsilon_of(case["noise"], case["releases"], Relation(case["relation"]))}


def _curves(rows: Sequence[Row]) -> dict[tuple[str, str], dict[float, float]]:
    found: dict[tuple[str, str], dict[float, float]] = {}
    for row in rows:
        found.setdefault((row["releases"], row["relation"]), {})[row["noise"]] = row["epsilon"]
    return found


def _tables(rows: Sequence[Row]) -> list[Table]:
    noises = sorted({row["noise"] for row in rows})
    cells = [
        (releases, f"{RELEASES[releases][2]:g}", relation, *(f"{curve[noise]:.3g}" for noise in noises))
        for (releases, relation), curve in _curves(rows).items()
    ]
    title = "Epsilon against noise: its standard deviation divided by the clip norm; secret Poisson samples"
    return [Table(title, ("releases", "delta", "neighbors", *(f"{noise:g}" for noise in noises)), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    curves = {name: curve for (name, kind), curve in _curves(rows).items() if kind == RELATIONS[0].value}
    noises = sorted({row["noise"] for row in rows})
    first = next(iter(curves.values()))
    lines = {**curves, "inverse: 1 / noise": {noise: first[1.0] / noise for noise in noises}}
    drawn = plot_lines(
        lines,
        title="Epsilon against noise, add-remove neighbors",
        x_label="standard deviation of the noise / clip norm",
        y_label="epsilon",
        log_x=True,
        log_y=True,
    )
    return {"epsilon": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    found = {key: doubled(curve) for key, curve in _curves(rows).items()}
    each = [quotient for quotients in found.values() for quotient in quotients]
    inverse = all(abs(quotient - 2) <= _NEARLY for quotient in each)
    falls = all(quotient > 1 for quotient in each)
    verdict = Verdict.CONFIRMED if inverse else Verdict.PARTLY if falls else Verdict.REFUTED
    steepest = max(found, key=lambda key: max(found[key]))
    return Finding(
        verdict,
        f"Epsilon {'always falls' if falls else 'does not always fall'} as the noise grows. Doubling the "
        f"noise divides it by {min(each):.2f} to {max(each):.2f}, where an inverse relationship divides it "
        f"by 2 (most: {steepest[0]}, {steepest[1]} neighbors).",
    )


EXPERIMENT = Experiment(
    name="r3-epsilon-noise",
    report="R3",
    shows=("Insight: inverse relationship", "Objective 2"),
    title="Epsilon against the standard deviation of the noise",
    claim="Epsilon and the standard deviation of the noise are in an inverse relationship.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
)
