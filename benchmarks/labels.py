# SPDX-License-Identifier: Apache-2.0
"""What does label privacy cost? Accuracy of every method, what denoising does, and the price of a projection.

    python benchmarks/labels.py                    three seeds each; hours on two cores, minutes on a GPU
    python benchmarks/labels.py --device cuda --workers 12
    python benchmarks/labels.py --only steps       some parts: altconv, fresh, best, order, denoising, steps
    python benchmarks/labels.py --quick            digits in place of MNIST, one seed, no bars; under a minute
    python benchmarks/labels.py --json             rows for a program: what, value, bar, met

Claim     Replace-label neighbors, one label as the unit, delta n^-1.1 (0 where labels are released), noise
          secure. A seed sets first weights and clusters, and nothing else.
AltConv   MNIST and Fashion-MNIST at epsilon 0.1, 0.5 and 1: the last layer of a network that tells clusters
          of the public images apart.
Fresh     AltConv and DP-SGD with the network of the paper, from random weights, as the paper does. What it
          calls epsilon 0.1 and 0.2 is the price of an added row; a replaced label costs about twice that,
          so the bars at 0.2 are its figures at 0.1.
Best      The method that `labels.choose` names.
Order     AltConv, DP-SGD, SelfConv and SelfSpan on MNIST, the same network and first weights; `--figure`
          draws it. Bar at epsilon 0.1: the accuracy of the one before. Notes say how far projections can be
          from the nearest points.
Denoising Cosine and distance of the noisy and of the denoised gradient to the mean of the clipped ones, by
          epsilon, with the network of the paper.
Steps     Time of a step with AltConv over that of the same step of DP-SGD, in turns, with the network of the
          recipe from random weights, and with R1's. Bar: 3 on a CPU, 5 on a GPU (`--device cuda`). And the
          relative gap that projections reach. Bar: 1e-3.
Settings  Those of `sfumato.labels.recipes`, fixed beforehand on rows held out of the training rows by
          benchmarks/label_settings.py.
Data      As in benchmarks/accuracy.py: SFUMATO_DATA names a folder.
"""

import argparse
import copy
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import torch
from models.results import Row, command_line, left_out, report
from torch import Tensor, nn

from sfumato.datasets import DataNotFoundError, Dataset, load
from sfumato.experiments.r1.reported import (
    CLIP_NORM,
    LEARNING_RATE,
    SAMPLING_RATE,
    pixels,
    reported_network,
)
from sfumato.labels import AltConv, LabelGradients, NoisyGradients, train
from sfumato.labels.choose import choose
from sfumato.labels.methods.denoisers import AltConvDenoiser
from sfumato.labels.recipes import LabelRecipe, Start, clustered, first_model, points_of, recipe
from sfumato.mechanisms.random import resolve
from sfumato.report.curves import Series, line_chart
from sfumato.training import Runtime, Trainer, cross_entropy
from sfumato.training.loop import TrainingLoop

SEEDS = (11, 12, 13)
EPSILONS = (0.1, 0.5, 1.0)
BARS = {"mnist": (91.1, 94.1, 94.3), "fashion-mnist": (75.7, 79.8, 81.7)}
FRESH = {  # bars of AltConv from random weights
    "mnist": {0.1: 87.0, 0.2: 91.0, 0.4: None, 1.0: None},
    "fashion-mnist": {0.2: 75.7, 0.4: None},
}
SETS = list(BARS)
FIGURES: list[Path] = []
BEST = {("mnist", 0.1): 95.0, ("mnist", 1.0): 97.0, ("fashion-mnist", 0.1): 79.0}
STEP_BARS, GAP_BAR = {"cpu": 3.0, "cuda": 5.0}, 1e-3
R1_NOISE = (7.0, 0.07)
QUICK_STEPS, WARM_UP = 10, 2
GRADIENTS = ("altconv", "dp-sgd", "selfconv", "selfspan")
FOLDERS: list[str] = []  # where clusters and first weights are kept


def delta_of(data: Dataset) -> float:
    """Return the paper's delta."""
    return data.public_size**-1.1


@cache
def loaded(name: str) -> Dataset:
    """Return a set by name, once for each process."""
    return load(name)


@dataclass(frozen=True, kw_only=True)
class Training:
    """One run, judged on test rows."""

    data: str
    method: str
    epsilon: float
    seed: int
    start: Start = Start.PUBLIC_FEATURES
    device: str = "cpu"
    quick: bool = False
    folder: str = ""

    @property
    def warm(self) -> bool:
        """Whether it starts from weights that were learned from public features."""
        return self.method in GRADIENTS and self.start is Start.PUBLIC_FEATURES


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run reached."""

    accuracy: float  # in percent
    seconds: float  # those for the first weights left out
    farthest: float | None  # the most that a projection is away from the nearest point, in percent


def measured(training: Training) -> Measured:
    """Train, and measure on test rows."""
    if training.device != "cpu":
        torch.set_num_threads(1)  # several at a time
    data, device = loaded(training.data), training.device
    made = recipe(
        data,
        training.method,
        epsilon=training.epsilon,
        delta=delta_of(data),
        seed=training.seed,
        model=copy.deepcopy(first_weights(data.name, training.seed, training.folder))
        if training.warm
        else None,
        start=training.start,
    )
    asked = made.method
    if training.quick and isinstance(asked, NoisyGradients):
        small = {"alternative_batch_size": 32} if isinstance(asked, AltConv) else {}
        asked = replace(asked, steps=QUICK_STEPS, **small)
    began = time.monotonic()
    run = train(
        made.model.to(device),
        made.features.to(device),
        data.train.labels,
        method=asked,
        learner=made.learner,
        evaluation=(made.test_features.to(device), data.test.labels.to(device)),
        progress=False,
        runtime=Runtime(device=torch.device(device)) if isinstance(asked, NoisyGradients) else None,
    )
    seconds = time.monotonic() - began
    assert run.accuracy is not None
    said = re.search(r"known to be within ([0-9.e+-]+)%", run.statement())
    return Measured(
        accuracy=100 * run.accuracy, seconds=seconds, farthest=None if said is None else float(said[1])
    )


@cache
def groups(name: str, folder: str) -> Tensor:
    """Return clusters of a set's public features, once for all seeds."""
    place, data = Path(folder) / f"groups-{name}.pt", loaded(name)
    if not place.exists():
        torch.save(clustered(points_of(data.train.features), clusters=3 * data.num_classes)[0], place)
    return torch.load(place)


@cache
def first_weights(name: str, seed: int, folder: str) -> nn.Module:
    """Return the first weights of methods by noisy gradients: the same for all of them."""
    place, found = Path(folder) / f"first-{name}-{seed}.pt", groups(name, folder)
    if not place.exists():
        torch.save(first_model(loaded(name), seed=seed, groups=found), place)
    return torch.load(place, weights_only=False)


class Runs:
    """Trainings, all of them begun beforehand where there are several workers."""

    def __init__(self, workers: int) -> None:
        self._pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn")) if workers > 1 else None
        self._found: dict[Training, Callable[[], Measured]] = {}

    def begin(self, trainings: list[Training]) -> None:
        """Begin trainings, after what several of them start from."""
        if self._pool is None:
            return
        warm = dict.fromkeys((training.data, training.seed) for training in trainings if training.warm)
        folder, names = FOLDERS[0], dict.fromkeys(name for name, _ in warm)
        for started in [self._pool.submit(groups, name, folder) for name in names]:
            started.result()
        for started in [self._pool.submit(first_weights, *each, folder) for each in warm]:
            started.result()
        for training in dict.fromkeys(trainings):
            self._found[training] = self._pool.submit(measured, training).result

    def of(self, training: Training) -> Measured:
        """Return what a training reached."""
        if training not in self._found:
            found = measured(training)
            self._found[training] = lambda: found
        return self._found[training]()


RUNS = Runs(1)


def seeds_of(
    method: str, data: str, epsilon: float, *, quick: bool, device: str, start: Start = Start.PUBLIC_FEATURES
) -> list[Training]:
    """Return a training for each seed."""
    return [
        Training(
            data=data,
            method=method,
            epsilon=epsilon,
            seed=seed,
            start=start,
            device=device,
            quick=quick,
            folder=FOLDERS[0],
        )
        for seed in (SEEDS[:1] if quick else SEEDS)
    ]


def _mean(trainings: list[Training], *, subject: str, bar: float | None = None) -> Row:
    one, found = trainings[0], [RUNS.of(training) for training in trainings]
    each = ", ".join(f"{run.accuracy:.2f}" for run in found)
    farthest = [run.farthest for run in found if run.farthest is not None]
    away = f"; projections within {max(farthest):.3g}%" if farthest else ""
    return Row(
        subject=subject,
        name=f"{one.data}, epsilon {one.epsilon:g}, {one.method}",
        value=statistics.mean(run.accuracy for run in found),
        bar=None if one.quick else bar,
        at_least=True,
        note=f"{each}; {statistics.mean(run.seconds for run in found):.0f} s{away}",
    )


def altconv(quick: bool, device: str) -> Iterator[Row]:
    """Measure AltConv on every set at every epsilon."""
    for data in _sets(quick):
        for epsilon, bar in zip(EPSILONS, BARS.get(data.name, (None,) * 3), strict=True):
            trainings = seeds_of("altconv", data.name, epsilon, quick=quick, device=device)
            yield _mean(trainings, subject="AltConv, test accuracy, %", bar=bar)


def fresh(quick: bool, device: str) -> Iterator[Row]:
    """Measure AltConv and DP-SGD from random weights."""
    for data in _sets(quick):
        for epsilon, bar in FRESH.get(data.name, {1.0: None}).items():
            for method in ("altconv", "dp-sgd"):
                trainings = seeds_of(
                    method, data.name, epsilon, quick=quick, device=device, start=Start.RANDOM
                )
                own = bar if method == "altconv" else None
                yield _mean(trainings, subject="from random weights, test accuracy, %", bar=own)


def best(quick: bool, device: str) -> Iterator[Row]:
    """Measure the method that is recommended."""
    for data in _sets(quick):
        for epsilon in (0.1, 1.0):
            named = choose(epsilon, data.num_classes, data.public_size).method
            trainings = seeds_of(named, data.name, epsilon, quick=quick, device=device)
            bar = BEST.get((data.name, epsilon))
            yield _mean(trainings, subject="recommended method, test accuracy, %", bar=bar)


def order(quick: bool, device: str) -> Iterator[Row]:
    """Measure the paper's four; at the smallest epsilon, each must be below the one before it."""
    data = next(iter(_sets(quick)))
    lines: dict[str, list[tuple[float, float]]] = {method: [] for method in GRADIENTS}
    for epsilon in EPSILONS[-1:] if quick else EPSILONS:
        above: float | None = None
        for method in GRADIENTS:
            trainings = seeds_of(method, data.name, epsilon, quick=quick, device=device)
            row = _mean(trainings, subject=f"order at epsilon {epsilon:g}, test accuracy, %")
            yield replace(row, bar=above, at_least=False)
            assert row.value is not None
            above = row.value if epsilon == EPSILONS[0] else None
            lines[method].append((epsilon, row.value))
    for path in FIGURES:
        path.write_text(figure(data.name, lines))


def planned(names: list[str], quick: bool, device: str) -> list[Training]:
    """Return the trainings of some parts, found by asking for their rows without running any."""
    wanted: list[Training] = []

    class Noting(Runs):
        def of(self, training: Training) -> Measured:
            wanted.append(training)
            return Measured(accuracy=0.0, seconds=0.0, farthest=None)

    global RUNS
    before, RUNS = RUNS, Noting(1)
    figures, FIGURES[:] = FIGURES.copy(), []
    for name in names:
        if name in ("altconv", "fresh", "best", "order"):
            list(PARTS[name](quick, device))
    RUNS, FIGURES[:] = before, figures
    return wanted


def figure(name: str, lines: Mapping[str, list[tuple[float, float]]]) -> str:
    """Draw accuracy by epsilon, a line for each method."""
    return line_chart(
        [Series(name=method, points=points) for method, points in lines.items()],
        title=f"Label privacy on {name}",
        x_label="epsilon, for one label",
        y_label="test accuracy, %",
        x_bounds=(0.0, EPSILONS[-1]),
    )


def denoising(quick: bool, device: str) -> Iterator[Row]:
    """Compare noisy and denoised gradients with the noiseless one, along a run without noise."""
    data = next(iter(_sets(quick)))
    for epsilon in EPSILONS:
        noisy, better = _errors(data, epsilon, device)
        subject = f"gradients of {data.name}, epsilon {epsilon:g}"
        for name, found in (("noisy", noisy), ("denoised", better)):
            yield Row(subject=subject, name=f"{name}, cosine to the noiseless one", value=found[0])
        yield Row(
            subject=subject,
            name="denoised over noisy, distance to the noiseless one",
            value=better[1] / noisy[1],
            bar=None if quick else 1.0,
        )


def _errors(data: Dataset, epsilon: float, device: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return mean cosine and distance of noisy and of denoised gradients, over some steps."""
    made = _altconv(data, epsilon)
    method = made.method
    assert isinstance(method, AltConv)
    model, x, y = made.model.to(device), made.features.to(device), data.train.labels.to(device)
    stddev = method.mechanism().noise_multiplier(0) * method.clip_norm / method.expected_batch_size
    denoiser = replace(method, averaging=0.0).denoiser(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draws, found = torch.Generator().manual_seed(0), []
    for step in range(20):
        rows = torch.randint(len(x), (method.expected_batch_size,), generator=draws).to(device)
        if step % 5 == 4:
            clean = _clipped_mean(model, x[rows], y[rows], method)
            noise = {name: torch.randn(g.shape, generator=draws).to(g) * stddev for name, g in clean.items()}
            noisy = {name: clean[name] + noise[name] for name in clean}
            better = denoiser.denoise(model, noisy, rows=None, generator=resolve(None))
            found.append((_compared(clean, noisy), _compared(clean, better)))
        optimizer.zero_grad()
        cross_entropy(model, x[rows], y[rows]).mean().backward()
        optimizer.step()
    parts = torch.tensor(found).mean(0)
    return tuple(parts[0].tolist()), tuple(parts[1].tolist())


def _clipped_mean(model: nn.Module, x: Tensor, y: Tensor, method: NoisyGradients) -> Mapping[str, Tensor]:
    """Return what a step would release without noise."""
    products = LabelGradients(model, x, classes=method.classes, clip_norm=method.clip_norm)
    return products.combine(torch.nn.functional.one_hot(y, method.classes) / len(y))


def _altconv(data: Dataset, epsilon: float) -> LabelRecipe:
    return recipe(data, "altconv", epsilon=epsilon, delta=delta_of(data), seed=SEEDS[0], start=Start.RANDOM)


def _flat(gradient: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in gradient.values()])


def _compared(clean: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[float, float]:
    a, b = _flat(clean), _flat(other)
    return float(torch.cosine_similarity(a, b, dim=0)), float((a - b).norm())


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """A network whose steps are timed with AltConv and without."""

    name: str
    model: nn.Module
    features: Tensor
    labels: Tensor
    method: AltConv


def compared(data: Dataset, quick: bool) -> Iterator[Compared]:
    """Return what is timed: the recipe from random weights by epsilon, and R1's network by noise."""
    for epsilon in EPSILONS:
        made = _altconv(data, epsilon)
        assert isinstance(made.method, AltConv)
        yield Compared(
            name=f"epsilon {epsilon:g}",
            model=made.model,
            features=made.features,
            labels=data.train.labels,
            method=made.method,
        )
    features = pixels(data, data.train.features)
    for noise in R1_NOISE:
        yield Compared(
            name=f"R1's network, noise {noise:g}",
            model=reported_network(data.train.features.shape[1:], data.num_classes, seed=SEEDS[0]),
            features=features,
            labels=data.train.labels,
            method=AltConv(
                epsilon=1e9,  # the noise is given
                delta=delta_of(data),
                classes=data.num_classes,
                public_size=data.public_size,
                steps=100,
                expected_batch_size=round(SAMPLING_RATE * data.public_size),
                noise_multiplier=noise,
                clip_norm=CLIP_NORM,
                learning_rate=LEARNING_RATE,
                ema_decay=None,
                smoothing=1.0,
                alternative_batch_size=32 if quick else 128,
            ),
        )


def steps(quick: bool, device: str) -> Iterator[Row]:
    """Time steps with and without AltConv, in turns."""
    for one in compared(next(iter(_sets(quick))), quick):
        denoiser = one.method.denoiser(one.features.to(device))
        plain, ours = _seconds(one, denoiser, 4 if quick else 20, device)
        gaps = [entry.gap for entry in denoiser.log if entry.gap is not None]
        yield Row(
            subject="a step of AltConv over one of DP-SGD",
            name=f"{one.name}, alternative batch of {one.method.alternative_batch_size}",
            value=ours / plain,
            bar=None if quick else STEP_BARS[torch.device(device).type],
            note=f"{1e3 * ours:.1f} ms, {1e3 * plain:.1f} ms",
        )
        yield Row(
            subject="relative gap of projections",
            name=f"{one.name}, the largest",
            value=max(gaps),
            bar=None if quick else GAP_BAR,
        )


def _seconds(one: Compared, denoiser: AltConvDenoiser, count: int, device: str) -> tuple[float, float]:
    """Return the median times of a step of DP-SGD and of one of AltConv, the first ones left out."""
    loops = [_loop(one, used, count, device) for used in (None, denoiser)]
    times: list[list[float]] = [[], []]
    for _ in range(count):
        for loop, found in zip(loops, times, strict=True):
            began = time.perf_counter()
            loop.take_step()
            if device != "cpu":
                torch.cuda.synchronize()
            found.append(time.perf_counter() - began)
    plain, ours = (statistics.median(found[WARM_UP:]) for found in times)
    return plain, ours


def _loop(one: Compared, denoiser: AltConvDenoiser | None, count: int, device: str) -> TrainingLoop:
    return Trainer(
        copy.deepcopy(one.model).to(device),  # each from the same weights
        (one.features.to(device), one.labels.to(device)),
        mechanism=one.method.mechanism().first(count),
        public_size=one.method.public_size,
        optimizer=one.method.optimizer,
        denoiser=denoiser,
        delta=one.method.delta,
        progress=False,
        runtime=Runtime(device=torch.device(device)),
    )._loop()


def _sets(quick: bool) -> Iterator[Dataset]:
    return map(loaded, ["digits"] if quick else SETS)


def absent_sets() -> Iterator[Row]:
    """Leave out each set whose data is not here, and yield a row that says so."""
    for name in list(SETS):
        try:
            loaded(name)
        except DataNotFoundError as error:
            SETS.remove(name)
            yield left_out(name, str(error))


PARTS: dict[str, Callable[[bool, str], Iterator[Row]]] = {
    "altconv": altconv,
    "fresh": fresh,
    "best": best,
    "order": order,
    "denoising": denoising,
    "steps": steps,
}


def main() -> int:
    """Run what was asked for."""
    parser = command_line(__doc__, quick="digits, one seed, no bars")
    parser.add_argument("--only", choices=list(PARTS), nargs="+", help="some parts")
    parser.add_argument("--data", choices=list(BARS), help="one data set")
    parser.add_argument("--figure", type=Path, help="where to draw the order of methods, as SVG")
    parser.add_argument("--device", default="cpu", help="where to compute")
    parser.add_argument("--workers", type=int, default=1, help="trainings at a time")
    parser.add_argument("--folder", help="where first weights are kept, for another call; else they are not")
    arguments = parser.parse_args()
    if arguments.data:
        SETS[:] = [arguments.data]
    if arguments.figure:
        FIGURES[:] = [arguments.figure]
    names = arguments.only or list(PARTS)
    with tempfile.TemporaryDirectory() as folder:
        FOLDERS[:] = [arguments.folder or folder]
        return measure(names, arguments)


def measure(names: list[str], arguments: argparse.Namespace) -> int:
    """Run some parts, and report what they found."""
    global RUNS
    RUNS = Runs(arguments.workers)
    absent = [] if arguments.quick else list(absent_sets())
    names = names if SETS else []
    if arguments.workers > 1:
        RUNS.begin(planned(names, arguments.quick, arguments.device))
    found = (row for name in names for row in PARTS[name](arguments.quick, arguments.device))
    return report("Label privacy", chain(absent, found), as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
