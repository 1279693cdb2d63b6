# SPDX-License-Identifier: Apache-2.0
"""Run experiments: measure what is missing, in this process or in several, and keep each result at once.

A case that fails does not stop the others: its error is in the outcome. Data that is not there fails all
cases of an experiment in the same way, so that is said once. An interrupted or killed run is continued by
running the same command again.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sfumato import _json
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.experiments import catalog, results
from sfumato.experiments.catalog import Listed
from sfumato.experiments.conclusions import NOT_ALL, conclude, told
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table
from sfumato.experiments.results import Kept

__all__ = ["Outcome", "Watcher", "reproduce"]


@dataclass(kw_only=True)
class Outcome:
    """What became of an experiment.

    Attributes:
        experiment: The experiment.
        scale: How much was run.
        cases: All its cases.
        kept: Its measurements.
        errors: Why cases could not be measured, or why tables, figures or the finding could not be made from
            them; each reason once.
        file: The path of the file that defines the experiment.
        finding: What was found; nothing before all cases are measured at full scale.
        tables: The tables; none before all cases are measured.
    """

    experiment: Experiment
    scale: Scale
    cases: Sequence[Case]
    kept: Kept
    errors: list[str] = field(default_factory=list[str])
    file: str | None = None
    finding: Finding = NOT_ALL
    tables: Sequence[Table] = ()

    @property
    def complete(self) -> bool:
        """Whether all cases were measured."""
        return all(self.kept.has(case) for case in self.cases)

    @property
    def rows(self) -> list[Row]:
        """The cases that were measured, each with its measurement."""
        return self.kept.rows(self.cases)


Watcher = Callable[[Outcome, int], None]  # is told how many cases of an experiment are measured by now


def _unwatched(outcome: Outcome, measured: int) -> None:
    pass


def reproduce(
    names: Iterable[str],
    *,
    scale: Scale,
    folder: Path,
    processes: int = 1,
    watcher: Watcher = _unwatched,
) -> list[Outcome]:
    """Measure what is missing of some experiments.

    Args:
        names: Names of experiments or reports, "all", or Python files.
        scale: How much is run, and where.
        folder: Where results are kept; those that are there and were measured by the same code are used.
        processes: How many processes measure. 1: this one.
        watcher: Is told of each measurement.

    Returns:
        What became of each experiment, in order.

    Raises:
        InvalidParameterError: If a name is unknown, a file defines no experiment or one that is named like
            another, or the cases of one cannot be listed. Nothing was measured.
        ResultsNotKeptError: If a result cannot be written.
    """
    chosen = _chosen(names)
    planned = {name: _cases(listed, scale) for name, listed in chosen.items()}
    outcomes: dict[str, Outcome] = {}
    for name, listed in chosen.items():
        kept = results.load(folder / scale.name, listed, scale)
        outcomes[name] = Outcome(
            experiment=listed.experiment, scale=scale, cases=planned[name], kept=kept, file=listed.file
        )
    tasks = [
        _Task(listed.place, name, case)
        for name, listed in chosen.items()
        for case in outcomes[name].cases
        if not outcomes[name].kept.has(case)
    ]
    for task, measured in _measured(tasks, scale, processes):
        outcome = outcomes[task.name]
        if isinstance(measured, str):
            outcome.errors += [] if measured in outcome.errors else [measured]
        else:
            outcome.kept.add(task.case, *measured)
        watcher(outcome, sum(outcome.kept.has(case) for case in outcome.cases))
    for outcome in outcomes.values():
        if outcome.complete:
            made = conclude(outcome.experiment, scale, outcome.rows, file=outcome.file)
            outcome.finding, outcome.tables = made.finding, made.tables
            outcome.errors += made.errors
    return list(outcomes.values())


def _chosen(names: Iterable[str]) -> dict[str, Listed]:
    chosen: dict[str, Listed] = {}
    for listed in (one for name in names for one in catalog.find(name)):
        other = chosen.setdefault(listed.experiment.name, listed)
        if other.place != listed.place:
            raise InvalidParameterError(
                f"two files define an experiment {listed.experiment.name!r}: {Path(other.place).name} and "
                f"{Path(listed.place).name}. Give one of them another name."
            )
    return chosen


def _cases(listed: Listed, scale: Scale) -> list[Case]:
    name = listed.experiment.name
    try:
        cases = list(listed.experiment.cases(scale))
        _json.dumps(list(map(dict, cases)))
    except Exception as error:  # of whatever an experiment calls
        raise InvalidParameterError(f"the cases of {name} failed: {told(error, listed.file)}.") from error
    if not cases:
        raise InvalidParameterError(f"{name} has no cases.")
    return cases


@dataclass(frozen=True)
class _Task:
    place: str
    name: str
    case: Case


Measured = tuple[Mapping[str, Any], float] | str  # a measurement with its seconds, or why there is none


def _measured(tasks: list[_Task], scale: Scale, processes: int) -> Iterator[tuple[_Task, Measured]]:
    if processes == 1:
        for task in tasks:
            yield task, _measure(task, scale)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        running: dict[Future[Measured], _Task] = {pool.submit(_measure, task, scale): task for task in tasks}
        try:
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _one_thread() -> None:
    """Let each process compute with one thread, so that they do not take the cores from each other."""
    import torch

    torch.set_num_threads(1)


def _measure(task: _Task, scale: Scale) -> Measured:
    """Measure a case; every error becomes a sentence, because the other cases go on."""
    begun = time.perf_counter()
    try:
        found = _json.plain(dict(_experiment(task).measure(task.case, scale)))
    except SfumatoError as error:
        return str(error)
    except Exception as error:  # of whatever an experiment calls: it is told, and others go on
        return f"{type(error).__name__}: {error}"
    return found, time.perf_counter() - begun


def _experiment(task: _Task) -> Experiment:
    if task.place.endswith(".py"):
        return catalog.of_file(Path(task.place)).experiment
    return catalog.experiments()[task.name].experiment
