# SPDX-License-Identifier: Apache-2.0
"""R3, outlook "decentralised federated learning": what it costs to have no coordinator.

The poster measured nothing. Here ten nodes hold equal parts of the rows, and their models are linear. Two
questions are asked, because they have different answers.

Unit row      Each node takes steps of DP-SGD over its own rows and sends the noisy model to its neighbors
              (`gossip`). Compared with DP-SGD over all rows in one place, and with nodes that stay alone.
Unit node     All rows of a node are protected. Each node adds the noise to its own update, because nobody
              else could. Compared with a server that adds noise to the sum once.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn

from sfumato.accounting import Relation, calibrate
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r3.federations import differences, images, is_clear, with_seed
from sfumato.experiments.seeds import by_setting, shown
from sfumato.federated import (
    AssignedRows,
    ClippedNoise,
    ClippedUpdates,
    Graph,
    LocalTraining,
    NoisySteps,
    federate,
    gossip,
    iid,
)
from sfumato.report import plot_tradeoff
from sfumato.testing import seeded
from sfumato.training import train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "steps_for"]

NODES: Final = 10
DELTA: Final = 1e-5
EPSILONS: Final = (1.0, 8.0, 64.0)
SEEDS: Final = (11, 12, 13)
STEPS: Final = 5  # of a node in a round
BATCH_SHARE: Final = 0.05
RATE: Final = 0.5
LOCAL: Final = LocalTraining(epochs=1, batch_size=20, learning_rate=0.05)
TOGETHER: Final = "together"  # rows in one place, or a server that is trusted
WAYS: Final[Mapping[str, tuple[str, ...]]] = {
    "row": (TOGETHER, "complete graph", "ring", "alone"),
    "node": (TOGETHER, "complete graph", "ring"),
}
_NEIGHBORS: Final = {
    "row": "one row, add-remove neighbors, Poisson batches",
    "node": "all rows of one node, replace-one neighbors, all nodes in each round",
}

Rows = tuple[Tensor, Tensor]


def _cases(scale: Scale) -> list[Case]:
    return [
        {"unit": unit, "way": way, "epsilon": epsilon, "seed": seed}
        for unit, ways in WAYS.items()
        for way in ways
        for epsilon in (EPSILONS[1:2] if scale.quick else EPSILONS)
        for seed in (SEEDS[:1] if scale.quick else SEEDS)
    ]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    data = images(scale)
    learned = data.train.features.flatten(1), data.train.labels
    test = data.test.features.flatten(1), data.test.labels
    rounds = 3 if scale.quick else 30
    nodes = iid(learned, clients=NODES, seed=case["seed"])
    model = with_seed(lambda: nn.Linear(learned[0].shape[1], data.num_classes), case["seed"])
    if case["way"] in ("ring", "complete graph"):
        accuracy, epsilon = _gossip(case, model, nodes, test, rounds=rounds, size=len(learned[1]) // NODES)
    elif case["unit"] == "row":
        rows = learned if case["way"] == TOGETHER else nodes.rows(0)
        accuracy, epsilon = _in_one_place(case, model, (rows[0], rows[1]), test, rounds=rounds)
    else:
        accuracy, epsilon = _by_a_server(case, model, nodes, test, rounds=rounds)
    return {"accuracy": accuracy, "honest epsilon": epsilon}


def steps_for(epsilon: float, *, size: int, rounds: int) -> NoisySteps:
    """Return the steps of a node with the least noise that meets a budget."""

    def with_noise(noise: float) -> NoisySteps:
        return NoisySteps(
            noise_multiplier=noise,
            public_size=size,
            expected_batch_size=BATCH_SHARE * size,
            steps=STEPS,
            learning_rate=RATE,
        )

    found = calibrate(lambda noise: with_noise(noise).event(rounds), epsilon=epsilon, delta=DELTA)
    return with_noise(found)


def _gossip(
    case: Case, model: nn.Module, nodes: AssignedRows, test: Rows, *, rounds: int, size: int
) -> tuple[float | None, float]:
    noise = ClippedNoise.calibrated(epsilon=case["epsilon"], delta=DELTA, releases=rounds)
    run = gossip(
        model,
        nodes,
        graph=Graph.ring(NODES) if case["way"] == "ring" else Graph.complete(NODES),
        protection=steps_for(case["epsilon"], size=size, rounds=rounds)
        if case["unit"] == "row"
        else ClippedUpdates(noise=noise, local=LOCAL),
        rounds=rounds,
        delta=DELTA,
        evaluation=test,
        seed=case["seed"],
    )
    return run.accuracy, run.guarantee.epsilon


def _in_one_place(
    case: Case, model: nn.Module, rows: Rows, test: Rows, *, rounds: int
) -> tuple[float | None, float]:
    run = train(
        model,
        rows,
        steps=STEPS * rounds,
        expected_batch_size=BATCH_SHARE * len(rows[1]),
        public_size=len(rows[1]),
        learning_rate=RATE,
        clip_norm=1.0,
        epsilon=case["epsilon"],
        delta=DELTA,
        evaluation=test,
        evaluate_every=STEPS * rounds,
        progress=False,
        generator=seeded(case["seed"]),
    )
    return run.accuracy, run.epsilon


def _by_a_server(
    case: Case, model: nn.Module, nodes: AssignedRows, test: Rows, *, rounds: int
) -> tuple[float | None, float]:
    run = federate(
        model,
        nodes,
        rounds=rounds,
        expected_cohort_size=NODES,
        local=LOCAL,
        clip_norm=1.0,
        relation=Relation.REPLACE_ONE,
        epsilon=case["epsilon"],
        delta=DELTA,
        evaluation=test,
        evaluate_every=rounds,
        progress=False,
        generator=seeded(case["seed"]),
    )
    return run.accuracy, run.epsilon


def _tables(rows: Sequence[Row]) -> list[Table]:
    return [_table(rows, unit, neighbors) for unit, neighbors in _NEIGHBORS.items()]


def _table(rows: Sequence[Row], unit: str, neighbors: str) -> Table:
    found = by_setting([row for row in rows if row["unit"] == unit], "way", "epsilon", value="accuracy")
    epsilons = sorted({epsilon for _, epsilon in found})
    cells = [(way, *(shown(found[way, epsilon], percent=True) for epsilon in epsilons)) for way in WAYS[unit]]
    title = f"Accuracy in percent of {NODES} nodes; protected: {neighbors}, delta {DELTA:g}"
    return Table(title, ("way", *(f"epsilon {epsilon:g}" for epsilon in epsilons)), cells)


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    return {unit: _figure([row for row in rows if row["unit"] == unit], unit) for unit in WAYS}


def _figure(rows: Sequence[Row], unit: str) -> "Figure":
    lines = {
        way: by_setting([row for row in rows if row["way"] == way], "epsilon", value="accuracy")
        for way in WAYS[unit]
    }
    return plot_tradeoff(lines, title=f"Without a coordinator; protected: one {unit}")


def _finding(rows: Sequence[Row]) -> Finding:
    """Ask whether a ring does as well as rows in one place or a server."""
    found = by_setting(rows, "unit", "way", "epsilon", value="accuracy")
    epsilons = sorted({row["epsilon"] for row in rows})
    lost = {
        (unit, epsilon): differences(found, (unit, TOGETHER, epsilon), (unit, "ring", epsilon))
        for unit in WAYS
        for epsilon in epsilons
    }
    worse = [is_clear(values) for values in lost.values()]
    verdict = Verdict.REFUTED if all(worse) else Verdict.PARTLY if any(worse) else Verdict.CONFIRMED
    told = [
        f"if one {unit} is protected, "
        + ", ".join(f"{shown(lost[unit, e], percent=True)} (epsilon {e:g})" for e in epsilons)
        for unit in WAYS
    ]
    return Finding(verdict, f"Points of accuracy that a ring without coordinator loses: {'; '.join(told)}.")


EXPERIMENT = Experiment(
    name="r3-decentralized",
    report="R3",
    shows=("Outlook: decentralised federated learning",),
    title="Gossip on a graph against a coordinator",
    claim="No coordinator is needed. (The poster measured nothing; tested: a ring loses no accuracy.)",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
