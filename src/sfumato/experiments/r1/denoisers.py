# SPDX-License-Identifier: Apache-2.0
"""R1, Table 1: the denoisers SelfSpan, SelfConv and AltConv side by side, at the same honest epsilon.

The report lists what each one projects on, and measures AltConv alone. All of them, and plain DP-SGD, train
the last layer of a network that separates clusters of public features, from the same first weights, with the
settings of `sfumato.labels.recipes`. Those were fixed on rows held out of the training rows.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r1.reported import DELTA, data_of, device_of
from sfumato.experiments.seeds import by_setting, shown
from sfumato.labels import NoisyGradients, train
from sfumato.labels.recipes import clustered, first_model, points_of, recipe
from sfumato.report import plot_tradeoff
from sfumato.report.spread import mean_of
from sfumato.training import Runtime

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

__all__ = ["EXPERIMENT"]

_DENOISERS: Final = {
    "altconv": "AltConv",
    "selfconv": "SelfConv",
    "selfspan": "SelfSpan",
    "dp-sgd": "none (DP-SGD)",
}
_SEEDS: Final = (11, 12, 13)
_EPSILONS: Final = (0.1, 0.5, 1.0)
_QUICK_STEPS: Final = 3


def _cases(scale: Scale) -> list[Case]:
    epsilons, seeds = (_EPSILONS[-1:], _SEEDS[:1]) if scale.quick else (_EPSILONS, _SEEDS)
    return [
        {"seed": seed, "denoiser": name, "epsilon": epsilon}
        for seed in seeds
        for name in _DENOISERS
        for epsilon in epsilons
    ]


@cache
def _groups(scale: Scale) -> "Tensor":
    """Return clusters of the public features, once for all seeds."""
    data = data_of(scale)
    return clustered(points_of(data.train.features), clusters=3 * data.num_classes)[0]


@cache
def _first(scale: Scale, seed: int) -> "nn.Module":
    """Return the first weights, the same for all denoisers."""
    return first_model(data_of(scale), seed=seed, groups=_groups(scale))


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    data, device = data_of(scale), device_of(scale)
    made = recipe(
        data,
        case["denoiser"],
        epsilon=case["epsilon"],
        delta=DELTA,
        seed=case["seed"],
        model=copy.deepcopy(_first(scale, case["seed"])),
    )
    method = made.method
    assert isinstance(method, NoisyGradients)  # all of them are
    if scale.quick:
        method = replace(method, steps=_QUICK_STEPS)
    run = train(
        made.model.to(device),
        made.features.to(device),
        data.train.labels,
        method=method,
        evaluation=(made.test_features.to(device), data.test.labels.to(device)),
        progress=False,
        runtime=Runtime(device=device),
    )
    assert run.training is not None
    mechanism = run.training.mechanism
    return {
        "accuracy": run.accuracy,
        "honest": run.guarantee.epsilon,
        "noise": mechanism.noise_multiplier(0),
        "steps": mechanism.steps,
        "batch": method.expected_batch_size,
        "sampled": not method.reveals_batches,
    }


def _tables(rows: Sequence[Row]) -> list[Table]:
    accuracy = by_setting(rows, "denoiser", "epsilon", value="accuracy")
    first = {(row["denoiser"], row["epsilon"]): row for row in reversed(rows)}
    epsilons = sorted({row["epsilon"] for row in rows})
    heads = ("denoiser", "batches", *(f"accuracy % at epsilon {epsilon:g}" for epsilon in epsilons))
    cells = [
        (
            _DENOISERS[name],
            "secret samples" if first[name, epsilons[0]]["sampled"] else "revealed, charged each epoch",
            *(shown(accuracy[name, epsilon], percent=True) for epsilon in epsilons),
        )
        for name in _DENOISERS
    ]
    settings = [
        (_DENOISERS[name], f"{epsilon:g}", f"{row['noise']:.4g}", row["steps"], row["batch"])
        for name in _DENOISERS
        for epsilon in epsilons
        for row in [first[name, epsilon]]
    ]
    note = "label epsilon (replace-label), delta 1e-5"
    return [
        Table(f"Denoisers on MNIST at the same {note}", heads, cells),
        Table(
            f"Their settings, {note}", ("denoiser", "epsilon", "noise multiplier", "steps", "batch"), settings
        ),
    ]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    found = by_setting(rows, "denoiser", "epsilon", value="accuracy")
    lines = {
        shown_as: {epsilon: values for (name, epsilon), values in found.items() if name == denoiser}
        for denoiser, shown_as in _DENOISERS.items()
    }
    return {"denoisers": plot_tradeoff(lines, title="Denoisers at the same label epsilon, MNIST")}


def _finding(rows: Sequence[Row]) -> Finding:
    means = {key: mean_of(v) for key, v in by_setting(rows, "denoiser", "epsilon", value="accuracy").items()}
    epsilons = sorted({row["epsilon"] for row in rows})
    best = [max(_DENOISERS, key=lambda name, at=epsilon: means[name, at]) for epsilon in epsilons]
    refined = all(means["selfconv", epsilon] >= means["selfspan", epsilon] for epsilon in epsilons)
    keeps = all(means["altconv", epsilon] >= means["selfconv", epsilon] for epsilon in epsilons)
    verdict = {2: Verdict.CONFIRMED, 1: Verdict.PARTLY, 0: Verdict.REFUTED}[refined + keeps]
    said = "; ".join(
        f"epsilon {epsilon:g}: "
        + ", ".join(f"{_DENOISERS[name]} {100 * means[name, epsilon]:.1f}%" for name in _DENOISERS)
        for epsilon in epsilons
    )
    return Finding(
        verdict,
        f"The hull {'beats' if refined else 'does not always beat'} the span, and AltConv "
        f"{'beats' if keeps else 'does not always beat'} SelfConv at the same honest epsilon ({said}). "
        f"Best is {', '.join(_DENOISERS[name] for name in best)}.",
    )


EXPERIMENT = Experiment(
    name="r1-denoisers",
    report="R1",
    shows=("Table 1",),
    title="SelfSpan, SelfConv and AltConv at the same honest label epsilon",
    claim="SelfConv refines SelfSpan, and AltConv keeps amplification by sampling, which allows lower noise.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
