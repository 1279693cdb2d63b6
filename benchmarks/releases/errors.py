# SPDX-License-Identifier: Apache-2.0
"""How far releases are off: quantiles at once and one by one, and means without good bounds."""

import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
from models.results import Row
from releases.clocks import ms, taking_turns
from releases.questions import QS

from sfumato.accounting import gaussian
from sfumato.mechanisms import FastGenerator
from sfumato.statistics import coinpress_mean, coinpress_means, karwa_vadhan_mean, mean, quantile, quantiles

DELTA = 1e-6
ROWS = 1000
WIDE = (-10.0, 10.0)
LOOSE = (-50.0, 50.0)  # a hundred standard deviations
RHOS = (0.002, 0.02, 0.1, 0.5)
COLUMNS, COLUMN_RHO = 50, 0.5
COLUMN_ROWS = (500, 1000, 2000, 4000, 8000)
QUANTILES_BAR = 1.5  # times one by one
COLUMNS_BAR = {2000: 1.3}  # rows to ratio


def rows(quick: bool) -> Iterator[Row]:
    """Measure all errors."""
    yield from several_quantiles(5 if quick else 100)
    yield from loose_bounds(RHOS[2:3] if quick else RHOS, 40 if quick else 400)
    yield from many_columns((2000,) if quick else COLUMN_ROWS, 4 if quick else 25)


def several_quantiles(seeds: int) -> Iterator[Row]:
    """Nine quantiles at epsilon 1: their time, and their error in ranks over that of one by one."""
    subject = f"9 quantiles of {ROWS} values, epsilon 1"
    values = np.random.default_rng(0).normal(size=ROWS)
    share = 1.0 / len(QS)
    calls = {
        "at once": lambda: quantiles(values, QS, bounds=WIDE, epsilon=1.0),
        "one by one": lambda: [quantile(values, q, bounds=WIDE, epsilon=share) for q in QS],
    }
    taken = taking_turns(calls, rounds=15, clock=time.process_time)
    ratio = float(np.median(taken["at once"] / taken["one by one"]))
    note = f"{ms(taken['at once']):.1f} ms"
    yield Row(subject=subject, name="time at once over one by one", value=ratio, bar=QUANTILES_BAR, note=note)
    at_once, one_by_one = np.mean([_rank_errors(seed) for seed in range(seeds)], axis=0).tolist()
    yield Row(subject=subject, name="ranks off, at once", value=at_once)
    yield Row(subject=subject, name="ranks off, one by one", value=one_by_one)
    yield Row(subject=subject, name="ranks off, at once over one by one", value=at_once / one_by_one, bar=1.0)


def _rank_errors(seed: int) -> tuple[float, float]:
    values = np.random.default_rng(seed).normal(size=ROWS)
    noise = FastGenerator(seed)
    once = quantiles(values, QS, bounds=WIDE, epsilon=1.0, generator=noise).value
    share = 1.0 / len(QS)
    each = [quantile(values, q, bounds=WIDE, epsilon=share, generator=noise).value for q in QS]
    return _ranks_off(values, once), _ranks_off(values, sorted(each))


def _ranks_off(values: np.ndarray, found: Sequence[float]) -> float:
    ranks = np.searchsorted(np.sort(values), found)
    return float(np.abs(ranks - np.array(QS) * len(values)).mean())


def loose_bounds(rhos: Sequence[float], seeds: int) -> Iterator[Row]:
    """Root mean square error against the population's mean, which may be anywhere in loose bounds."""
    for rho in rhos:
        epsilon = gaussian.epsilon(math.sqrt(2 * rho), DELTA)
        subject = f"mean of {ROWS} values in bounds of 100 stddev, rho {rho:g} (epsilon {epsilon:.3f})"
        errors = np.array([_errors_of_means(seed, epsilon) for seed in range(seeds)])
        plain, clipped, karwa_vadhan, coinpress = np.sqrt(np.square(errors).mean(axis=0)).tolist()
        yield Row(subject=subject, name="not private", value=plain)
        yield Row(subject=subject, name="clipped mean", value=clipped)
        yield Row(subject=subject, name="Karwa-Vadhan", value=karwa_vadhan)
        yield Row(subject=subject, name="CoinPress", value=coinpress)
        yield Row(
            subject=subject, name="CoinPress over Karwa-Vadhan", value=coinpress / karwa_vadhan, bar=1.0
        )
        yield Row(subject=subject, name="CoinPress over clipped mean", value=coinpress / clipped, bar=1.0)


def _errors_of_means(seed: int, epsilon: float) -> list[float]:
    numbers, noise = np.random.default_rng(seed), FastGenerator(seed)
    center = numbers.uniform(-40, 40)
    values = numbers.normal(center, 1, size=ROWS)
    given = {"bounds": LOOSE, "epsilon": epsilon, "delta": DELTA, "generator": noise}
    found = [
        mean(values, **given),
        karwa_vadhan_mean(values, stddev=1.0, **given),
        coinpress_mean(values, stddev=1.0, **given),
    ]
    return [values.mean() - center, *(release.value - center for release in found)]


def many_columns(sizes: Sequence[int], seeds: int) -> Iterator[Row]:
    """L2 error of a mean of many columns over that of the non-private mean."""
    for size in sizes:
        subject = f"mean of {COLUMNS} columns by CoinPress over not private, rho {COLUMN_RHO:g}, {size} rows"
        errors = np.array([_errors_of_columns(size, seed) for seed in range(seeds)]).mean(axis=0).tolist()
        for name, error in zip(("add-remove", "replace-one"), errors[1:], strict=True):
            yield Row(subject=subject, name=name, value=error / errors[0], bar=COLUMNS_BAR.get(size))


def _errors_of_columns(size: int, seed: int) -> list[float]:
    numbers, noise = np.random.default_rng(seed), FastGenerator(seed)
    center = numbers.uniform(-40, 40, size=COLUMNS)
    data = numbers.normal(size=(size, COLUMNS)) + center
    given = {"bounds": LOOSE, "stddev": 1.0, "rho": COLUMN_RHO, "delta": DELTA, "generator": noise}
    found = [
        data.mean(axis=0),
        coinpress_means(data, **given).value,
        coinpress_means(data, relation="replace-one", public_size=size, **given).value,
    ]
    return [float(np.linalg.norm(means - center)) for means in found]
