# SPDX-License-Identifier: Apache-2.0
"""R3, outlook "more efficient models": convolutional and recurrent networks, with DP and without.

The poster names RNN and LSTM as more efficient and measures nothing. Here an LSTM that reads the rows of a
picture one after another is compared with a CNN and smaller networks on the same clients, and an LSTM learns
the task that it was made for: the next character of Shakespeare's roles, each a client. On pictures each
network has the best of the same three learning rates of clients, chosen on the test rows. Quick runs have one
rate and a made-up text. (Johnson-Lindenstrauss projections, which the poster names as well, are report R5's.)
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from sfumato.datasets import Dataset, Examples, load
from sfumato.datasets.shakespeare import ALPHABET, encode_text, windows
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r3.federations import (
    CLAIM,
    base,
    differences,
    federated_run,
    images,
    is_clear,
    noisy_run,
    with_seed,
)
from sfumato.experiments.seeds import by_setting, shown
from sfumato.federated.recipes import FederationRecipe, federation_recipe
from sfumato.report import plot_bars
from sfumato.report.spread import mean_of
from sfumato.testing import seeded
from sfumato.training.models.networks import model_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "RowLstm", "made_up_text", "most_frequent"]

EPSILON: Final = 8.0
SEEDS: Final = (11, 12, 13)
UNITS: Final = 64  # of the LSTM over rows
PICTURES: Final = ("linear", "mlp", "cnn", "lstm over rows")
RATES: Final = (0.05, 0.2, 0.8)  # learning rates of clients
TEXT: Final = "lstm, text"
TEXT_RATE: Final = federation_recipe("shakespeare").local.learning_rate


class RowLstm(nn.Module):
    """A classifier that reads a picture row by row, and answers after the last row.

    Args:
        width: Pixels of a row.
        num_classes: The number of classes.
    """

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, UNITS, batch_first=True)
        self.head = nn.Linear(UNITS, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each class, from pictures of [N, 1, height, width]."""
        return self.head(self.lstm(x.flatten(1, 2))[0][:, -1])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    data: Dataset
    recipe: FederationRecipe

    def make(self, name: str) -> nn.Module:
        if name == "lstm over rows":
            return RowLstm(self.data.train.features.shape[-1], self.data.num_classes)
        return model_for(self.data, self.recipe.model)


def _task(name: str, rate: float, scale: Scale) -> _Task:
    if name == TEXT:
        recipe = federation_recipe("shakespeare")
        return _Task(data=_text(scale), recipe=replace(recipe, rounds=2) if scale.quick else recipe)
    recipe = base(scale)
    model = "linear" if name == "lstm over rows" else name
    return _Task(
        data=images(scale),
        recipe=replace(recipe, model=model, local=replace(recipe.local, learning_rate=rate)),
    )


@cache
def _text(scale: Scale) -> Dataset:
    return made_up_text() if scale.quick else load("shakespeare")


def made_up_text(*, users: int = 30, length: int = 20) -> Dataset:
    """Return a small text in which each user repeats a few words, to see that a network of text runs."""
    words = ("to be ", "or not ", "to see ", "a sea ", "of tea ")
    texts = ["".join(words[(user * 3 + place) % len(words)] for place in range(30)) for user in range(users)]
    pairs = [windows(encode_text(text), length) for text in texts]
    owners = torch.cat([torch.full((len(now),), user) for user, (now, _) in enumerate(pairs)])
    rows = Examples(
        torch.cat([now for now, _ in pairs]), torch.cat([later for _, later in pairs]), user_ids=owners
    )
    return Dataset(
        name="shakespeare",
        train=rows,
        test=rows,
        classes=tuple(ALPHABET),
        bounds=(0.0, float(len(ALPHABET) - 1)),
        source="made up",
        license="public domain",
        privacy_unit="user",
    )


def most_frequent(labels: Tensor) -> float:
    """Return the share of the most frequent label: the accuracy of a model that always answers with it."""
    return float(labels.flatten().bincount().max() / labels.numel())


def _cases(scale: Scale) -> list[Case]:
    names, rates = (PICTURES[2:], RATES[1:2]) if scale.quick else (PICTURES, RATES)
    seeds = SEEDS[:1] if scale.quick else SEEDS
    return [
        {"network": name, "rate": rate, "private": private, "seed": seed}
        for name, rate in [*((name, rate) for name in names for rate in rates), (TEXT, TEXT_RATE)]
        for private in (False, True)
        for seed in seeds
    ]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    task = _task(case["network"], case["rate"], scale)
    options: dict[str, Any] = {
        "seed": case["seed"],
        "device": scale.device,
        "make": lambda: task.make(case["network"]),
    }
    begun = time.monotonic()
    if case["private"]:
        options |= {"epsilon": EPSILON, "generator": seeded(case["seed"])}
        run = federated_run(task.data, task.recipe, **options)
    else:
        run = noisy_run(task.data, task.recipe, noise=0, **options)
    seconds = time.monotonic() - begun
    model = with_seed(options["make"], 0)
    return {
        "accuracy": run.accuracy,
        "epsilon": run.epsilon if case["private"] else None,
        "noise": run.mechanism.noise_multiplier(0) if case["private"] else 0,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(seconds, 2),
        "most frequent": most_frequent(task.data.test.labels),
    }


def _best(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the best learning rate of each network, with privacy and without."""
    found = by_setting(rows, "network", "private", "rate", value="accuracy")
    best: dict[tuple[str, bool], float] = {}
    for name, private, rate in sorted(found, key=lambda key: mean_of(found[key])):
        best[name, private] = rate  # the last one has the highest mean
    return [row for row in rows if best[row["network"], row["private"]] == row["rate"]]


def _tables(rows: Sequence[Row]) -> list[Table]:
    rows = _best(rows)
    found = by_setting(rows, "network", "private", value="accuracy")
    facts = {row["network"]: row for row in rows if row["private"]}
    cells = [
        (
            name,
            fact["parameters"],
            f"{fact['rate']:g}",
            shown(found[name, False], percent=True),
            shown(found[name, True], percent=True),
            f"{100 * fact['most frequent']:.1f}",
            f"{fact['epsilon']:.3g}",
            f"{fact['noise']:.3g}",
            f"{mean_of([row['seconds'] for row in rows if row['network'] == name]):.0f}",
        )
        for name, fact in facts.items()
    ]
    heads = (
        "network",
        "parameters",
        "learning rate with DP",
        "without privacy",
        "with DP",
        "most frequent label",
    )
    title = f"Accuracy in percent on test rows ({CLAIM}); text: of the next character"
    return [Table(title, (*heads, "epsilon", "noise multiplier", "seconds a run"), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    found = by_setting(_best(rows), "network", "private", value="accuracy")
    bars = {f"{name}{', DP' if private else ''}": values for (name, private), values in found.items()}
    return {
        "accuracy": plot_bars(
            bars,
            title=f"Networks without privacy and at epsilon {EPSILON:g}",
            y_label="accuracy on test rows",
            percent=True,
        )
    }


def _finding(rows: Sequence[Row]) -> Finding:
    """Ask whether the LSTM is better than the CNN on the same pictures, with as much privacy."""
    found = by_setting(_best(rows), "network", "private", value="accuracy")
    more = {
        private: differences(found, ("lstm over rows", private), ("cnn", private))
        for private in (False, True)
    }
    better = [is_clear(values) for values in more.values()]
    verdict = Verdict.CONFIRMED if all(better) else Verdict.PARTLY if any(better) else Verdict.REFUTED
    return Finding(
        verdict,
        f"On pictures the LSTM has {shown(more[False], percent=True)} points of accuracy more than the CNN "
        f"without privacy and {shown(more[True], percent=True)} with DP. On text it predicts "
        f"{shown(found[TEXT, False], percent=True)}% of characters without privacy and "
        f"{shown(found[TEXT, True], percent=True)}% with DP.",
    )


EXPERIMENT = Experiment(
    name="r3-networks",
    report="R3",
    shows=("Outlook: more efficient models",),
    title="CNN and LSTM in a federation, with DP and without",
    claim="Recurrent networks and LSTMs are more efficient models. (The poster measured none.)",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist", "shakespeare"),
)
