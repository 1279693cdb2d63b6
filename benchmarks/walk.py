# SPDX-License-Identifier: Apache-2.0
"""How often a reader who follows a training run has to change the file.

    python benchmarks/walk.py            the walk of a run of two steps, some seconds
    python benchmarks/walk.py --quick    the same: there is one walk
    python benchmarks/walk.py --files    also the order of files and functions
    python benchmarks/walk.py --json     rows with what, value, bar and met, for a program

A small model is trained for two steps, without an account or a folder. The functions of sfumato are noted in
the order of their first calls, and a change of file between two of them is a switch. Comprehensions belong to
the function around them. The bar is two thirds of what the walk was before training had folders. Exit status
1: the bar is missed.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch
from models.results import Row, command_line, report
from torch import nn

import sfumato as sf
from sfumato.training import Privacy  # training is imported before the walk begins

MOST_SWITCHES = 193
HERE = Path(sf.__file__).parent
INSIDE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<module>")
UNITS = 64


class Function(NamedTuple):
    """A function of sfumato, as a reader finds it."""

    file: str
    name: str


def main() -> int:
    """Walk, print, and say whether the bar is met."""
    parser = command_line(__doc__, quick="the same: there is one walk")
    parser.add_argument("--files", action="store_true", help="also the order of files and functions")
    chosen = parser.parse_args()
    functions = walk()
    if chosen.files:
        print("\n".join(chapters(functions)), file=sys.stderr)
    return report("The walk of sf.train for two steps", rows_of(functions), as_json=chosen.json, digits=0)


def train() -> None:
    """Train for two steps."""
    data = torch.randn(UNITS, 3), torch.zeros(UNITS, dtype=torch.int64)
    privacy = Privacy(
        public_size=UNITS, expected_batch_size=UNITS // 2, noise_multiplier=1.0, delta=1e-5, steps=2
    )
    sf.train(nn.Linear(3, 2), data, privacy=privacy, progress=False)


def walk() -> list[Function]:
    """Return the functions of sfumato that a run calls, in the order of their first calls."""
    found: dict[CodeType, Function] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in found or code.co_name in INSIDE:
            return
        file = Path(code.co_filename)
        if file.is_relative_to(HERE):
            found[code] = Function(file.relative_to(HERE).as_posix(), code.co_qualname)

    sys.setprofile(note)
    try:
        train()
    finally:
        sys.setprofile(None)
    return list(found.values())


def switches(functions: list[Function]) -> int:
    """Return how often the file changes from one function to the next."""
    return sum(one.file != other.file for one, other in itertools.pairwise(functions))


def chapters(functions: list[Function]) -> Iterator[str]:
    """Yield the walk as lines: a file, and the functions that are read in it before the next file."""
    for file, members in itertools.groupby(functions, key=lambda each: each.file):
        yield f"{file}: {', '.join(each.name for each in members)}"


def rows_of(functions: list[Function]) -> Iterator[Row]:
    """Yield the length of the walk, and what it passes."""
    subject = "sf.train, 2 steps"
    yield Row(subject=subject, name="switches of file", value=switches(functions), bar=MOST_SWITCHES)
    yield Row(subject=subject, name="functions", value=len(functions))
    yield Row(subject=subject, name="files", value=len({each.file for each in functions}))


if __name__ == "__main__":
    sys.exit(main())
