# SPDX-License-Identifier: Apache-2.0
"""The study of report R3 on digits: how noise, clients, local passes, cohorts and rounds change accuracy, and
what epsilon a standard deviation of the noise means.

Settings, runs and prices are those of `sfumato.experiments.r3`, which repeats the study on MNIST with several
seeds (`sfumato reproduce r3-hyperparameters`). Here each value is one run on digits, for figures in the docs.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from models.results import Row

from sfumato.datasets import load
from sfumato.experiments.r3.epsilon_noise import NOISES, epsilon_of
from sfumato.experiments.r3.federations import noisy_run
from sfumato.experiments.r3.hyperparameters import NOISE, VARIED, varied
from sfumato.federated.recipes import federation_recipe
from sfumato.report import Series, line_chart

RELEASES = "30 rounds, half of the clients in each"
SHORT = 2  # values of each, for a quick look


def study(options: argparse.Namespace) -> Iterator[Row]:
    """Yield accuracy for each value of each setting, and epsilon for each noise; draw both."""
    data = load("digits")
    for name, values in VARIED[data.name].items():
        found: dict[float, float] = {}
        for value in values[:SHORT] if options.quick else values:
            noise = value if name == "noise" else NOISE
            run = noisy_run(data, varied(federation_recipe(data.name), name, value), noise=noise, seed=0)
            assert run.accuracy is not None
            found[float(value)] = run.accuracy
            yield Row(
                subject=f"digits, accuracy against {name}",
                name=f"{name} {value:g}",
                value=run.accuracy,
                note="no privacy" if noise == 0 else f"epsilon {run.epsilon:.3g} for one client",
            )
        _draw(options, f"federated-{name.replace(' ', '-')}", name, found, "accuracy")
    costs = {noise: epsilon_of(noise, RELEASES) for noise in NOISES}
    for noise, epsilon in costs.items():
        yield Row(subject="epsilon against noise", name=f"noise multiplier {noise:g}", value=epsilon)
    _draw(options, "federated-epsilon", "noise: standard deviation over clip norm", costs, "epsilon")


def _draw(
    options: argparse.Namespace, file: str, x_label: str, found: Mapping[float, float], y_label: str
) -> None:
    if options.figures is None:
        return
    line = Series(name=y_label, points=list(found.items()))
    chart = line_chart(line, title=f"{y_label} against {x_label}", x_label=x_label, y_label=y_label)
    Path(options.figures, f"{file}.svg").write_text(chart + "\n", encoding="utf-8")
