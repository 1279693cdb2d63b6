# SPDX-License-Identifier: Apache-2.0
"""Which models of Hugging Face are clipped right, and which of them fast? 28 architectures, small and random.

    python benchmarks/architectures.py                 also the time of a step over the plain one
    python benchmarks/architectures.py --quick         without times; under half a minute
    python benchmarks/architectures.py --only BERT     the architectures whose name holds this
    python benchmarks/architectures.py --reasons       why an architecture is slow or refused, in full
    python benchmarks/architectures.py --json          rows for a program: what, value, bar, met

Error   Of the clipped sum, in millionths of the mass that can cancel in it, against a plain loop over rows
        (`tests/training/engine/hugging_face.py`). The bar is the rounding of float32.
Fast    The reference engine did not have to take over, for want of a rule or of an operation under vmap.
Time    A private step without noise over the plain step, on one thread, CPU time, for a batch of 6 rows: at
        such a size most of it is the calls, so it shows how much is done in Python, and no bar is set.
"""

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from models.results import Row, command_line, report
from models.timing import interleaved

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "training" / "engine"))
import hugging_face

EXACT_BAR, FAST_BAR = 27, 24  # architectures, of 28
SHOWN = 160  # characters of a reason, unless all are asked for


def main() -> int:
    """Measure, print, and fail where a bar is not met."""
    parser = command_line(__doc__, quick="without times")
    parser.add_argument("--reasons", action="store_true", help="show reasons in full")
    parser.add_argument("--only", default="", help="architectures whose name holds this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = measured(arguments.only, quick=arguments.quick, shown=None if arguments.reasons else SHOWN)
    return report("Clipped sums of 28 architectures", rows, as_json=arguments.json)


def measured(only: str, *, quick: bool, shown: int | None) -> Iterator[Row]:
    """Yield the rows of each architecture, then how many are right and fast."""
    found = []
    for name in hugging_face.BUILDERS:
        if only in name:
            one = hugging_face.measure(name)
            found.append(one)
            note = "; ".join((one.engine, *one.notes))[:shown]
            yield _error(one, note)
            if not quick and one.error is not None:
                yield _time(name)
    whole = len(found) == len(hugging_face.BUILDERS)
    for name, count, bar in (
        ("exact", sum(one.exact for one in found), EXACT_BAR),
        ("exact and fast", sum(one.fast for one in found), FAST_BAR),
    ):
        yield Row(subject="all", name=name, value=count, bar=bar if whole else None, at_least=True)


def _error(one: hugging_face.Found, note: str) -> Row:
    if one.error is None:  # refused: it counts among those that are not exact
        return Row(subject=one.name, name="refused", value=None, note=note)
    bar = hugging_face.TOLERANCE * 1e6
    return Row(subject=one.name, name="error, millionths", value=one.error * 1e6, bar=bar, note=note)


def _time(name: str) -> Row:
    with warnings.catch_warnings():  # each was listed when the architecture was measured
        warnings.simplefilter("ignore")
        steps = {"plain": _plain(name), "private": _private(name)}
        seconds = interleaved(steps, rounds=7, turn=0.05, clock=time.process_time)
    private, plain = seconds["private"], seconds["plain"]
    if private.error:
        return Row(subject=name, name="step / plain", value=None, note=private.error)
    ratios = [a / b for a, b in zip(private.rounds, plain.rounds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Row(subject=name, name="step / plain", value=middle, quartiles=(low, high))


def _plain(name: str) -> Callable[[], object]:
    built = hugging_face.build(name)

    def step() -> None:
        built.model.zero_grad()
        built.loss(built.model, *built.batch).mean().backward()

    return step


def _private(name: str) -> Callable[[], object]:
    built = hugging_face.build(name)
    private = hugging_face.private_gradients(built)

    def step() -> None:
        built.model.zero_grad()
        private.backward(*built.batch)

    return step


if __name__ == "__main__":
    sys.exit(main())
