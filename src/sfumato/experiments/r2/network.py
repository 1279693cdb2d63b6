# SPDX-License-Identifier: Apache-2.0
"""R2, Figure 6: a network of three linear layers and about 100,000 parameters, by DP-SGD.

R2 does not name the data of Figure 6, and gives one number: "about 97.65%" without privacy. Assumed: MNIST,
784-128-64-10 (109,386 parameters). DP-SGD takes Poisson samples of 1200, 20 epochs, clip norm 1; delta is
1e-5, neighbors add or remove an image. Settings are usual ones; they were not searched. A quick run learns
digits of 8 x 8 pixels by a smaller network.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from sfumato.datasets import Dataset, load
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_tradeoff
from sfumato.report.spread import mean_of
from sfumato.testing import seeded
from sfumato.training import Runtime, train
from sfumato.training.random_state import same_draws

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

DELTA: Final = 1e-5
REPORTED: Final = 0.9765  # without privacy; R2, Section V
LEARNING_RATE: Final = 0.25  # of DP-SGD, with momentum 0.9
PLAIN_BATCH, PLAIN_RATE = 128, 1e-3  # of Adam, without privacy
SERIOUS: Final = 0.05  # a "serious utility drop": this much of the accuracy
EPSILON: Final = 3.0  # of the finding


def _cases(scale: Scale) -> list[Case]:
    epsilons = (None, EPSILON) if scale.quick else (None, 0.5, 1.0, EPSILON, 8.0)
    return [
        {"epsilon": epsilon, "seed": seed} for epsilon in epsilons for seed in range(1 if scale.quick else 5)
    ]


def network(inputs: int, *, quick: bool) -> nn.Sequential:
    """Return the network.

    >>> sum(p.numel() for p in network(784, quick=False).parameters())
    109386
    """
    first, second = (32, 16) if quick else (128, 64)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, first),
        nn.ReLU(),
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, 10),
    )


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    data = load("digits" if scale.quick else "mnist")
    device = scale.device or ("cuda" if torch.cuda.is_available() else "cpu")
    with same_draws(seed=case["seed"]):
        model = network(data.train.features[0].numel(), quick=scale.quick).to(device)
        if case["epsilon"] is None:
            _fit(model, data, epochs=3 if scale.quick else 10)
            return {"honest": None, "accuracy": _accuracy(model, data)}
    run = train(
        model,
        data.train,
        epsilon=case["epsilon"],
        delta=DELTA,
        epochs=5 if scale.quick else 20,
        expected_batch_size=data.public_size / 50,
        public_size=data.public_size,
        clip_norm=1.0,
        learning_rate=LEARNING_RATE,
        generator=seeded(case["seed"]),
        runtime=Runtime(device=device),
        progress=False,
    )
    return {"honest": round(run.guarantee.epsilon, 5), "accuracy": _accuracy(model, data)}


def _fit(model: nn.Module, data: Dataset, *, epochs: int) -> None:
    """Learn without privacy."""
    device = next(model.parameters()).device
    features, labels = data.train.features.to(device), data.train.labels.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=PLAIN_RATE)
    for _ in range(epochs):
        for drawn in torch.randperm(len(labels)).split(PLAIN_BATCH):
            chosen = drawn.to(device)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features[chosen]), labels[chosen]).backward()
            optimizer.step()


def _accuracy(model: nn.Module, data: Dataset) -> float:
    device = next(model.parameters()).device
    with torch.no_grad():
        predicted = model(data.test.features.to(device)).argmax(dim=1).cpu()
    return round(float((predicted == data.test.labels).float().mean()), 5)


def _tables(rows: Sequence[Row]) -> list[Table]:
    found, honest = (by_setting(rows, "epsilon", value=value) for value in ("accuracy", "honest"))
    cells = [
        ("none" if e is None else f"{e:g}", f"{honest[e][0]:.4g}" if e else "", shown(right, percent=True))
        for e, right in found.items()
    ]
    title = f"Figure 6: accuracy on test images, delta {DELTA:g}, add-remove, Poisson sampling"
    return [Table(title, ("epsilon", "honest epsilon", "accuracy, %"), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    private = by_setting([row for row in rows if row["epsilon"] is not None], "epsilon", value="accuracy")
    levels = {"without privacy": _plain(rows), "R2, without privacy": REPORTED}
    title = "Three linear layers, about 100,000 parameters"
    return {"accuracy": plot_tradeoff({"DP-SGD": private}, title=title, levels=levels)}


def _plain(rows: Sequence[Row]) -> float:
    return mean_of([row["accuracy"] for row in rows if row["epsilon"] is None])


def _finding(rows: Sequence[Row]) -> Finding:
    found, plain = by_setting(rows, "epsilon", value="accuracy"), _plain(rows)
    lost = {e: plain - mean_of(right) for e, right in found.items() if e is not None}
    drops = ", ".join(f"{100 * drop:.1f} at epsilon {e:g}" for e, drop in lost.items())
    sentence = (
        f"Without privacy the network reaches {shown(found[None], percent=True)}% (R2: about "
        f"{100 * REPORTED:.2f}%). DP-SGD loses, in points: {drops}. At epsilon {EPSILON:g} it reaches "
        f"{shown(found[EPSILON], percent=True)}%."
    )
    serious = [e for e, drop in lost.items() if drop > SERIOUS]
    if len(serious) == len(lost):
        return Finding(Verdict.CONFIRMED, sentence)
    return Finding(Verdict.PARTLY if serious else Verdict.REFUTED, sentence)


EXPERIMENT = Experiment(
    name="r2-network",
    report="R2",
    shows=("Figure 6",),
    title="A network of about 100,000 parameters by DP-SGD",
    claim="DP-SGD results in a serious utility drop; without privacy the same network reaches about 97.65%.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
