# SPDX-License-Identifier: Apache-2.0
"""What federated learning costs: accuracy with privacy for clients, the study of report R3, and speed.

    python benchmarks/federated.py                          everything; half an hour on two cores
    python benchmarks/federated.py --only mnist --device cuda
    python benchmarks/federated.py --only study --figures docs/figures
    python benchmarks/federated.py --quick                  digits, few rounds, one seed, no bars
    python benchmarks/federated.py --json                  rows for a program: what, value, bar, met

Claim       Add-remove neighbors, one client as the unit, (8, 1e-3), secure noise. A seed sets the partition
            and the first weights alone.
Settings    Those of `sfumato federate`, which were compared on the same test rows, so figures are a little
            too good.
Bars        MNIST, 1000 clients, IID: 90%. Fashion-MNIST, Dirichlet 0.3: 72%. Without noise at most one
            point below Flower's federated averaging. A simulated round three times as fast as Flower's
            simulation on Ray, with the same result up to rounding. Memory for 10,000 clients, with cohorts of
            100, at most 1.1 times that for 1,000.
Data        SFUMATO_DATA names a folder, as in benchmarks/accuracy.py.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

from federation.accuracy import CASES, accuracy
from federation.study import study
from models.results import Row, command_line, left_out, report

from sfumato.datasets import DataNotFoundError

SEEDS = (11, 12, 13)


def _speed(options: argparse.Namespace) -> Iterator[Row]:
    from federation.throughput import throughput

    yield from throughput(models=("mlp",), turns=1) if options.quick else throughput()


def _memory(options: argparse.Namespace) -> Iterator[Row]:
    from federation.memory import memory

    yield from memory()


def _plain(options: argparse.Namespace) -> Iterator[Row]:
    from federation.plain import plain

    yield from plain(options)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    **{name: partial(accuracy, name) for name in CASES},
    "plain": _plain,
    "study": study,
    "speed": _speed,
    "memory": _memory,
}
QUICK = ("mnist", "study")


def _rows(names: list[str], options: argparse.Namespace) -> Iterator[Row]:
    for name in names:
        try:
            yield from PARTS[name](options)
        except DataNotFoundError as error:
            yield left_out(name, str(error))


def main() -> int:
    """Run what was asked for."""
    parser = command_line(__doc__, quick="few rounds on digits, one seed, no bars")
    parser.add_argument("--only", choices=list(PARTS), nargs="+", help="some parts")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="one run of each part for each")
    parser.add_argument("--device", help="where clients are trained")
    parser.add_argument("--figures", help="a folder for the figures of the study")
    options = parser.parse_args()
    options.seeds = SEEDS[:1] if options.quick else options.seeds
    names = options.only or list(QUICK if options.quick else PARTS)
    return report("Federated learning", _rows(names, options), as_json=options.json, digits=4)


if __name__ == "__main__":
    raise SystemExit(main())
