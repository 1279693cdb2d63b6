# SPDX-License-Identifier: Apache-2.0
"""The program of benchmarks/statistics.py: its options, and its parts one after the other."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from models.results import Row, command_line, report
from releases import bounding, coverage, errors, extremes, grouped, speed, workloads

PARTS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "speed": speed.against_duckdb,
    "workload": workloads.rows,
    "peers": speed.against_peers,
    "grouped": grouped.rows,
    "growth": speed.growth,
    "large": speed.large,
    "errors": errors.rows,
    "coverage": coverage.rows,
    "bounding": bounding.rows,
    "poison": extremes.rows,
}


def rows(parts: list[str], *, quick: bool) -> Iterator[Row]:
    """Measure the parts."""
    for part in parts:
        yield from PARTS[part](quick)


def main(description: str) -> int:
    """Measure, print, and fail where a bar is not met."""
    parser = command_line(description, quick="smaller tables, fewer runs")
    parser.add_argument("--only", choices=list(PARTS), help="one part")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts = [arguments.only] if arguments.only else list(PARTS)
    found = partial(rows, parts, quick=arguments.quick)
    return report("Private statistics", found(), as_json=arguments.json, digits=3)
