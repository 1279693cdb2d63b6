# SPDX-License-Identifier: Apache-2.0
"""R3, second chart: does accuracy drop from generation to generation?

The poster's "generations" are read as rounds of the federation, and "less-trained" as one local pass in place
of several. It gives no numbers. A drop is measured in two ways. `lost at the end`: how much lower the last
round is than the best one. The best round of a seed is chosen by the other seeds, so that luck in one round
does not count as a drop. `rounds that fall`: the share of rounds that are lower than the round before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r3.federations import CLAIM, base, images, is_clear, noisy_run
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_lines
from sfumato.report.spread import mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "lost_at_the_end", "share_that_falls"]

SEEDS: Final = (11, 12, 13, 14, 15)
ROUNDS: Final = 60
NOISES: Final = (0, 1, 4)
DIVISIONS: Final[Mapping[str, float | None]] = {"IID": None, "Dirichlet 0.1": 0.1}
PASSES: Final = {"well": 5, "less": 1}  # over the rows of a client in a round

Setting = tuple[str, float, str]  # division, noise, how well trained
Curves = Mapping[Setting, Sequence[Sequence[float]]]


def _cases(scale: Scale) -> list[Case]:
    noises, seeds = (NOISES[:2], SEEDS[:2]) if scale.quick else (NOISES, SEEDS)
    return [
        {"division": division, "noise": noise, "trained": trained, "seed": seed}
        for division in (list(DIVISIONS)[:1] if scale.quick else DIVISIONS)
        for noise in noises
        for trained in PASSES
        for seed in seeds
    ]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    recipe = base(scale)
    recipe = replace(
        recipe,
        rounds=recipe.rounds if scale.quick else ROUNDS,
        local=replace(recipe.local, epochs=PASSES[case["trained"]]),
    )
    run = noisy_run(
        images(scale),
        recipe,
        noise=case["noise"],
        seed=case["seed"],
        alpha=DIVISIONS[case["division"]],
        device=scale.device,
        evaluate_every=1,
    )
    curve = [round(row.accuracy, 4) for row in run.history if row.accuracy is not None]
    return {"accuracies": curve, "epsilon": None if case["noise"] == 0 else run.epsilon}


def lost_at_the_end(curves: Sequence[Sequence[float]]) -> list[float]:
    """Return for each seed how much lower the last round is than the one that is best for the other seeds.

    >>> lost_at_the_end([[0.5, 0.9, 0.8], [0.6, 0.8, 0.75]])
    [0.1, 0.05]
    """
    found: list[float] = []
    for place, own in enumerate(curves):
        others = [curve for other, curve in enumerate(curves) if other != place] or [own]
        means = [mean_of(values) for values in zip(*others, strict=True)]
        found.append(round(own[means.index(max(means))] - own[-1], 6))
    return found


def share_that_falls(curve: Sequence[float]) -> float:
    """Return the share of rounds that are lower than the round before.

    >>> share_that_falls([0.5, 0.9, 0.8])
    0.5
    """
    steps = list(pairwise(curve))
    return sum(later < before for before, later in steps) / len(steps)


def _tables(rows: Sequence[Row]) -> list[Table]:
    costs = by_setting(rows, "division", "noise", "trained", value="epsilon")
    cells = [(*_names(key), *_cells(curves), _cost(costs.get(key))) for key, curves in _curves(rows).items()]
    heads = ("division", "privacy", "trained", "best round", "last round", "lost at the end")
    title = f"Accuracy over rounds, percent on test rows ({CLAIM})"
    return [Table(title, (*heads, "rounds that fall", "epsilon"), cells)]


def _cells(curves: Sequence[Sequence[float]]) -> list[str]:
    values = [
        [max(curve) for curve in curves],
        [curve[-1] for curve in curves],
        lost_at_the_end(curves),
        [share_that_falls(curve) for curve in curves],
    ]
    return [shown(value, percent=True) for value in values]


def _cost(found: Sequence[float] | None) -> str:
    return "none" if found is None else f"{found[0]:.3g}"


def _names(key: Setting) -> tuple[str, str, str]:
    return key[0], "none" if key[1] == 0 else f"noise {key[1]:g}", key[2]


def _curves(rows: Sequence[Row]) -> Curves:
    found: dict[Setting, list[Sequence[float]]] = {}
    for row in rows:
        found.setdefault((row["division"], row["noise"], row["trained"]), []).append(row["accuracies"])
    return found


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    drawn: dict[str, Figure] = {}
    for division in dict.fromkeys(row["division"] for row in rows):
        lines = {
            ", ".join((*_names(key)[1:], "trained")): _line(curves)
            for key, curves in _curves(rows).items()
            if key[0] == division
        }
        name = division.lower().replace(" ", "-").replace(".", "-")
        drawn[name] = plot_lines(
            lines,
            title=f"Accuracy over rounds, {division}",
            x_label='round ("generation")',
            y_label="accuracy on test rows",
            percent=True,
        )
    return drawn


def _line(curves: Sequence[Sequence[float]]) -> dict[int, list[float]]:
    return {number: list(values) for number, values in enumerate(zip(*curves, strict=True), start=1)}


def _finding(rows: Sequence[Row]) -> Finding:
    """Compare with the poster: all drop, but models without DP that are trained less do not."""
    lost = {key: lost_at_the_end(curves) for key, curves in _curves(rows).items()}
    drops = {key: is_clear(values) for key, values in lost.items()}
    as_said = [dropped != (key[1] == 0 and key[2] == "less") for key, dropped in drops.items()]
    verdict = (
        Verdict.CONFIRMED if all(as_said) else Verdict.PARTLY if any(drops.values()) else Verdict.REFUTED
    )
    dropped = "; ".join(", ".join(_names(key)) for key, has in drops.items() if has)
    most = max(lost, key=lambda key: mean_of(lost[key]))
    return Finding(
        verdict,
        f"{sum(drops.values())} of {len(drops)} settings end clearly below their best round"
        f"{dropped and f' ({dropped})'}. The largest loss is "
        f"{shown(lost[most], percent=True)} points ({', '.join(_names(most))} trained).",
    )


EXPERIMENT = Experiment(
    name="r3-generations",
    report="R3",
    shows=("Insight: drop in accuracy between generations",),
    title="Accuracy over rounds, with and without DP, well-trained and less-trained",
    claim="Accuracy drops between generations for all models, except for less-trained ones without DP.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
