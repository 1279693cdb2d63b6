# SPDX-License-Identifier: Apache-2.0
"""R3, outlook "different FL structure": parties that hold different columns of the same people.

The poster asks whether a vertical structure has an effect on results, and measured nothing. Here the 30
columns of the breast cancer data are divided evenly among parties, and one more party has the labels. The
bottom networks of `embeddings_once` were trained on every fifth row of the training set, which is taken for
public and left out of the private rows. Epsilon is that of one party's columns of one person, replace-one
neighbors; where gradients are returned, it is shared among embeddings and steps, and labels have the same
epsilon. Nothing is sampled. The columns of all parties together cost more: `person` says how much.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from sfumato.datasets.embedded import breast_cancer
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r3.federations import differences, is_clear
from sfumato.experiments.seeds import by_setting, shown
from sfumato.federated import (
    ClippedNoise,
    FeatureParty,
    LabelParty,
    SplitSteps,
    VerticalRun,
    learn_top,
    train_split,
)
from sfumato.labels import LabelDpSgd, Learner
from sfumato.mechanisms import FastGenerator
from sfumato.report import plot_tradeoff

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "embeddings_once", "gradients_back"]

DELTA: Final = 1e-5
PUBLIC_EVERY: Final = 5
EPSILONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 1e6)
PARTIES: Final = (1, 2, 5)
SEEDS: Final = (0, 1, 2, 3, 4)
LABEL_EPSILON: Final = 2.0
EPOCHS: Final = 8
ONCE, LEAVES, BACK = (
    "embeddings once, top stays",
    f"embeddings once, top leaves (labels: epsilon {LABEL_EPSILON:g})",
    f"noisy gradients, {EPOCHS} epochs",
)


def _cases(scale: Scale) -> list[Case]:
    return [
        {"way": way, "parties": parties, "epsilon": epsilon, "seed": seed}
        for way in (ONCE, LEAVES, BACK)
        for parties in (PARTIES[:2] if scale.quick else PARTIES)
        for epsilon in ((8.0,) if scale.quick else EPSILONS)
        for seed in (SEEDS[:1] if scale.quick else SEEDS)
    ]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    """Return the accuracy on the test set, with noise on its embeddings as on all others."""
    epsilon, seed, parties = case["epsilon"], case["seed"], case["parties"]
    if case["way"] == BACK:
        run = gradients_back(epsilon, seed, parties=parties)
    else:
        run = embeddings_once(epsilon, seed, parties=parties, released=case["way"] == LEAVES)
    return {"accuracy": run.accuracy, "person": run.person.epsilon}


def embeddings_once(epsilon: float, seed: int, *, parties: int, released: bool = False) -> VerticalRun:
    """Return a run in which embeddings of one number are sent once.

    Args:
        epsilon: For the columns of one person at one party.
        seed: Of first weights and noise.
        parties: How many parties hold columns.
        released: Whether the top network may leave: then labels are protected as well.

    Returns:
        The run.
    """
    (features, labels), (shown_features, known) = _rows()
    noise = ClippedNoise.calibrated(epsilon=epsilon, delta=DELTA, clip_norm=2.0)
    torch.manual_seed(seed)
    held = [
        FeatureParty(
            name=f"party {number}", columns=own, bottom=_public_bottom(seen, known), embeddings=noise
        )
        for number, (own, seen) in enumerate(
            zip(_columns(features, parties), _columns(shown_features, parties), strict=True)
        )
    ]
    top = LabelParty(labels=labels, classes=2, top=nn.Linear(parties, 2))
    return learn_top(
        held,
        top,
        delta=DELTA,
        method=_label_method(len(labels)) if released else None,
        learner=None if released else Learner(epochs=60, batch_size=32, learning_rate=0.02),
        evaluation=_test(parties),
        generator=FastGenerator(seed),
    )


def gradients_back(epsilon: float, seed: int, *, parties: int) -> VerticalRun:
    """Return a run in which all parts learn from private rows alone.

    Args:
        epsilon: For the columns of one person at one party, and for a label.
        seed: Of first weights and noise.
        parties: How many parties hold columns.

    Returns:
        The run.
    """
    torch.manual_seed(seed)
    (features, labels), _ = _rows()

    def noise(clip_norm: float) -> ClippedNoise:
        return ClippedNoise.calibrated(epsilon=epsilon, delta=DELTA, releases=2 * EPOCHS, clip_norm=clip_norm)

    held = [
        FeatureParty(
            name=f"party {number}",
            columns=own,
            bottom=nn.Linear(own.shape[1], 1),
            embeddings=noise(1.0),
            updates=noise(0.5),
        )
        for number, own in enumerate(_columns(features, parties))
    ]
    top = LabelParty(
        labels=labels, classes=2, top=nn.Linear(parties, 2), gradients=noise(0.3), updates=noise(0.5)
    )
    return train_split(
        held,
        top,
        delta=DELTA,
        steps=SplitSteps(epochs=EPOCHS, batch_size=46, learning_rate=4.0),
        evaluation=_test(parties),
        generator=FastGenerator(seed),
    )


def _columns(features: Tensor, parties: int) -> list[Tensor]:
    return list(features.chunk(parties, dim=1))


def _rows() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return private rows and public ones."""
    data = breast_cancer().train
    public = torch.arange(len(data.labels)) % PUBLIC_EVERY == 0
    centered = data.features - 0.5
    return (centered[~public], data.labels[~public]), (centered[public], data.labels[public])


def _test(parties: int) -> tuple[Sequence[Tensor], Tensor]:
    data = breast_cancer().test
    return _columns(data.features - 0.5, parties), data.labels


def _public_bottom(columns: Tensor, labels: Tensor) -> nn.Module:
    """Return a network to one number, trained on public rows: the score of one class over the other."""
    bottom = nn.Linear(columns.shape[1], 1)
    optimizer = torch.optim.Adam(bottom.parameters(), lr=0.05, weight_decay=1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(bottom(columns)[:, 0], labels.float())
        loss.backward()
        optimizer.step()
    return bottom


def _label_method(people: int) -> LabelDpSgd:
    return LabelDpSgd(
        epsilon=LABEL_EPSILON,
        delta=DELTA,
        classes=2,
        public_size=people,
        steps=60,
        expected_batch_size=90,
        clip_norm=1.0,
        learning_rate=0.5,
    )


def _tables(rows: Sequence[Row]) -> list[Table]:
    found = by_setting(rows, "way", "parties", "epsilon", value="accuracy")
    epsilons = sorted({row["epsilon"] for row in rows})
    keys = dict.fromkeys((way, parties) for way, parties, _ in found)
    cells = [
        (way, parties, *(shown(found[way, parties, e], percent=True, digits=1) for e in epsilons))
        for way, parties in keys
    ]
    heads = [f"epsilon {epsilon:g}" for epsilon in epsilons]
    title = (
        f"Accuracy in percent on test rows (the larger class has {100 * _majority():.0f}) against the "
        f"epsilon of one party's columns of one person, delta {DELTA:g}, replace-one neighbors, no sampling"
    )
    return [Table(title, ("way", "parties", *heads), cells), _person_table(rows)]


def _person_table(rows: Sequence[Row]) -> Table:
    found = by_setting([row for row in rows if row["way"] == ONCE], "parties", "epsilon", value="person")
    cells = [(parties, f"{epsilon:g}", f"{values[0]:.4g}") for (parties, epsilon), values in found.items()]
    title = "Epsilon of a person's columns at all parties together (embeddings once)"
    return Table(title, ("parties", "epsilon of one party", "epsilon of all"), cells)


def _majority() -> float:
    labels = breast_cancer().test.labels
    return float(labels.bincount().max() / len(labels))


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    lines = {
        f"{way.split(' (')[0]}, {parties} {'party' if parties == 1 else 'parties'}": by_setting(
            [row for row in rows if (row["way"], row["parties"]) == (way, parties)],
            "epsilon",
            value="accuracy",
        )
        for way, parties in dict.fromkeys((row["way"], row["parties"]) for row in rows)
        if way != LEAVES
    }
    level = {"always the larger class": _majority()}
    return {"accuracy": plot_tradeoff(lines, title="Columns at several parties", levels=level)}


def _finding(rows: Sequence[Row]) -> Finding:
    """Ask whether accuracy changes if columns are divided, where embeddings are sent once."""
    found = by_setting(rows, "way", "parties", "epsilon", value="accuracy")
    epsilons = sorted({row["epsilon"] for row in rows})
    most = max(row["parties"] for row in rows)
    change = {e: differences(found, (ONCE, most, e), (ONCE, 1, e)) for e in epsilons}
    clear = [is_clear(values) or is_clear([-value for value in values]) for values in change.values()]
    verdict = Verdict.CONFIRMED if all(clear) else Verdict.PARTLY if any(clear) else Verdict.REFUTED
    person = by_setting(rows, "way", "parties", "epsilon", value="person")
    told = "; ".join(
        f"epsilon {e:g}: {shown(found[ONCE, most, e], percent=True, digits=1)}%, "
        f"{shown(change[e], percent=True, digits=1)} points more than one party with all columns, and "
        f"{person[ONCE, most, e][0]:.3g} is the epsilon of all columns of a person"
        for e in epsilons
    )
    return Finding(verdict, f"Columns at {most} parties, embeddings sent once, for each party {told}.")


EXPERIMENT = Experiment(
    name="r3-vertical",
    report="R3",
    shows=("Outlook: different FL structure",),
    title="Columns at several parties: vertical federation",
    claim="A vertical structure has an effect on results. (The poster asks, and measured nothing.)",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
)
