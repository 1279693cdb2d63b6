# SPDX-License-Identifier: Apache-2.0
"""Linear problems, the four private regressions that can be fitted to them, and their errors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from models.results import Row

from sfumato.errors import InvalidParameterError
from sfumato.estimators import AdaSSP, NoisyStats, TheilSen, TukeyEM

DELTA = 1e-6
UNIT, CENTERED = (0.0, 1.0), (-1.0, 1.0)
ROWS_EACH = (4, 2)  # of a coefficient, in each part that TukeyEM fits

Fit = Callable[[int], Any]  # from a seed to a fitted estimator


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Rows, public bounds of the target, and which rows follow the line; one feature lies in [-1, 1]."""

    name: str
    features: np.ndarray  # [rows, features], whose norms are at most 1
    target: np.ndarray
    target_bounds: tuple[float, float]
    clean: np.ndarray

    @classmethod
    def of_columns(
        cls, name: str, feature: np.ndarray, target: np.ndarray, clean: np.ndarray | None = None
    ) -> "Problem":
        """Return a problem of one feature and its target, both in [0, 1]."""
        kept = np.ones(len(target), dtype=bool) if clean is None else clean
        features = (2 * feature - 1)[:, None]
        return cls(name=name, features=features, target=target, target_bounds=UNIT, clean=kept)

    def rows(self, epsilon: float, *, seeds: int) -> Iterator[Row]:
        """Yield the median error of each estimator, beside that of least squares."""
        subject = f"{self.name}, epsilon {epsilon:g}: 1 - R^2"
        yield from self._of_errors(subject, "least squares", self._errors(self._least_squares()))
        for name, fit in self._fits(epsilon).items():
            models = [fit(seed) for seed in range(seeds)]
            errors = [self._errors(self._predicted(model)) for model in models]
            failed = sum(model.failed_ for model in models)
            note = f"{failed} of {seeds} failed" if failed else ""
            yield from self._of_errors(subject, name, np.median(errors, axis=0), note)

    def _of_errors(self, subject: str, name: str, errors: np.ndarray, note: str = "") -> Iterator[Row]:
        known = [float(error) if np.isfinite(error) else None for error in errors]
        yield Row(subject=subject, name=name, value=known[0], note=note)
        if not self.clean.all():
            yield Row(subject=subject, name=f"{name}, without junk", value=known[1], note=note)

    def _errors(self, predicted: np.ndarray) -> np.ndarray:
        squares = (predicted - self.target) ** 2
        kept = squares[self.clean].mean() / self.target[self.clean].var()
        return np.array([squares.mean() / self.target.var(), kept])

    def _predicted(self, model: Any) -> np.ndarray:
        return np.full(len(self.target), np.inf) if model.failed_ else model.predict(self.features)

    def _least_squares(self) -> np.ndarray:
        with_one = np.column_stack([self.features, np.ones(len(self.target))])
        return with_one @ np.linalg.lstsq(with_one, self.target, rcond=None)[0]

    def _fits(self, epsilon: float) -> dict[str, Fit]:
        budget = {"epsilon": epsilon, "delta": DELTA}
        found: dict[str, Fit] = {}
        if self.features.shape[1] == 1:
            bounds = {"feature_bounds": CENTERED, "target_bounds": self.target_bounds}
            found["NoisyStats"] = self._fit(NoisyStats, epsilon=epsilon, **bounds)
            found["TheilSen"] = self._fit(TheilSen, epsilon=epsilon, **bounds)
        found["AdaSSP"] = self._fit(AdaSSP, clip_norm=1.0, target_bounds=self.target_bounds, **budget)
        for count in self._model_counts(budget):
            found[f"TukeyEM, {count} models"] = self._fit(TukeyEM, num_models=count, **budget)
        return found

    def _fit(self, estimator: Any, **options: Any) -> Fit:
        return lambda seed: estimator(random_state=seed, **options).fit(self.features, self.target)

    def _model_counts(self, budget: dict[str, float]) -> Iterator[int]:
        """Yield numbers of models; those with which its test could never be passed are left out."""
        for rows_each in ROWS_EACH:
            count = len(self.target) // (rows_each * (self.features.shape[1] + 1))
            try:
                TukeyEM(num_models=count, **budget).event()
            except InvalidParameterError:
                continue
            yield count


def synthetic() -> Iterator[Problem]:
    """Yield a line with many rows, with few, with junk; and a plane."""
    yield line("line, 10000 rows", 10_000)
    yield line("line, 500 rows", 500)
    yield line("line, 10000 rows, 10% junk", 10_000, junk=0.1)
    yield plane("plane, 20000 rows, 8 features", 20_000, 8)


def line(name: str, rows: int, *, junk: float = 0.0) -> Problem:
    """Return a line in the unit square, a part of whose targets is 1 wherever the line is."""
    numbers = np.random.default_rng(0)
    feature = numbers.normal(0.5, 0.15, rows).clip(*UNIT)
    target = (0.2 + 0.5 * feature + numbers.normal(0, 0.05, rows)).clip(*UNIT)
    wrong = numbers.random(rows) < junk
    target[wrong] = 1.0
    return Problem.of_columns(name, feature, target, ~wrong)


def plane(name: str, rows: int, columns: int) -> Problem:
    """Return a target that follows several features."""
    numbers = np.random.default_rng(1)
    features = numbers.uniform(-1, 1, (rows, columns)) / np.sqrt(columns)
    target = features @ numbers.normal(size=columns) + 0.1 + numbers.normal(0, 0.1, rows)
    everywhere = np.ones(rows, dtype=bool)
    return Problem(name=name, features=features, target=target, target_bounds=(-2.0, 2.0), clean=everywhere)
