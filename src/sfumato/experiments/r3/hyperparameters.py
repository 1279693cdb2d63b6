# SPDX-License-Identifier: Apache-2.0
"""R3, objective 1: accuracy against noise, clients, local passes and cohorts.

The poster's charts have no numbers that can be read. It states that models with DP and less-trained models
are less accurate. Here one setting at a time is varied, and each accuracy has its epsilon.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r3.federations import CLAIM, base, differences, images, is_clear, noisy_run
from sfumato.experiments.seeds import by_setting, shown
from sfumato.federated.recipes import FederationRecipe
from sfumato.report import plot_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "NOISE", "VARIED", "varied"]

NOISE: Final = 1.0  # the multiplier where it is not varied
SEEDS: Final = (11, 12, 13)
# Digits have 1437 rows, so there are fewer clients.
VARIED: Final[Mapping[str, Mapping[str, tuple[float, ...]]]] = {
    "digits": {
        "noise": (0, 0.1, 0.5, 1, 2, 4, 8),
        "clients": (50, 100, 200, 400, 700),
        "local epochs": (1, 2, 3, 5, 10),
        "cohort share": (0.1, 0.2, 0.5, 1),
        "rounds": (5, 10, 20, 30, 60),
    },
    "mnist": {
        "noise": (0, 0.25, 0.5, 1, 2, 4),
        "clients": (100, 300, 1000, 3000),
        "local epochs": (1, 3, 10),
        "cohort share": (0.05, 0.1, 0.2, 0.5),
        "rounds": (10, 20, 40, 80),
    },
}
_JUDGED: Final = ("noise", "local epochs")
_QUICK: Final[Mapping[str, tuple[float, ...]]] = {
    "noise": (0, 4),
    "clients": (50,),
    "local epochs": (1, 3),
    "cohort share": (0.2,),
    "rounds": (2,),
}


def varied(recipe: FederationRecipe, name: str, value: float) -> FederationRecipe:
    """Return a federation with one setting changed; noise is none of its settings."""
    if name == "local epochs":
        return replace(recipe, local=replace(recipe.local, epochs=int(value)))
    changed = {"clients": {"clients": int(value)}, "rounds": {"rounds": int(value)}}
    return replace(recipe, **changed.get(name, {"cohort_share": value} if name == "cohort share" else {}))


def _cases(scale: Scale) -> list[Case]:
    values = _QUICK if scale.quick else VARIED["mnist"]
    seeds = SEEDS[:1] if scale.quick else SEEDS
    return [
        {"varied": name, "value": value, "seed": seed}
        for name, settings in values.items()
        for value in settings
        for seed in seeds
    ]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    noise = case["value"] if case["varied"] == "noise" else NOISE
    recipe = varied(base(scale), case["varied"], case["value"])
    run = noisy_run(images(scale), recipe, noise=noise, seed=case["seed"], device=scale.device)
    return {"accuracy": run.accuracy, "epsilon": None if noise == 0 else run.epsilon}


def _tables(rows: Sequence[Row]) -> list[Table]:
    accuracies = by_setting(rows, "varied", "value", value="accuracy")
    costs = by_setting(rows, "varied", "value", value="epsilon")
    cells = [
        (name, f"{value:g}", shown(found, percent=True), _cost(costs.get((name, value))))
        for (name, value), found in accuracies.items()
    ]
    title = f"Accuracy in percent on test rows, noise {NOISE:g} clip norm if not varied ({CLAIM})"
    return [Table(title, ("varied", "value", "accuracy", "epsilon"), cells)]


def _cost(found: Sequence[float] | None) -> str:
    return "no privacy" if found is None else f"{found[0]:.3g}"


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    return {name.replace(" ", "-"): _figure(rows, name) for name in dict.fromkeys(r["varied"] for r in rows)}


def _figure(rows: Sequence[Row], name: str) -> "Figure":
    line = by_setting([row for row in rows if row["varied"] == name], "value", value="accuracy")
    return plot_lines(
        {"accuracy": line},
        title=f"Accuracy against {name}",
        x_label="noise multiplier (0: no privacy)" if name == "noise" else name,
        y_label="accuracy on test rows",
        percent=True,
    )


def _finding(rows: Sequence[Row]) -> Finding:
    found = by_setting(rows, "varied", "value", value="accuracy")
    noises, passes = (sorted(value for name, value in found if name == which) for which in _JUDGED)
    lost = {value: differences(found, ("noise", 0), ("noise", value)) for value in noises[1:]}
    less = differences(found, ("local epochs", passes[-1]), ("local epochs", passes[0]))
    fewer = is_clear(less)
    private = [value for value, values in lost.items() if is_clear(values)]
    whole = fewer and len(private) == len(lost)
    verdict = Verdict.CONFIRMED if whole else Verdict.PARTLY if fewer or private else Verdict.REFUTED
    each = ", ".join(f"{shown(values, percent=True)} (noise {value:g})" for value, values in lost.items())
    return Finding(
        verdict,
        f"Points of accuracy that DP costs: {each}. One local pass in place of {passes[-1]:g} costs "
        f"{shown(less, percent=True)} points at noise {NOISE:g}.",
    )


EXPERIMENT = Experiment(
    name="r3-hyperparameters",
    report="R3",
    shows=("Insight: less accurate for DP and less-trained models", "Objective 1"),
    title="Accuracy against noise, clients, local passes, cohorts and rounds",
    claim="Models are less accurate with DP, and if they are trained less.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
