# SPDX-License-Identifier: Apache-2.0
"""R5, "Transfer Learning Results": a network pretrained on public images against one from scratch.

The slides compare both without privacy. Here both are also trained privately, on all rows and on a tenth of
them, because the slides say that transfer learning "can improve privacy as the model requires less data".
Pretrained: EfficientNet-Lite0 with ImageNet weights, all layers frozen (the slides also replace the first
one; here images are enlarged instead), and a new last layer. From scratch: a network of convolutions, poolings
and dense layers, as in the slides, whose sizes are ours.

At the quick scale the task is to tell the digits 5 to 9 apart, and the hidden layer is pretrained on 0 to 4.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from sfumato import datasets
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r5 import runs, tasks
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_bars
from sfumato.report.spread import mean_of
from sfumato.training import cached_features

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

DELTA: Final = 1e-5
PRETRAINED, SCRATCH = "pretrained", "from scratch"
RESOLUTION: Final = 160  # pixels a side that images are enlarged to, for a network of large images
FEATURE_SCALE: Final = 30.0  # features are divided by it: a public constant, near the norm of most


def _cases(scale: Scale) -> list[Case]:
    shares = (1.0,) if scale.quick else (0.1, 1.0)
    epsilons: tuple[float | None, ...] = (None, 4.0) if scale.quick else (None, 8.0, 2.0, 1.0)
    seeds = (1,) if scale.quick else (1, 2, 3, 4, 5)
    return [
        {"start": start, "share": share, "epsilon": epsilon, "seed": seed}
        for share in shares
        for epsilon in epsilons
        for start in (PRETRAINED, SCRATCH)
        for seed in seeds
    ]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    pretrained = case["start"] == PRETRAINED
    task = (_digits if scale.quick else _photographs)(scale, pretrained=pretrained)
    task = task.first(round(case["share"] * task.public_size))
    make = partial(_network, task, scale, pretrained=pretrained)
    batch = task.public_size // (4 if scale.quick else 25)
    epochs = 3 if scale.quick else 30
    shared: dict[str, Any] = {"seed": case["seed"], "scale": scale}
    if case["epsilon"] is None:
        found = runs.plain_run(
            make,
            task,
            steps=(12 if scale.quick else epochs * 50),
            batch_size=batch if scale.quick else min(256, batch),
            learning_rate=0.1 if scale.quick or pretrained else 0.05,
            **shared,
        )
        return {"accuracy": found["accuracy"], "noise": None, "spent": None}
    run = runs.private_run(
        make,
        task,
        epsilon=case["epsilon"],
        delta=DELTA,
        epochs=epochs,
        expected_batch_size=batch,
        clip_norm=1.0,
        learning_rate=0.5,
        ema_decay=0.9,
        **shared,
    )
    found = runs.summary(run)
    return {"accuracy": found["accuracy"], "noise": found["noise_multiplier"], "spent": found["epsilon"]}


# --- the data and networks of both scales ----------------------------------------------------------------


def _photographs(scale: Scale, *, pretrained: bool) -> tasks.Task:
    """Return CIFAR-10, or its features: computed once and kept in the cache of data sets."""
    data = datasets.load("cifar10")
    train, test = data.train, data.test
    if not pretrained:
        return tasks.Task(train=(train.features, train.labels), test=(test.features, test.labels))
    assert data.normalization is not None  # images have one
    network = datasets.efficientnet_lite0().to(tasks.device_of(scale))
    found = [
        datasets.features(network, data.normalization.pixels(part.features), batch_size=64, resize=RESOLUTION)
        for part in (train, test)
    ]
    x, x_test = (_scaled(part) for part in found)
    return tasks.Task(train=(x, train.labels), test=(x_test, test.labels))


def _scaled(features: torch.Tensor) -> torch.Tensor:
    """Return rows of norm 1 at most: each is divided by its own norm where that is above the constant."""
    return features / features.norm(dim=1, keepdim=True).clamp(min=FEATURE_SCALE)


def _digits(scale: Scale, *, pretrained: bool) -> tasks.Task:
    data = datasets.load("digits")
    parts = [(part.features, part.labels) for part in (data.train, data.test)]
    train, test = ((x[y >= 5], y[y >= 5] - 5) for x, y in parts)
    task = tasks.Task(train=train, test=test, classes=5)
    if not pretrained:
        return task
    x, y = parts[0]
    public = tasks.Task(train=(x[y < 5], y[y < 5]), test=(x[y < 5], y[y < 5]), classes=5)
    body = _pretrained_body(public, scale)
    rows = [cached_features(body, part) for part in (task.train, task.test)]
    return tasks.Task(train=(rows[0][0], rows[0][1]), test=(rows[1][0], rows[1][1]), classes=5)


def _pretrained_body(public: tasks.Task, scale: Scale) -> nn.Module:
    """Return the layers below the last one of a network that was trained on public rows, frozen."""
    model = tasks.with_seed(lambda: tasks.convolutional(public), seed=0)
    runs.plain_run(lambda: model, public, seed=0, scale=scale, steps=60, batch_size=64, learning_rate=0.1)
    assert isinstance(model, nn.Sequential)
    return nn.Sequential(*list(model)[:-1]).cpu().requires_grad_(False)


def _network(task: tasks.Task, scale: Scale, *, pretrained: bool) -> nn.Module:
    if pretrained:
        return tasks.logistic(task)
    return tasks.convolutional(task) if scale.quick else tasks.convolutional(task, widths=(32, 64), hidden=64)


# --- what follows ----------------------------------------------------------------------------------------


def _privacy(epsilon: float | None) -> str:
    return "no privacy" if epsilon is None else f"epsilon {epsilon:g}"


def _tables(rows: Sequence[Row]) -> list[Table]:
    found = by_setting(rows, "share", "epsilon", "start", value="accuracy")
    noise = by_setting(rows, "share", "epsilon", "start", value="noise")
    cells = [
        (
            f"{share:.0%}",
            _privacy(epsilon),
            f"{mean_of(noise[share, epsilon, PRETRAINED]):.3g}" if epsilon is not None else "-",
            *(shown(found[share, epsilon, start], percent=True) for start in (PRETRAINED, SCRATCH)),
        )
        for share, epsilon in dict.fromkeys((row["share"], row["epsilon"]) for row in rows)
    ]
    heads = ("rows", "privacy", "noise multiplier", "pretrained, test accuracy, %", "from scratch, %")
    return [Table(f"Transfer learning; delta {DELTA:g}, Poisson samples, add-remove, PLD", heads, cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    everything = max(row["share"] for row in rows)
    found = by_setting(
        [row for row in rows if row["share"] == everything], "start", "epsilon", value="accuracy"
    )
    bars = {f"{start}, {_privacy(epsilon)}": values for (start, epsilon), values in found.items()}
    drawn = plot_bars(
        dict(sorted(bars.items())), title="Transfer learning, all rows", y_label="test accuracy", percent=True
    )
    return {"accuracy": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    found = by_setting(rows, "share", "epsilon", "start", value="accuracy")
    settings = dict.fromkeys((row["share"], row["epsilon"]) for row in rows)
    wins = [s for s in settings if runs.clearly_above(found[*s, PRETRAINED], found[*s, SCRATCH])]
    verdict = Verdict.CONFIRMED if len(wins) == len(settings) else Verdict.PARTLY if wins else Verdict.REFUTED
    everything = max(share for share, _ in settings)
    strict = min(epsilon for _, epsilon in settings if epsilon is not None)
    told = "; ".join(
        f"{_privacy(epsilon)}: {shown(found[everything, epsilon, PRETRAINED], percent=True)} % against "
        f"{shown(found[everything, epsilon, SCRATCH], percent=True)} % from scratch"
        for epsilon in (None, strict)
    )
    return Finding(
        verdict,
        f"Pretrained is clearly better in {len(wins)} of {len(settings)} settings ({told})." + _fewer(rows),
    )


def _fewer(rows: Sequence[Row]) -> str:
    """Return what fewer rows cost, in a sentence."""
    few, many = min(row["share"] for row in rows), max(row["share"] for row in rows)
    if few == many:
        return ""
    private = [row for row in rows if row["start"] == PRETRAINED and row["epsilon"] is not None]
    strict = min(row["epsilon"] for row in private)
    right = by_setting([row for row in private if row["epsilon"] == strict], "share", value="accuracy")
    return (
        f" Less data does not improve privacy: at epsilon {strict:g} {few:.0%} of the rows give "
        f"{shown(right[few], percent=True)} %, all of them {shown(right[many], percent=True)} %."
        if runs.clearly_above(right[many], right[few])
        else f" At epsilon {strict:g} {few:.0%} of the rows give {shown(right[few], percent=True)} %, all of them "
        f"{shown(right[many], percent=True)} %."
    )


EXPERIMENT = Experiment(
    name="r5-transfer",
    report="R5",
    shows=("Transfer Learning Results",),
    title="Transfer learning on CIFAR-10, with and without privacy",
    claim="A network with pretrained, frozen layers reaches a higher accuracy than one from scratch.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("cifar10",),
)
