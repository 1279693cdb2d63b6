# SPDX-License-Identifier: Apache-2.0
"""How accurate is a private model? MNIST, Fashion-MNIST and a probe of CIFAR-10, each to a stated budget.

    python benchmarks/accuracy.py                    three seeds each; hours on a CPU, minutes on a GPU
    python benchmarks/accuracy.py --device cuda
    python benchmarks/accuracy.py --only mnist       or fashion-mnist, or cifar10
    python benchmarks/accuracy.py --quick            a few steps on a few rows, without bars; under a minute
    python benchmarks/accuracy.py --json             rows for a program: what, value, bar, met

Claim     Poisson sampling, the noise found by our loss-distribution accountant, add-remove neighbors, one
          example as the unit, secure noise. A seed sets initial weights and nothing else.
Settings  Fixed before these seeds were run: for the two MNIST sets on other seeds, for CIFAR-10 on 10,000 of
          its training images alone, with the noise of all. That search was not charged to the budget.
          Reported is the average of the weights over steps (EMA), after the last step, on all test images.
Data      SFUMATO_DATA names a folder of data sets, else the cache, else they are downloaded. What cannot be
          found is left out. The features of CIFAR-10 take some ten minutes of two cores, once.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from models.networks import cnn
from models.results import Row, command_line, left_out, report
from torch import Tensor, nn

from sfumato.datasets import DataNotFoundError, Examples, efficientnet_lite0, features, load
from sfumato.training import Runtime, TrainingRun, train

DELTA = 1e-5
SEEDS = (11, 12, 13)
RESOLUTION = 160  # pixels a side, to which CIFAR-10's 32 are enlarged for the network
QUICK_ROWS, QUICK_STEPS = 128, 8

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Split:
    """Rows to train on, which are protected, and rows to test on, which are not."""

    train: Rows
    test: Rows

    @property
    def public_size(self) -> int:
        """How many rows to train on; published with these sets."""
        return len(self.train[1])


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set, a budget, a bar, and the settings that were fixed beforehand."""

    name: str
    epsilon: float
    bar: float  # percent
    load: Callable[[int | None, str], Split]  # all rows or the first so many, computed on a device
    make: Callable[[], nn.Module]
    expected_batch_size: int
    epochs: float
    clip_norm: float
    learning_rate: float
    ema_decay: float


# --- data ------------------------------------------------------------------------------------------------


def images(name: str) -> Callable[[int | None, str], Split]:
    """Return a loader of normalized images."""

    def split(rows: int | None, device: str) -> Split:
        data = load(name)
        return Split(first(data.train, rows), first(data.test, rows))

    return split


def first(examples: Examples, rows: int | None) -> Rows:
    """Return the first rows, or all."""
    return examples.features[:rows], examples.labels[:rows]


def cifar10_features(rows: int | None, device: str) -> Split:
    """Return features of a frozen network, each row centered and scaled to norm 1 by itself."""
    data, network = load("cifar10"), efficientnet_lite0().to(device)
    assert data.normalization is not None  # images have one

    def probe(examples: Examples) -> Rows:
        x, y = first(examples, rows)
        found = features(network, data.normalization.pixels(x), resize=RESOLUTION)
        return centered(found), y

    return Split(probe(data.train), probe(data.test))


def centered(found: Tensor) -> Tensor:
    """Return rows of mean 0 and norm 1. No row touches another, so the unit stays one example."""
    return F.normalize(found - found.mean(1, keepdim=True))


TASKS = [
    Task(
        name="mnist",
        epsilon=2.93,
        bar=98.1,
        load=images("mnist"),
        make=lambda: cnn(width=2),
        expected_batch_size=4096,
        epochs=60,
        clip_norm=0.1,
        learning_rate=40.0,
        ema_decay=0.99,
    ),
    Task(
        name="fashion-mnist",
        epsilon=2.7,
        bar=86.1,
        load=images("fashion-mnist"),
        make=lambda: cnn(width=2),
        expected_batch_size=4096,
        epochs=60,
        clip_norm=0.1,
        learning_rate=40.0,
        ema_decay=0.99,
    ),
    Task(
        name="cifar10",
        epsilon=1.0,
        bar=85.0,
        load=cifar10_features,
        make=lambda: nn.Linear(1280, 10),
        expected_batch_size=25_000,
        epochs=100,
        clip_norm=0.5,
        learning_rate=100.0,
        ema_decay=0.9,
    ),
]

# --- runs ------------------------------------------------------------------------------------------------


def run(task: Task, data: Split, seed: int, *, device: str, steps: int | None = None) -> TrainingRun:
    """Train one model from the weights of a seed; `steps` shortens the run, at the same epsilon."""
    torch.manual_seed(seed)
    return train(
        task.make(),
        data.train,
        public_size=data.public_size,
        expected_batch_size=min(task.expected_batch_size, data.public_size // 2),
        epochs=task.epochs if steps is None else None,
        steps=steps,
        epsilon=task.epsilon,
        delta=DELTA,
        clip_norm=task.clip_norm,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=task.learning_rate),
        ema_decay=task.ema_decay,
        evaluation=data.test,
        evaluate_every=10**9,  # at the end alone
        progress=False,
        runtime=Runtime(device=device),
    )


def measure(task: Task, *, quick: bool, device: str) -> Iterator[Row]:
    """Yield the accuracy of each seed, their mean against the bar, and what a run cost."""
    subject = f"{task.name} at ({task.epsilon:g}, {DELTA:g})"
    try:
        data = task.load(QUICK_ROWS if quick else None, device)
    except DataNotFoundError as error:
        yield left_out(subject, str(error))
        return
    found: list[float] = []
    for seed in SEEDS[: 1 if quick else None]:
        began = time.monotonic()
        done = run(task, data, seed, device=device, steps=QUICK_STEPS if quick else None)
        seconds = time.monotonic() - began
        found.append(100 * (done.accuracy or 0.0))
        yield Row(subject=subject, name=f"seed {seed}, %", value=found[-1], note=f"{seconds:.0f} s")
        if seed == SEEDS[0]:
            yield Row(subject=subject, name="epsilon", value=done.epsilon, bar=task.epsilon)
    if not quick:
        yield Row(subject=subject, name="mean, %", value=statistics.fmean(found), bar=task.bar, at_least=True)


def main() -> int:
    """Train, print, and fail where a bar is not met."""
    parser = command_line(__doc__, quick="a few steps on a few rows, without bars")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=[task.name for task in TASKS])
    arguments = parser.parse_args()
    chosen = [task for task in TASKS if arguments.only in (None, task.name)]
    rows = (row for task in chosen for row in measure(task, quick=arguments.quick, device=arguments.device))
    return report("Accuracy of private models, %", rows, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
