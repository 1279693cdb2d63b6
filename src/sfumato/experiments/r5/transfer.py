# SPDX-License-Identifier: Apache-2.0
"""R5, "Transfer Learning Results": a network pretrained on public images against one from scratch.

The slides compare both without privacy. Here both are also trained privately, on all rows and on a tenth of
them, because the slides say that transfer learning "can improve privacy as the model requires less data".
Pretrained: EfficientNet-Lite0 with ImageNet weights, all layers frozen (the slides also replace the first
one; here images are enlarged instead), and a new last layer. From scratch: a network of convolutions,
poolings and dense layers, as in the slides, whose sizes are ours. The settings of the private last layer are
those of `benchmarks/accuracy.py`, searched on 10,000 training images; those from scratch were not searched.

At the quick scale the task is to tell the digits 5 to 9 apart, and the hidden layer is pretrained on 0 to 4.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
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
    shared: dict[str, Any] = {"seed": case["seed"], "scale": scale}
    if case["epsilon"] is None:
        steps, batch = (12, 200) if scale.quick else (5000, 256)
        rate = 2.0 if pretrained and not scale.quick else 0.05
        found = runs.plain_run(make, task, steps=steps, batch_size=batch, learning_rate=rate, **shared)
        return {"accuracy": found["accuracy"], "noise": None, "spent": None}
    settings = _private_settings(task, scale, pretrained=pretrained)
    run = runs.private_run(make, task, epsilon=case["epsilon"], delta=DELTA, **settings, **shared)
    found = runs.summary(run)
    return {"accuracy": found["accuracy"], "noise": found["noise_multiplier"], "spent": found["epsilon"]}


def _private_settings(task: tasks.Task, scale: Scale, *, pretrained: bool) -> dict[str, Any]:
    """Return settings in proportion to the number of rows."""
    size = task.public_size
    if scale.quick:
        return {"expected_batch_size": size // 4, "epochs": 3, "clip_norm": 1.0, "learning_rate": 0.5}
    if pretrained:
        settings = {"expected_batch_size": size // 2, "epochs": 100, "clip_norm": 0.5, "learning_rate": 100.0}
    else:
        settings = {"expected_batch_size": size // 12, "epochs": 60, "clip_norm": 1.0, "learning_rate": 1.0}
    return settings | {"ema_decay": 0.9}


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
    """Return rows of mean 0 and norm 1, each by itself."""
    return F.normalize(features - features.mean(1, keepdim=True))


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
    worse = runs.clearly_above(right[many], right[few])
    return (
        f" Less data {'lowers' if worse else 'does not lower'} what epsilon {strict:g} buys: "
        f"{few:.0%} of the rows give {shown(right[few], percent=True)} %, all of them "
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
