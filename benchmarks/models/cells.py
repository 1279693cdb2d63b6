# SPDX-License-Identifier: Apache-2.0
"""The rows of estimators over cells: boosting, trees, naive Bayes and k-means, beside diffprivlib's.

Categories of Adult are read back from their encoding, as codes: trees take them whole.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from models.results import Row
from peers.environment import absent_peers, ask_peers
from sklearn.cluster import KMeans as PlainKMeans
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier as PlainBoosting
from sklearn.ensemble import RandomForestClassifier as PlainForest
from sklearn.naive_bayes import GaussianNB as PlainBayes
from sklearn.tree import DecisionTreeClassifier as PlainTree

from sfumato import estimators as e
from sfumato.datasets import adult
from sfumato.datasets.columns import Category

SEEDS, QUICK_SEEDS = 5, 3
EPSILONS = (0.1, 0.5, 1.0, 5.0)
DELTAS = {"delta 0": 0.0, "delta 1e-5": 1e-5}
TREE_BARS = {"boosting": 84.2, "random forest": 82.5, "decision tree": None}
UNIT = (0.0, 1.0)

Rows = tuple[np.ndarray, np.ndarray]
Asked = dict[str, dict[str, list[float]]]  # of each epsilon, of each peer


def coded(rows: np.ndarray) -> tuple[np.ndarray, dict[int, int]]:
    """Return encoded rows of Adult as one column a feature, and how many categories which features have."""
    columns, categories, start = list[np.ndarray](), dict[int, int](), 0
    for place, column in enumerate(adult.COLUMNS):
        part = rows[:, start : start + len(column.names)]
        if isinstance(column, Category):
            categories[place] = part.shape[1]
        columns.append(part.argmax(axis=1).astype(np.float64) if part.shape[1] > 1 else part[:, 0])
        start += part.shape[1]
    return np.stack(columns, axis=1), categories


def trees(train: Rows, test: Rows, *, quick: bool) -> Iterator[Row]:
    """Yield the test accuracy of boosting, forest and tree on Adult, by epsilon."""
    (X, categories), (tested, _) = coded(train[0]), coded(test[0])
    seeds = QUICK_SEEDS if quick else SEEDS
    kinds: dict[str, tuple[Callable[..., Any], Any]] = {
        "boosting": (e.HistGradientBoostingClassifier, PlainBoosting(categorical_features=list(categories))),
        "random forest": (e.RandomForestClassifier, PlainForest(min_samples_leaf=5)),
        "decision tree": (e.DecisionTreeClassifier, PlainTree(max_depth=8)),
    }
    domains = {"classes": (0, 1), "bounds": UNIT, "categories": categories}
    asked = {"kind": "forest", "classes": [0, 1], "bounds": UNIT, "seeds": seeds}
    epsilons = (1.0,) if quick else EPSILONS
    peers = _asked(asked | {"epsilons": epsilons}, (X, train[1]), (tested, test[1]))
    yield from absent_peers("Adult, random forest, accuracy in %")
    for name, (kind, plain) in kinds.items():
        subject = f"Adult, {name}, accuracy in %"
        yield Row(
            subject=subject, name="not private", value=100 * plain.fit(X, train[1]).score(tested, test[1])
        )
        for epsilon in epsilons:
            for known, delta in DELTAS.items():
                models = (kind(epsilon=epsilon, delta=delta, random_state=s, **domains) for s in range(seeds))
                found = [100 * model.fit(X, train[1]).score(tested, test[1]) for model in models]
                bar = TREE_BARS[name] if epsilon == 1 else None
                yield _row(subject, f"epsilon {epsilon:g}, {known}", found, bar)
            for peer, shares in peers.get(f"{epsilon:g}", {}).items():
                if name == "random forest":
                    yield _row(subject, f"epsilon {epsilon:g}, {peer}", [100 * share for share in shares])


def bayes(train: Rows, test: Rows, *, quick: bool) -> Iterator[Row]:
    """Yield the test accuracy of naive Bayes on Adult and on digits; the bar is diffprivlib's."""
    digits = load_digits()
    X, y = digits.data / 16, digits.target
    digits_parts = (X[:1200], y[:1200]), (X[1200:], y[1200:])
    for name, (known, asked) in {"Adult": (train, test), "digits": digits_parts}.items():
        seeds, epsilons = QUICK_SEEDS if quick else SEEDS, (1.0,) if quick else EPSILONS
        classes = np.unique(y).tolist() if name == "digits" else [0, 1]
        setting = {"kind": "bayes", "classes": classes, "bounds": UNIT, "seeds": seeds, "epsilons": epsilons}
        peers = _asked(setting, known, asked)
        subject = f"{name}, naive Bayes, accuracy in %"
        yield from absent_peers(subject)
        yield Row(subject=subject, name="not private", value=100 * PlainBayes().fit(*known).score(*asked))
        for epsilon in epsilons:
            ahead = [100 * float(np.mean(shares)) for shares in peers.get(f"{epsilon:g}", {}).values()]
            for peer, shares in peers.get(f"{epsilon:g}", {}).items():
                yield _row(subject, f"epsilon {epsilon:g}, {peer}", [100 * share for share in shares])
            for label, delta in DELTAS.items():
                terms = {"epsilon": epsilon, "delta": delta, "classes": classes, "bounds": UNIT}
                models = (e.GaussianNB(**terms, random_state=s) for s in range(seeds))
                found = [100 * model.fit(*known).score(*asked) for model in models]
                bar = max(ahead, default=None) if delta == 0 else None  # diffprivlib has no delta
                yield _row(subject, f"epsilon {epsilon:g}, {label}", found, bar)


def blobs(rows: int, features: int, clusters: int, spread: float) -> np.ndarray:
    """Return rows around random centers in the unit cube."""
    random = np.random.default_rng(0)
    centers = random.uniform(0.1, 0.9, (clusters, features))
    near = random.integers(0, clusters, rows)
    return np.clip(centers[near] + random.normal(0, spread, (rows, features)), 0, 1)


def inertia(X: np.ndarray, centers: np.ndarray) -> float:
    """Return the sum of squared distances from the nearest centers."""
    return float(((X[:, None] - centers) ** 2).sum(axis=2).min(axis=1).sum())


def clusters(train: Rows, *, quick: bool) -> Iterator[Row]:
    """Yield the inertia of k-means over that without privacy; the bar is diffprivlib's."""
    numbers = [place for place, column in enumerate(adult.COLUMNS) if not isinstance(column, Category)]
    problems = {
        "Adult, 5 numbers, 5 clusters": (coded(train[0])[0][:, numbers], 5),
        "5000 points, 2 features, 15 clusters": (blobs(5000, 2, 15, 0.03), 15),
        "10000 points, 8 features, 8 clusters": (blobs(10_000, 8, 8, 0.08), 8),
        "digits, 64 features, 10 clusters": (load_digits().data / 16, 10),
    }
    seeds, epsilons = QUICK_SEEDS if quick else SEEDS, (1.0,) if quick else EPSILONS
    for name, (X, count) in list(problems.items())[1 if quick else 0 : 2 if quick else None]:
        setting = {
            "kind": "clusters",
            "clusters": count,
            "bounds": UNIT,
            "seeds": seeds,
            "epsilons": epsilons,
        }
        peers = _asked(setting, (X, np.zeros(len(X))), (X, np.zeros(len(X))))
        plain = float(PlainKMeans(count, n_init=10, random_state=0).fit(X).inertia_)
        subject = f"k-means, {name}: inertia over {plain:.4g}"
        for epsilon in epsilons:
            ahead = [float(np.mean(found)) / plain for found in peers.get(f"{epsilon:g}", {}).values()]
            for peer, found in peers.get(f"{epsilon:g}", {}).items():
                yield _row(subject, f"epsilon {epsilon:g}, {peer}", [value / plain for value in found])
            for label, delta in DELTAS.items():
                terms = {"n_clusters": count, "epsilon": epsilon, "delta": delta, "bounds": UNIT}
                models = (e.KMeans(**terms, random_state=s).fit(X) for s in range(seeds))
                found = [inertia(X, model.cluster_centers_) / plain for model in models]
                bar = min(ahead, default=None) if delta == 0 else None
                yield _row(subject, f"epsilon {epsilon:g}, {label}", found, bar, at_least=False)


def _row(
    subject: str, name: str, found: list[float], bar: float | None = None, *, at_least: bool = True
) -> Row:
    note = f"+- {np.std(found):.2f}"
    return Row(subject=subject, name=name, value=float(np.mean(found)), bar=bar, at_least=at_least, note=note)


def _asked(setting: dict[str, Any], train: Rows, test: Rows) -> Asked:
    """Return what diffprivlib reaches, for each epsilon."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "rows.npz"
        parts = {"train_features": train[0], "train_labels": train[1]}
        np.savez(saved, **parts, test_features=test[0], test_labels=test[1])
        return ask_peers("cells", setting | {"data": str(saved)})
