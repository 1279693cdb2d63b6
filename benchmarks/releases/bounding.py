# SPDX-License-Identifier: Apache-2.0
"""How often the stated interval of a mean holds what uniform sampling of each unit's rows would give.

Units have up to twenty times as many rows as may count, with values that a biased choice of rows gets
wrong: rare flags, ties, one unit with most rows. Names and rows of units are drawn anew for every seed. The
truth is the mean over k rows that are drawn uniformly from each unit, in expectation. The interval covers the
noise, so the budget is one at which the noise is larger than what the choice of rows adds; it is still far
smaller than the bias of an order by values (0.5 for a flag of 1%).
"""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from models.results import Row

from sfumato import statistics as st
from sfumato.mechanisms import FastGenerator

SEEDS, QUICK_SEEDS = 200, 20
UNITS, QUICK_UNITS = 1000, 300
LEAST = 93.0
BOUND, EPSILON = 5, 0.1

Draw = np.random.Generator
Values = Callable[
    [Draw, np.ndarray], np.ndarray
]  # from the unit of each row, 0 to UNITS - 1, to values in [0, 1]


def flag(share: float) -> Values:
    """Return values of which a share is 1 and the others 0."""
    return lambda draw, units: (draw.random(len(units)) < share).astype(float)


def first_of_each(draw: Draw, units: np.ndarray) -> np.ndarray:
    """Return 1 for one row of each unit."""
    return np.diff(units, prepend=-1) > 0


def heavy(draw: Draw, units: np.ndarray) -> np.ndarray:
    """Return a rare flag that all rows of the largest unit have."""
    largest = np.bincount(units).argmax()
    return np.where(units == largest, 1.0, draw.random(len(units)) < 0.05)


COLUMNS: dict[str, Values] = {
    "flag of 1%": flag(0.01),
    "flag of 10%": flag(0.1),
    "flag of 90%": flag(0.9),
    "one flag in each unit": first_of_each,
    "heavy ties": lambda draw, units: draw.choice([0.0, 0.5, 1.0], len(units), p=[0.9, 0.09, 0.01]),
    "two values, one in a hundred": lambda draw, units: draw.choice([0.1, 0.9], len(units), p=[0.99, 0.01]),
    "costs, log-normal": lambda draw, units: np.clip(draw.lognormal(-4, 1.5, len(units)), 0, 1),
    "costs, many of them zero": lambda draw, units: np.clip(draw.pareto(1.5, len(units)) / 20 - 0.1, 0, 1),
    "one heavy user": heavy,
    "flag that grows with the unit": lambda draw, units: draw.random(len(units)) < units / units.max() / 5,
}


def rows(quick: bool) -> Iterator[Row]:
    """Ask a table of every column, for each seed; a quick run has too few seeds for the bar."""
    seeds = QUICK_SEEDS if quick else SEEDS
    for name in COLUMNS:
        share = 100 * sum(holds(name, seed, quick=quick) for seed in range(seeds)) / seeds
        bar = None if quick else LEAST
        yield Row(
            subject=f"within the interval of uniform sampling, % of {seeds}",
            name=name,
            value=share,
            bar=bar,
            at_least=True,
        )


def holds(name: str, seed: int, *, quick: bool) -> bool:
    """Return whether the interval of the mean holds the expectation of uniform sampling, for one seed."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 100, QUICK_UNITS if quick else UNITS)
    if "heavy user" in name:
        sizes[0] = sizes.sum()
    units = np.repeat(np.arange(len(sizes)), sizes)
    values = COLUMNS[name](draw, units).astype(float)
    frame = pd.DataFrame({"unit": units + seed * len(sizes), "value": values})
    table = st.private_table(frame, privacy_unit="unit", contribution_bound=BOUND)
    question = st.Mean(bounds=(0.0, 1.0), epsilon=EPSILON, contribution_bound=BOUND)
    found = question.answer(table["value"], generator=FastGenerator(seed)).interval
    return expected(units, values) in found


def expected(units: np.ndarray, values: np.ndarray) -> float:
    """Return the mean over BOUND rows drawn uniformly from each unit, on average."""
    sizes = np.bincount(units)
    counted = np.minimum(sizes, BOUND)
    return float((counted * np.bincount(units, values) / sizes).sum() / counted.sum())
