# SPDX-License-Identifier: Apache-2.0
"""R5, Theorems 4.2 to 4.5: the slides' formulas of amplification and composition, and the exact numbers.

The slides state them for any (epsilon, delta)-private step: amplified (q epsilon, q delta); after T steps
(q T epsilon, q T delta), "guaranteed to hold true"; strong composition (q epsilon sqrt(T log(1/delta)),
q T delta); moments accountant (q epsilon sqrt(T), delta). Each is held against the worst step that has this
epsilon and delta 0, on a Poisson sample, at the delta that the formula states (0 for the first two). What
stands there is a lower bound, so a formula below it is no guarantee. The last one is also held against a
Gaussian step that is (epsilon, delta)-private, for which Abadi et al. state its order of magnitude.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sfumato.accounting import PureDpEvent, calibrate, dp_sgd, price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.report import plot_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

DELTA: Final = 1e-5
FORMULAS: Final = {
    "amplified": "Theorem 4.2 (one step)",
    "basic": "q T epsilon",
    "strong": "Theorem 4.4",
    "moments": "Theorem 4.5",
    "gaussian": "Theorem 4.5, Gaussian steps",
}


def _cases(scale: Scale) -> list[Case]:
    epsilons = (1.0, 4.0) if scale.quick else (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    runs = ((0.01, 1000),) if scale.quick else ((0.01, 1000), (0.001, 10_000), (0.1, 100))
    return [{"epsilon": e, "rate": rate, "steps": steps} for rate, steps in runs for e in epsilons]


def amplified(epsilon: float, rate: float) -> float:
    """Return the epsilon of a step on a Poisson sample, if nothing but its epsilon is known.

    >>> round(amplified(1.0, 0.01), 5)
    0.01704
    """
    return math.log1p(rate * math.expm1(epsilon))


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    epsilon, rate, steps = case["epsilon"], case["rate"], case["steps"]
    many = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, PureDpEvent(epsilon)), steps)
    noise = calibrate(lambda noise: dp.GaussianDpEvent(noise), epsilon=epsilon, delta=DELTA)
    gaussian = price(dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps), delta=DELTA)
    moments = rate * epsilon * math.sqrt(steps)
    return {
        "amplified_claimed": rate * epsilon,
        "amplified": amplified(epsilon, rate),
        "basic_claimed": rate * steps * epsilon,
        "basic": steps * amplified(epsilon, rate),
        "strong_claimed": moments * math.sqrt(math.log(1 / DELTA)),
        "strong": price(many, delta=rate * steps * DELTA).lower,
        "moments_claimed": moments,
        "moments": price(many, delta=DELTA).lower,
        "gaussian_claimed": moments,
        "gaussian": gaussian.lower,
        "gaussian_upper": gaussian.epsilon,
    }


def _tables(rows: Sequence[Row]) -> list[Table]:
    heads = ("sampling rate", "steps", "epsilon of a step", *FORMULAS.values())
    cells = [
        [row["rate"], row["steps"], row["epsilon"]]
        + [f"{row[f'{name}_claimed']:.4g} / {row[name]:.4g}" for name in FORMULAS]
        for row in rows
    ]
    title = f"The slides' epsilon / the least that holds; delta {DELTA:g}, Poisson samples, add-remove, PLD"
    return [Table(title, heads, cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    first = [row for row in rows if row["rate"] == rows[0]["rate"]]
    lines = {
        "q e sqrt(T) of the slides": {row["epsilon"]: row["moments_claimed"] for row in first},
        "Gaussian steps": {row["epsilon"]: row["gaussian_upper"] for row in first},
        "the worst steps of this epsilon": {row["epsilon"]: row["moments"] for row in first},
    }
    drawn = plot_lines(
        lines,
        title=f"{first[0]['steps']} steps at sampling rate {first[0]['rate']}, delta {DELTA:g}",
        x_label="epsilon of a step",
        y_label="epsilon of all",
        log_x=True,
        log_y=True,
    )
    return {"epsilon": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    short = {name: [row for row in rows if row[f"{name}_claimed"] < row[name]] for name in FORMULAS}
    told = [
        f"{label} states too little in {len(short[name])} of {len(rows)} rows"
        + (f", at most by a factor of {_factor(short[name], name):.3g}" if short[name] else "")
        for name, label in FORMULAS.items()
    ]
    wrong = sum(bool(found) for found in short.values())
    verdict = Verdict.CONFIRMED if not wrong else Verdict.REFUTED
    return Finding(verdict, "; ".join(told) + ".")


def _factor(rows: Sequence[Row], name: str) -> float:
    return max(row[name] / row[f"{name}_claimed"] for row in rows)


EXPERIMENT = Experiment(
    name="r5-formulas",
    report="R5",
    shows=("Theorem 4.2", "Theorem 4.4", "Theorem 4.5"),
    title="The slides' formulas of amplification and composition against exact numbers",
    claim="A step on a fraction q costs (q epsilon, q delta), and T of them q epsilon sqrt(T).",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
)
