# SPDX-License-Identifier: Apache-2.0
"""The measured curves of `sfumato.estimators.advise`: how much of what can be learned a classifier learns.

    python -m models.advice        from the folder benchmarks; minutes. Prints the table of `advice.py`

Each classifier is fitted to Adult and to credit default, whole and a tenth of it, by epsilon. What it reaches
is its test accuracy above that of the most frequent class, over the same for scikit-learn's boosting on all
rows. The curve over rows per noise (`estimators.advice`) is the isotonic regression of all these.
"""

from dataclasses import dataclass

import numpy as np
from models.cells import coded
from sklearn.ensemble import HistGradientBoostingClassifier as Plain
from sklearn.isotonic import IsotonicRegression

from sfumato.datasets import load
from sfumato.estimators import advice

EPSILONS = (0.03, 0.1, 0.3, 1.0, 5.0)
SEEDS = 1
CLIP_NORM = 3.0


def measured(delta: float) -> dict[str, list[tuple[float, float]]]:
    """Return rows per noise, and the share that was learned, of each fit."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in advice.CLASSIFIERS}
    for name in ("adult", "credit-default"):
        problem = _Problem.of(name)
        for size in (len(problem.labels), len(problem.labels) // 10):
            for epsilon in EPSILONS:
                for kind, points in found.items():
                    features = problem.rows.shape[1]
                    rows = advice.rows_per_noise(
                        kind, public_size=size, features=features, epsilon=epsilon, delta=delta
                    )
                    points += [(rows, problem.learned(kind, size, s, epsilon, delta)) for s in range(SEEDS)]
    return found


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """A data set: encoded for the linear model, as codes for the others."""

    encoded: tuple[np.ndarray, np.ndarray]  # to learn from, and to test with
    rows: np.ndarray
    tested: np.ndarray
    labels: np.ndarray
    asked: np.ndarray
    categories: dict[int, int]
    usual: float
    best: float

    @classmethod
    def of(cls, name: str) -> "_Problem":
        data = load(name)
        encoded, tested = (part.features.numpy().astype(float) for part in (data.train, data.test))
        labels, asked = data.train.labels.numpy(), data.test.labels.numpy()
        if name == "adult":
            (rows, categories), (rows_tested, _) = coded(encoded), coded(tested)
        else:
            rows, rows_tested, categories = encoded, tested, {}
        return cls(
            encoded=(encoded, tested),
            rows=rows,
            tested=rows_tested,
            labels=labels,
            asked=asked,
            categories=categories,
            usual=float(np.mean(asked == (labels.mean() > 0.5))),
            best=Plain(random_state=0).fit(rows, labels).score(rows_tested, asked),
        )

    def learned(self, kind: str, size: int, seed: int, epsilon: float, delta: float) -> float:
        """Return the share that is learned from some of the rows."""
        terms = {"epsilon": epsilon, "delta": delta, "classes": (0, 1), "random_state": seed}
        known, asked = self.rows, self.tested
        if kind == "LogisticRegression":
            terms, (known, asked) = terms | {"clip_norm": CLIP_NORM}, self.encoded
        elif kind == "GaussianNB":  # codes as numbers of [0, 1]
            widths = np.array([self.categories.get(j, 1) for j in range(known.shape[1])])
            terms, known, asked = terms | {"bounds": (0.0, 1.0)}, known / widths, asked / widths
        else:
            terms = terms | {"bounds": (0.0, 1.0), "categories": self.categories}
        some = np.random.default_rng(seed).permutation(len(self.labels))[:size]
        model = advice.CLASSIFIERS[kind](**terms).fit(known[some], self.labels[some])
        score = np.mean(model.predict(asked) == self.asked)
        return max(0.0, float((score - self.usual) / (self.best - self.usual)))


def curves(delta: float) -> dict[str, tuple[float, ...]]:
    """Return the share at each number of rows per noise in `advice.GRID`."""
    fitted: dict[str, tuple[float, ...]] = {}
    for name, points in measured(delta).items():
        rows, shares = np.array(points).T
        smooth = IsotonicRegression(out_of_bounds="clip").fit(np.log(rows), shares)
        fitted[name] = tuple(np.round(smooth.predict(np.log(advice.GRID)), 2).tolist())
    return fitted


if __name__ == "__main__":
    for delta in (0.0, 1e-5):
        print(delta, curves(delta))
