# SPDX-License-Identifier: Apache-2.0
"""Which settings should noisy gradients have under label privacy? The search that fixed `labels.recipes`.

    python benchmarks/label_settings.py --start random --minutes 30     settings for random weights
    python benchmarks/label_settings.py --start public-features         ... for weights from public features
    python benchmarks/label_settings.py --method dp-sgd                 another method than AltConv
    python benchmarks/label_settings.py --device cuda --workers 12      on a GPU, several trainings at a time
    python benchmarks/label_settings.py --quick                         digits, two settings, a few steps
    python benchmarks/label_settings.py --json                          rows for a program

Rows      10,000 rows held out of the training rows decide; no test row is looked at. Epsilon is scaled up by
          the share of rows that is left to train on, so that noise is that of a run on all rows.
Survey    Today's recipe, and settings drawn at random from the lists below, are tried once on MNIST and once
          on Fashion-MNIST, until the share `--survey` of the time is over.
Final     The best of the survey are tried on every case (`CASES`) with fresh first weights, in turns, until
          the time is over. The mean over cases decides, among those that were tried equally often.
Log       With `--log FILE`, what the file says of an earlier search is not tried again.
Claim     None: these labels are public, and a search on labels that must be protected costs budget.
Data      As in benchmarks/accuracy.py: SFUMATO_DATA names a folder.
"""

import argparse
import copy
import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from models.results import Row, command_line, left_out, report
from torch import nn

from sfumato.datasets import DataNotFoundError, Dataset, Examples, load
from sfumato.errors import InvalidParameterError
from sfumato.labels import NoisyGradients, train
from sfumato.labels.recipes import Start, first_model, recipe
from sfumato.training import Runtime

HELD_OUT = 10_000
CASES = {  # the first two are surveyed
    Start.RANDOM: (("mnist", 0.2), ("fashion-mnist", 0.2), ("mnist", 0.1)),
    Start.PUBLIC_FEATURES: (("mnist", 0.1), ("fashion-mnist", 0.1)),
}
SURVEYED = 2
FINALISTS = 4
Settings = Mapping[str, Any]
RANDOM: dict[str, Sequence[Any]] = {
    "steps": (140, 220, 300),
    "learning_rate": (1.0, 1.5, 2.0),
    "clip_norm": (2.0, 3.0, 4.0),
    "smoothing": (0.75, 0.85, 1.0),
    "averaging": (0.6, 0.7, 0.8),
    "alternative_batch_size": (128, 256),
    "clip_columns": (True,),
    "expected_batch_size": (1024,),
    "ema_decay": (0.9, 0.95),
    "falling_rate": (False, True),
}
PUBLIC: dict[str, Sequence[Any]] = RANDOM | {
    "steps": (30, 60, 90, 140),
    "learning_rate": (0.5, 1.0, 2.0, 4.0),
    "clip_norm": (2.0, 4.0, 6.0),
    "averaging": (0.7, 0.8, 0.9),
}
OWN_BATCHES = {  # SelfConv and SelfSpan pay for each use of a label: few steps, of large batches
    "steps": (7, 14, 28),
    "expected_batch_size": (2048, 4096, 8192),
}
WITHOUT_HULLS = {  # DP-SGD has all of the noise
    "steps": (30, 60, 90, 140),
    "learning_rate": (0.1, 0.2, 0.4, 0.7, 1.0),
}
SMALL = {"steps": 5, "alternative_batch_size": 32, "expected_batch_size": 128}
LISTS = {Start.RANDOM: RANDOM, Start.PUBLIC_FEATURES: PUBLIC}
OTHERS = {"dp-sgd": WITHOUT_HULLS, "selfconv": OWN_BATCHES, "selfspan": OWN_BATCHES}
ONLY_ALTCONV = ("averaging", "alternative_batch_size")
ONLY_HULLS = ("smoothing", "clip_columns")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training, judged on rows that were held out."""

    data: str
    epsilon: float
    start: Start
    method: str
    settings: Settings
    seed: int
    device: str


def split(data: Dataset) -> Dataset:
    """Return a data set whose test rows are held out of the training rows."""
    held = min(HELD_OUT, len(data.train) // 4)
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    kept = data.train[order[held:]], data.train[order[:held]]
    return replace(data, train=Examples(*kept[0]), test=Examples(*kept[1]))


@cache
def split_data(name: str) -> Dataset:
    """Return a set by name, once for each process."""
    return split(load(name))


@cache
def first_weights(name: str, folder: str) -> nn.Module:
    """Return weights that tell clusters of public features apart: made once, and kept in a folder."""
    place = Path(folder) / f"first-{name}.pt"
    if not place.exists():
        torch.save(first_model(split_data(name)), place)
    return torch.load(place, weights_only=False)


def judged(trial: Trial, folder: str) -> float:
    """Return the accuracy on rows that were held out, in percent."""
    torch.set_num_threads(1)
    data = split_data(trial.data)
    share = 1 + len(data.test) / len(data.train)  # a mean over fewer rows has as much more noise
    warm = trial.start is Start.PUBLIC_FEATURES
    made = recipe(
        data,
        trial.method,
        epsilon=trial.epsilon * share,
        delta=(share * data.public_size) ** -1.1,
        seed=trial.seed,
        start=trial.start,
        model=copy.deepcopy(first_weights(trial.data, folder)) if warm else None,
    )
    assert isinstance(made.method, NoisyGradients)
    try:
        run = train(
            made.model.to(trial.device),
            made.features.to(trial.device),
            data.train.labels,
            method=replace(made.method, **trial.settings),
            evaluation=(made.test_features.to(trial.device), data.test.labels.to(trial.device)),
            progress=False,
            runtime=Runtime(device=torch.device(trial.device)),
        )
    except InvalidParameterError:
        return 0.0  # it diverged: a gradient was not finite
    return 100 * (run.accuracy or 0.0)


def drawn(lists: Mapping[str, Sequence[Any]], method: str, seed: int) -> Iterator[Settings]:
    """Draw settings, none of them twice, until all were drawn."""
    dropped = (
        () if method == "altconv" else ONLY_ALTCONV if method == "selfconv" else ONLY_ALTCONV + ONLY_HULLS
    )
    kept = {name: values for name, values in lists.items() if name not in dropped}
    draws = random.Random(seed)
    tried: set[str] = set()
    while len(tried) < math.prod(len(values) for values in kept.values()):
        found = {name: draws.choice(values) for name, values in kept.items()}
        if described(found) not in tried:
            tried.add(described(found))
            yield found


@dataclass(kw_only=True)
class Search:
    """Trials in several processes, until a time is over."""

    pool: ProcessPoolExecutor
    workers: int
    folder: str
    log: Path | None

    def results(self, trials: Iterator[Trial], *, until: float) -> Iterator[tuple[Trial, float]]:
        """Yield what trials found, as they end; none is begun after `until`."""
        waiting: dict[Future[float], Trial] = {}
        earlier = self._earlier()
        while True:
            while len(waiting) < self.workers and time.monotonic() < until:
                trial = next(trials, None)
                if trial is None:
                    break
                found = earlier.get(_key(told_of(trial)))
                if found is not None:
                    yield trial, found
                    continue
                waiting[self.pool.submit(judged, trial, self.folder)] = trial
            if not waiting:
                return
            for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                trial = waiting.pop(done)
                yield trial, self._noted(trial, done.result())

    def _noted(self, trial: Trial, accuracy: float) -> float:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(json.dumps(told_of(trial) | {"accuracy": accuracy}) + "\n")
        return accuracy

    def _earlier(self) -> dict[str, float]:
        """Return what an earlier search found, by trial."""
        if self.log is None or not self.log.exists():
            return {}
        told = [json.loads(line) for line in self.log.read_text().splitlines()]
        return {_key(entry): entry.pop("accuracy") for entry in told}


def told_of(trial: Trial) -> dict[str, Any]:
    """Return what tells a trial from others."""
    told = {"data": trial.data, "epsilon": trial.epsilon, "start": trial.start.value}
    return told | {"method": trial.method, "seed": trial.seed, **trial.settings}


def _key(told: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in told.items() if name != "accuracy"}, sort_keys=True)


def described(settings: Settings) -> str:
    """Return settings as text, the same for the same settings."""
    return (
        "the recipe"
        if not settings
        else ", ".join(f"{name} {value}" for name, value in sorted(settings.items()))
    )


def search(arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> Iterator[Row]:
    """Survey, then try the best on every case."""
    start, began, seconds = Start(arguments.start), time.monotonic(), 60 * arguments.minutes
    cases = (("digits", 5.0),) if arguments.quick else CASES[start]
    log = None if arguments.log is None else Path(arguments.log)
    runs = Search(pool=pool, workers=arguments.workers, folder=arguments.folder, log=log)
    common = {"start": start, "method": arguments.method, "device": arguments.device}
    lists = LISTS[start] | OTHERS.get(arguments.method, {})
    found = chain([{}], drawn(lists, arguments.method, arguments.draws))
    if arguments.quick:
        found = (dict(settings, **SMALL) for settings in islice(found, 2))
    surveyed: dict[str, list[float]] = {}
    known: dict[str, Settings] = {}
    trials = (
        Trial(data=data, epsilon=epsilon, settings=settings, seed=1, **common)
        for settings in found
        for data, epsilon in cases[:SURVEYED]
    )
    for trial, accuracy in runs.results(trials, until=began + arguments.survey * seconds):
        name = described(trial.settings)
        known[name] = trial.settings
        surveyed.setdefault(name, []).append(accuracy)
        yield Row(subject=f"survey, {trial.data}, epsilon {trial.epsilon:g}", name=name, value=accuracy)
    whole = [name for name, values in surveyed.items() if len(values) == len(cases[:SURVEYED])]
    whole.sort(key=lambda name: -statistics.mean(surveyed[name]))
    best = [known[name] for name in whole[:FINALISTS]]
    yield from final(runs, best, cases, common, until=began + seconds)


def final(
    runs: Search,
    finalists: Sequence[Settings],
    cases: Sequence[tuple[str, float]],
    common: Mapping[str, Any],
    *,
    until: float,
) -> Iterator[Row]:
    """Try the best of the survey on every case, one seed after another."""
    trials = (
        Trial(data=data, epsilon=epsilon, settings=settings, seed=seed, **common)
        for seed in (2, 3, 4)
        for settings in finalists
        for data, epsilon in cases
    )
    found: dict[str, dict[tuple[str, float], list[float]]] = {}
    for trial, accuracy in runs.results(trials, until=until):
        each = found.setdefault(described(trial.settings), {})
        each.setdefault((trial.data, trial.epsilon), []).append(accuracy)
    for name, each in found.items():
        note = "; ".join(
            f"{data} {epsilon:g}: {', '.join(f'{value:.2f}' for value in values)}"
            for (data, epsilon), values in sorted(each.items())
        )
        whole = statistics.mean(statistics.mean(values) for values in each.values())
        value = whole if len(each) == len(cases) else None
        yield Row(subject="final, mean over cases", name=name, value=value, note=note)


def rows_of(arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> Iterator[Row]:
    """Search, or say which data is not here."""
    try:
        yield from search(arguments, pool)
    except DataNotFoundError as error:
        yield left_out("survey", str(error))


def main() -> int:
    """Search as asked."""
    parser = command_line(__doc__, quick="digits, two settings, a few steps")
    parser.add_argument("--start", choices=[start.value for start in Start], default=Start.RANDOM.value)
    parser.add_argument("--method", choices=["altconv", "dp-sgd", "selfconv", "selfspan"], default="altconv")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to search")
    parser.add_argument("--survey", type=float, default=0.4, help="the share of the time for the survey")
    parser.add_argument("--workers", type=int, default=1, help="trainings at a time")
    parser.add_argument("--draws", type=int, default=0, help="the seed of the settings that are drawn")
    parser.add_argument("--device", default="cpu", help="where to compute")
    parser.add_argument("--folder", default=".", help="where first weights are kept")
    parser.add_argument("--log", help="a file to which every trial is added, a line of JSON each")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        return report("Settings for label privacy", rows_of(arguments, pool), as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
