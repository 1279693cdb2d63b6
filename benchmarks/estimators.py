# SPDX-License-Identifier: Apache-2.0
"""How good are private estimators? Each against the non-private fit, by epsilon.

    OMP_NUM_THREADS=1 python benchmarks/estimators.py      everything: about twenty minutes
    python benchmarks/estimators.py --quick                few seeds, fewer rows; under a minute
    python benchmarks/estimators.py --only adult           one part: adult, credit, linear, trees, ...
    python benchmarks/estimators.py --json                 rows for a program: what, value, bar, met

Adult     Test accuracy of logistic regression at (1, 1e-5), rows clipped to norm 3, encoded with public
          bounds alone, mean of 20 seeds. The bar is for the default, objective perturbation: at most 0.5
          points below scikit-learn's without privacy. diffprivlib 0.6.6 at epsilon 1 with the same norm,
          by default and with the regularization that suits it best here, from an environment of its own
          (`make bench-peers`); where that is absent, its rows are left out.
Credit    Credit default: points by which objective perturbation is ahead of output perturbation, mean of 20
          seeds, for epsilon 0.1, 0.5, 1 and 5, pure and with delta 1e-5. Bar: above 0.
Linear    Error on the rows fitted, as a share of the target's variance (1 - R^2): median of 20 seeds, beside
          least squares. "Junk" rows follow no line; there the error on the others is shown, too.
Trees     Test accuracy on Adult, mean of 5 seeds, for epsilon 0.1, 0.5, 1 and 5, with and without delta. Bars
          at epsilon 1: boosting 84.2, forest 82.5. Codes of categories; diffprivlib's forest on the same.
Bayes     Test accuracy of naive Bayes on Adult and on digits. Bar, with delta 0: diffprivlib's.
Clusters  Inertia of k-means over that of scikit-learn's. Bar, with delta 0: diffprivlib's mean.
Data      Read as `sfumato.datasets` does (SFUMATO_DATA); where there is none, the part is left out. Defaults
          of the logistic regression were chosen with these two data sets in view: see docs/benchmarks.md.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import cells, regressions
from models.results import Row, command_line, left_out, report
from peers.environment import absent_peers, ask_peers
from sklearn.linear_model import LogisticRegression as Plain

from sfumato.datasets import DataNotFoundError, load
from sfumato.estimators import LogisticRegression

SEEDS, QUICK_SEEDS = 20, 2
CLIP_NORM = 3.0
ADULT_EPSILON, ADULT_DELTA, ADULT_BAR = 1.0, 1e-5, 0.5
PEER_REGULARIZATIONS = (
    1.0,
    0.01,
)  # scikit-learn's C: diffprivlib's default, and the best of five powers of 10
EPSILONS = (0.1, 0.5, 1.0, 5.0)
DELTAS = {"pure": 0.0, "delta 1e-5": 1e-5}
METHODS = ("objective", "output", "dp-sgd")
AHEAD = 1e-9  # points: a bar that 0 does not reach

Rows = tuple[np.ndarray, np.ndarray]


def arrays(name: str) -> tuple[Rows, Rows]:
    """Return the features and labels to learn from, and those to test with."""
    data = load(name)
    train, test = (
        (part.features.numpy().astype(np.float64), part.labels.numpy()) for part in (data.train, data.test)
    )
    return train, test


def accuracies(train: Rows, test: Rows, *, seeds: int, **options: Any) -> tuple[np.ndarray, float]:
    """Return the test accuracy of each seed in percent, and the seconds of one fit."""
    start, found = time.process_time(), list[float]()
    for seed in range(seeds):
        model = LogisticRegression(classes=(0, 1), clip_norm=CLIP_NORM, random_state=seed, **options)
        found.append(100 * model.fit(*train).score(*test))
    return np.array(found), (time.process_time() - start) / seeds


def plain_accuracy(train: Rows, test: Rows) -> float:
    """Return the accuracy without privacy, in percent."""
    return 100 * float(Plain(max_iter=5000).fit(*train).score(*test))


def adult(quick: bool) -> Iterator[Row]:
    """Yield how many points each method loses on Adult."""
    train, test = arrays("adult")
    seeds, subject = QUICK_SEEDS if quick else SEEDS, f"Adult at ({ADULT_EPSILON:g}, {ADULT_DELTA:g})"
    plain = plain_accuracy(train, test)
    yield Row(subject=subject, name="not private, %", value=plain)
    for method in METHODS:
        budget = {"epsilon": ADULT_EPSILON, "delta": ADULT_DELTA, "method": method}
        size = {"public_size": len(train[0])} if method == "dp-sgd" else {}
        found, seconds = accuracies(train, test, seeds=seeds, **budget, **size)
        bar = ADULT_BAR if method == "objective" else None
        yield _lost(subject, method, plain, found, bar=bar, note=f"{seconds:.1f} s a fit")
    yield from absent_peers(subject)
    for peer, shares in _peers_on_adult(train, test, seeds).items():
        yield _lost(subject, peer, plain, 100 * np.array(shares), note="at epsilon 1, delta 0")


def _lost(
    subject: str, name: str, plain: float, found: np.ndarray, *, note: str, bar: float | None = None
) -> Row:
    note = f"{_shown(found)}; {note}"
    return Row(
        subject=subject, name=f"{name}, points lost", value=plain - float(found.mean()), bar=bar, note=note
    )


def _shown(found: np.ndarray) -> str:
    return f"{found.mean():.2f}% +- {found.std():.2f}"


def _peers_on_adult(train: Rows, test: Rows, seeds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "adult.npz"
        parts = {"train_features": train[0], "train_labels": train[1]}
        np.savez(saved, **parts, test_features=test[0], test_labels=test[1])
        setting = {"data": str(saved), "seeds": seeds, "epsilon": ADULT_EPSILON, "clip_norm": CLIP_NORM}
        return ask_peers("logistic", setting | {"inverse_regularizations": PEER_REGULARIZATIONS})


def credit(quick: bool) -> Iterator[Row]:
    """Yield by how much objective perturbation is ahead of output perturbation."""
    train, test = arrays("credit-default")
    seeds = QUICK_SEEDS if quick else SEEDS
    yield Row(subject="credit default", name="not private, %", value=plain_accuracy(train, test))
    for kind, delta in DELTAS.items():
        for epsilon in EPSILONS[-1:] if quick else EPSILONS:
            budget = {"epsilon": epsilon, "delta": delta, "seeds": seeds}
            objective, _ = accuracies(train, test, method="objective", **budget)
            output, _ = accuracies(train, test, method="output", **budget)
            yield Row(
                subject=f"credit default, {kind}",
                name=f"objective less output at epsilon {epsilon:g}, points",
                value=float(objective.mean() - output.mean()),
                bar=AHEAD,
                at_least=True,
                note=f"{_shown(objective)}, {_shown(output)}",
            )


def linear(quick: bool) -> Iterator[Row]:
    """Yield the errors of the linear regressions."""
    train, _ = arrays("credit-default")
    columns = [load("credit-default").feature_names.index(name) for name in ("BILL_AMT2", "BILL_AMT1")]
    bills = regressions.Problem.of_columns("credit default: bill on last month's bill", *train[0].T[columns])
    problems = [*regressions.synthetic(), bills]
    for problem in problems[:1] if quick else problems:
        for epsilon in EPSILONS[2:3] if quick else EPSILONS:
            yield from problem.rows(epsilon, seeds=QUICK_SEEDS if quick else SEEDS)


def trees(quick: bool) -> Iterator[Row]:
    """Yield the accuracy of trees and boosting."""
    yield from cells.trees(*arrays("adult"), quick=quick)


def bayes(quick: bool) -> Iterator[Row]:
    """Yield the accuracy of naive Bayes."""
    yield from cells.bayes(*arrays("adult"), quick=quick)


def clusters(quick: bool) -> Iterator[Row]:
    """Yield the inertia of k-means."""
    yield from cells.clusters(arrays("adult")[0], quick=quick)


PARTS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "adult": adult,
    "credit": credit,
    "linear": linear,
    "trees": trees,
    "bayes": bayes,
    "clusters": clusters,
}


def measure(part: str, *, quick: bool) -> Iterator[Row]:
    """Yield the rows of a part, or say that its data is not there."""
    try:
        yield from PARTS[part](quick)
    except DataNotFoundError as error:
        yield left_out(part, str(error))


def main() -> int:
    """Fit, print, and fail where a bar is not met."""
    parser = command_line(__doc__, quick="few seeds, fewer rows")
    parser.add_argument("--only", choices=list(PARTS), help="one part")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts = [arguments.only] if arguments.only else list(PARTS)
    rows = (row for part in parts for row in measure(part, quick=arguments.quick))
    return report("Private estimators", rows, as_json=arguments.json, digits=4)


if __name__ == "__main__":
    raise SystemExit(main())
