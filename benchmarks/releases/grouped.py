# SPDX-License-Identifier: Apache-2.0
"""Counts and medians of groups, ours and those of PipelineDP and OpenDP: their error and their time."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from models.results import Row
from peers.environment import absent_peers, ask_peers

from sfumato import queries as q
from sfumato.mechanisms import FastGenerator
from sfumato.queries.quantiles import CELLS
from sfumato.statistics import private_table

UNITS, QUICK_UNITS = 100_000, 5_000
RUNS, QUICK_RUNS = 10, 2
GROUPS, GROUPS_PER_UNIT = 12, 2
BOUNDS = (0.0, 200.0)
EPSILON = 1.0
FINEST = 2**16  # cells of a median; CELLS unless asked for

Data = Mapping[str, np.ndarray]
Found = Mapping[str, Any]


def rows(quick: bool) -> Iterator[Row]:
    """Measure one release of a count and a median of each group: all at one epsilon, with the same bounds."""
    data, runs = _table(QUICK_UNITS if quick else UNITS), QUICK_RUNS if quick else RUNS
    found: dict[str, Found | str] = {
        "ours": _ours(data, runs, CELLS),
        f"ours with {FINEST} cells": _ours(data, runs, FINEST),
    }
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "grouped.npz"
        np.savez(saved, **data)
        found |= ask_peers("grouped", {"data": str(saved), "runs": runs} | _setting())
    subject = f"{GROUPS} groups of {len(data['x']):.0e} rows, epsilon {EPSILON:g}"
    yield from absent_peers(subject)
    for peer, given in found.items():
        if isinstance(given, str):
            yield Row(subject=subject, name=f"counts and medians, {peer}", value=None, note=given)
            continue
        counts = _off(given["counts"], np.bincount(data["group"], minlength=GROUPS))
        yield Row(subject=subject, name=f"counts off by, rows, {peer}", value=counts)
        medians = _off(given["medians"], _medians(data))
        yield Row(subject=subject, name=f"medians off by, {peer}", value=medians)
        yield Row(
            subject=subject, name=f"CPU time, ms, {peer}", value=1e3 * float(np.median(given["seconds"]))
        )


def _setting() -> dict[str, object]:
    return {
        "groups": GROUPS,
        "groups_per_unit": GROUPS_PER_UNIT,
        "bounds": BOUNDS,
        "epsilon": EPSILON,
        "candidates": CELLS + 1,  # the edges of our cells
    }


def _table(units: int) -> Data:
    """Return skewed values, rounded to cents, in groups of very different sizes; a unit is in two of them."""
    draw = np.random.default_rng(0)
    weights = 1 / np.arange(1, GROUPS + 1)
    chance = np.log(weights) + draw.gumbel(size=(units, GROUPS))  # the largest are draws without replacement
    groups = np.argsort(-chance, axis=1)[:, :GROUPS_PER_UNIT].reshape(-1)
    who = np.repeat(np.arange(units), GROUPS_PER_UNIT)
    return {"who": who, "group": groups, "x": np.round(draw.lognormal(3.0, 1.0, len(who)), 2)}


def _medians(data: Data) -> np.ndarray:
    clipped = np.clip(data["x"], *BOUNDS)
    return np.array([np.median(clipped[data["group"] == group]) for group in range(GROUPS)])


def _off(found: Any, truth: np.ndarray) -> float:
    return float(np.abs(np.array(found) - truth).mean())


def _ours(data: Data, runs: int, cells: int) -> Found:
    table = private_table(pa.table(dict(data)), privacy_unit="who", contribution_bound=GROUPS_PER_UNIT)
    grouped = q.group_by(
        table, "group", keys=list(range(GROUPS)), rows_per_group=1, groups_per_unit=GROUPS_PER_UNIT
    )

    def asked(generator: FastGenerator | None) -> dict[str, list[float | None]]:
        statistics: dict[str, Any] = {
            "counts": q.count(),
            "medians": q.median("x", bounds=BOUNDS, resolution=cells),
        }
        return grouped.agg(**statistics, epsilon=EPSILON).release(generator=generator).values

    found: dict[str, list[Any]] = {"counts": [], "medians": [], "seconds": []}
    for seed in range(runs):
        start = time.process_time()
        asked(None)
        found["seconds"].append(time.process_time() - start)
        for name, values in asked(FastGenerator(seed)).items():
            found[name].append(values)
    return found
