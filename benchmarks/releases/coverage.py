# SPDX-License-Identifier: Apache-2.0
"""How often a stated 95% interval holds the truth, for each release that gives one.

The truth is the number without noise, of the clipped values; "of the population" means that of the law they
were drawn from. Values are drawn anew in every run. Counts get a small epsilon: at a large one their noise is
a few whole numbers, and the least interval of whole numbers that covers 95% covers more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from models.results import Row
from scipy.stats import norm

from sfumato import statistics as st
from sfumato.mechanisms import FastGenerator

RUNS, QUICK_RUNS = 1000, 100
LEAST, MOST = 93.0, 97.5
ROWS = 1000
DELTA = 1e-6
LOW, HIGH = BOUNDS = (0.0, 100.0)
CENTER, SPREAD = 35.0, 10.0
LOOSE = (-500.0, 500.0)
NAMES = ("a", "b", "c")
LAWS = {"Laplace": 0.0, "Gaussian": DELTA}

Truth = Callable[[np.ndarray], float]
Holds = Callable[[np.random.Generator, FastGenerator], bool]


@dataclass(frozen=True, kw_only=True)
class Covered(Row):
    """A share of runs in percent, with a bar on either side."""

    most: float

    @property
    def met(self) -> bool | None:
        """Whether it is neither too small nor too large."""
        return None if self.bar is None else bool(self.bar <= (self.value or 0.0) <= self.most)

    @property
    def limit(self) -> str:
        """The bar as text."""
        return "" if self.bar is None else f"{self.bar:g} to {self.most:g}"


def rows(quick: bool) -> Iterator[Row]:
    """Measure every release that gives an interval; a quick run has too few runs for the bar."""
    runs = QUICK_RUNS if quick else RUNS
    for name, holds in cases().items():
        numbers, noise = np.random.default_rng(1), FastGenerator(1)
        share = 100 * sum(holds(numbers, noise) for _ in range(runs)) / runs
        bar = None if quick else LEAST
        yield Covered(subject=f"covered in {runs} runs, %", name=name, value=share, bar=bar, most=MOST)


def cases() -> dict[str, Holds]:
    """Return what is asked: whether one run's interval holds the truth."""
    found: dict[str, Holds] = {}
    for law, delta in LAWS.items():
        found |= {f"{name}, {law}": holds for name, holds in with_noise(delta).items()}
    return found | quantiles() | loose_means() | counted() | matrices() | tables()


def with_noise(delta: float) -> dict[str, Holds]:
    """Return the releases that exist with Laplace and with Gaussian noise."""
    given: dict[str, Any] = {"epsilon": 0.2, "delta": delta}
    bounded = given | {"bounds": BOUNDS}
    inside = (20.0, 50.0)
    return {
        "count": of(len, st.Count(**given)),
        "sum": of(lambda values: values.sum(), st.Sum(**bounded)),
        "mean": of(np.mean, st.Mean(**bounded)),
        "mean, public size": of(np.mean, st.Mean(public_size=ROWS, **bounded)),
        "mean of the population": of(lambda _: CENTER, st.Mean(population=True, **bounded)),
        "variance": of(np.var, st.Variance(**bounded)),
        "standard deviation": of(np.std, st.StandardDeviation(**bounded)),
        "share out of bounds": of(
            lambda values: np.mean((values < inside[0]) | (values > inside[1])),
            st.ClippedShare(bounds=inside, **given),
        ),
        "histogram": of(
            lambda values: np.sum((values >= inside[0]) & (values < inside[1])),
            st.BinCounts(edges=(LOW, *inside, HIGH), **given),
            place=1,
        ),
    }


def quantiles() -> dict[str, Holds]:
    """Return quantiles with an interval, of the values and of the population."""
    found: dict[str, Holds] = {}
    for q, epsilon in ((0.5, 1.0), (0.5, 0.2), (0.25, 1.0), (0.9, 1.0)):
        given: dict[str, Any] = {"q": q, "bounds": BOUNDS, "epsilon": epsilon, "level": 0.95}
        found[f"quantile {q:g}, epsilon {epsilon:g}"] = of(_quantile(q), st.Quantile(**given))
        population = float(norm.ppf(q, CENTER, SPREAD))
        found[f"quantile {q:g} of the population, epsilon {epsilon:g}"] = of(
            lambda _, truth=population: truth, st.Quantile(population=True, **given)
        )
    return found


def _quantile(q: float) -> Truth:
    return lambda values: float(np.quantile(values, q))


def loose_means() -> dict[str, Holds]:
    """Return means without good bounds; the spread is given half too large."""
    found: dict[str, Holds] = {}
    for rho in (0.02, 0.5):
        stddev, budget = 1.5 * SPREAD, {"rho": rho, "delta": DELTA}
        once = st.KarwaVadhanMean(bounds=LOOSE, stddev=stddev, **budget)
        steps = st.CoinPressMean(terms=st.CoinPressMeans(bounds=(LOOSE,), stddev=(stddev,), **budget))
        found[f"mean by Karwa-Vadhan, rho {rho:g}"] = of(np.mean, once)
        found[f"mean by CoinPress, rho {rho:g}"] = of(np.mean, steps)
    return found


def counted() -> dict[str, Holds]:
    """Return counts of what had to be found first."""
    stable = st.StableCounts(epsilon=0.2, delta=DELTA)
    common = st.categories_of(["common"] * ROWS)
    first = st.FirstAbove(ranges=(BOUNDS,), threshold=ROWS / 4, epsilon=0.5, counted=True)
    return {
        "count of a category that was found": lambda _, noise: (
            ROWS in stable.answer(common, generator=noise).interval[0]
        ),
        "count of a range that was found": of(len, first, place=0),
    }


def matrices() -> dict[str, Holds]:
    """Return one entry of covariance, of correlation, and of a mean of columns."""
    budget: dict[str, Any] = {"rho": 0.05, "delta": DELTA}
    bounded = budget | {"columns": NAMES, "bounds": ((-1.0, 1.0),) * 3}
    loose = budget | {"bounds": ((-50.0, 50.0),) * 3, "stddev": (1.0,) * 3}
    return {
        "covariance": of_rows(lambda rows: np.cov(rows.T, bias=True)[0, 1], st.Covariance(**bounded)),
        "correlation": of_rows(lambda rows: np.corrcoef(rows.T)[0, 1], st.Correlation(**bounded)),
        "mean of columns by CoinPress": of_rows(lambda rows: rows[:, 1].mean(), st.CoinPressMeans(**loose)),
    }


def tables() -> dict[str, Holds]:
    """Return releases of a table and of its groups, which the engine computes anew in every run."""
    values = normal(np.random.default_rng(2))
    table = st.private_table(pd.DataFrame({"group": ["a", "b"] * (ROWS // 2), "value": values}))
    groups, known = table.group_by("group", keys=["a", "b"]), values[::2]
    found: dict[str, Holds] = {}
    for law, delta in LAWS.items():
        given: dict[str, Any] = {"epsilon": 0.2, "delta": delta}
        mean, total = (ask("value", bounds=BOUNDS, **given) for ask in (groups.mean, groups.sum))
        found[f"rows of a table, {law}"] = of_query(ROWS, table.count(**given))
        found[f"count of a group, {law}"] = of_query(len(known), groups.count(**given))
        found[f"sum of a group, {law}"] = of_query(known.sum(), total)
        found[f"mean of a group, {law}"] = of_query(known.mean(), mean)
    return found


def normal(numbers: np.random.Generator) -> np.ndarray:
    """Draw values whose population has the mean CENTER, and which are all within the bounds."""
    drawn = numbers.normal(0, SPREAD, size=ROWS)
    return CENTER + np.clip(drawn, LOW - CENTER, CENTER - LOW)


def of(truth: Truth, question: Any, *, place: int | None = None) -> Holds:
    """Return whether the interval for a column, or one of its intervals, holds the truth."""

    def holds(numbers: np.random.Generator, noise: FastGenerator) -> bool:
        values = normal(numbers)
        found = question.answer(st.column_of(values), generator=noise).interval
        return float(truth(values)) in (found if place is None else found[place])

    return holds


def of_rows(truth: Truth, question: Any) -> Holds:
    """Return the same for three columns, the first two of which go together; the second interval counts."""

    def holds(numbers: np.random.Generator, noise: FastGenerator) -> bool:
        drawn = numbers.uniform(-1, 1, size=(2 * ROWS, 3))
        drawn[:, 1] = (drawn[:, 0] + drawn[:, 1]) / 2
        rows = st.rows_of(drawn, names=NAMES)
        return float(truth(drawn)) in question.answer(rows, generator=noise).interval[1]

    return holds


def of_query(truth: float, query: st.Query[Any]) -> Holds:
    """Return the same for a table whose rows stay."""

    def holds(_: np.random.Generator, noise: FastGenerator) -> bool:
        found = query.question.answer(query.data, generator=noise).interval
        return float(truth) in (found if isinstance(found, st.Interval) else found[0])

    return holds
