# SPDX-License-Identifier: Apache-2.0
"""How fast and how tight is our accounting? One run against dp_accounting's PLD and prv_accountant.

    python benchmarks/accounting.py [--quick] [--json]

Bars: every row priced in under a second; the golden four with a certified gap of at most 0.01; noise of at
most 246 for (0.01, 1e-5) at sampling rate 0.1 and 100 steps; calibration at least 5 times faster than
dp_accounting's `calibrate_dp_mechanism` with PLD; a hundred different noises in 20 s, a schedule of fifty in
5 s, one RDP order of a new event in 5 ms; `import sfumato` in under a second. Seconds are CPU seconds of this
process, ours the best of three and the peers' of one run, each peer in a process of its own that is ended
after a minute or at 6 GiB.
"""

import argparse
import json
import multiprocessing
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import dp_event as dp
from dp_accounting.pld import PLDAccountant
from rich.console import Console
from rich.table import Table

from sfumato.accounting import Relation, calibrate, events, price, rdp

GRID = 1e-4  # of dp_accounting's PLD
NOT_ASKED = "-"
PATIENCE, MEMORY = 60.0, 6 * 2**30  # of a peer: seconds and bytes
MOST_SECONDS, MOST_GAP, MOST_NOISE, LEAST_SPEEDUP = 1.0, 0.01, 246.0, 5.0
ADD_REMOVE, REPLACE_ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE


@dataclass(frozen=True)
class Run:
    """One composition to price: a sampled Gaussian, or a plain one at rate 1."""

    rate: float
    noise: float
    steps: int
    delta: float = 1e-5
    relation: Relation = ADD_REMOVE
    golden: bool = False

    def event(self, noise: float) -> dp.DpEvent:
        """Return the event with a given noise."""
        return events.dp_sgd(noise_multiplier=noise, sampling_rate=self.rate, steps=self.steps)

    def unchecked(self, noise: float) -> dp.DpEvent:
        """Return the same without our checks: dp_accounting's search begins at noise 0."""
        step: dp.DpEvent = dp.GaussianDpEvent(noise)
        step = step if self.rate == 1 else dp.PoissonSampledDpEvent(self.rate, step)
        return dp.SelfComposedDpEvent(step, self.steps)

    def __str__(self) -> str:
        return f"{self.rate:.4g}, {self.noise:g}, {self.steps}, {self.relation.value}"


GOLDEN = [
    Run(256 / 60000, 1.1, 14063, 1e-5, golden=True),
    Run(4096 / 50000, 3.0, 2500, 1e-5, golden=True),
    Run(1e-3, 0.8, 10_000, 1e-6, golden=True),
    Run(1e-3, 2.0, 1_000_000, 1e-6, golden=True),
]
SAMPLED = [Run(0.01, noise, steps) for noise in (0.6, 1.0, 4.0) for steps in (1000, 10_000, 100_000)]
HONEST = [
    Run(0.01, noise, 1000, relation=relation)
    for noise in (7.0, 1.4, 0.7, 0.14, 0.07)
    for relation in (ADD_REMOVE, REPLACE_ONE)
]
PLAIN = [
    Run(1.0, noise, steps, relation=relation)
    for noise, steps in ((1.0, 600), (5.0, 2200), (10.0, 100), (0.7, 1000))
    for relation in (ADD_REMOVE, REPLACE_ONE)
]
# epsilon to reach, and the composition whose noise is free
BUDGETS = [
    (1.0, Run(0.01, 0.0, 1000)),
    (0.01, Run(0.1, 0.0, 100)),
    (1.0, Run(0.01, 0.0, 10_000)),
    (3.0, Run(1024 / 60000, 0.0, 1758)),
]


@dataclass(frozen=True)
class Row:
    """One measurement against its bar; `at_most` says which side of the bar is good."""

    what: str
    value: float
    bar: float
    at_most: bool = field(default=True)

    @property
    def met(self) -> bool:
        """Whether the bar is reached."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar


# --- the peers, each call in a process of its own --------------------------------------------------------


def peer_pld(run: Run) -> float:
    """Price with dp_accounting's PLD."""
    accountant = PLDAccountant(run.relation.to_dp_accounting(), value_discretization_interval=GRID)
    accountant.compose(run.unchecked(run.noise))
    return float(accountant.get_epsilon(run.delta))


def peer_prv(run: Run) -> float:
    """Price with prv_accountant."""
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    mechanism = PoissonSubsampledGaussianMechanism(noise_multiplier=run.noise, sampling_probability=run.rate)
    accountant = PRVAccountant(
        prvs=[mechanism], max_self_compositions=[run.steps], eps_error=0.01, delta_error=1e-8
    )
    _, estimate, _ = accountant.compute_epsilon(run.delta, [run.steps])
    return float(estimate)


def peer_calibration(budget: tuple[float, Run]) -> float:
    """Calibrate with dp_accounting, as its documentation shows it."""
    epsilon, run = budget
    return float(
        dp_accounting.calibrate_dp_mechanism(
            lambda: PLDAccountant(run.relation.to_dp_accounting(), value_discretization_interval=GRID),
            run.unchecked,
            epsilon,
            run.delta,
        )
    )


def _answer(peer: Callable[[Any], float], question: Any, answers: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    start = time.process_time()
    try:
        answers.send((peer(question), time.process_time() - start))
    except MemoryError:
        answers.send(f"> {MEMORY / 2**30:g} GiB")


def ask(peer: Callable[[Any], float], question: Any) -> tuple[float, float] | str:
    """Return a peer's value and CPU seconds, or in words which limit it went over."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_answer, args=(peer, question, sender))
    child.start()
    sender.close()
    try:
        # A peer that fails otherwise closes the pipe, and EOFError ends the benchmark: nothing was shown.
        return receiver.recv() if receiver.poll(PATIENCE) else f"> {PATIENCE:g} s"
    finally:
        child.kill()
        child.join()


def best(ours: Callable[[], Any], repetitions: int = 3) -> tuple[Any, float]:
    """Return our value and the least CPU seconds of several runs; other work only slows one down."""
    seconds = []
    for _ in range(repetitions):
        start = time.process_time()
        value = ours()
        seconds.append(time.process_time() - start)
    return value, min(seconds)


# --- the two tables --------------------------------------------------------------------------------------


def measure_prices(runs: list[Run], peers: bool, table: Table) -> list[Row]:
    """Price every run, ours and the peers'."""
    rows = []
    for run in runs:
        found, seconds = best(
            lambda run=run: price(run.event(run.noise), delta=run.delta, relation=run.relation)
        )
        pld = ask(peer_pld, run) if peers or run.golden else NOT_ASKED
        # prv_accountant knows the sampled Gaussian under add-remove only.
        prv = ask(peer_prv, run) if peers and run.relation is ADD_REMOVE and run.rate < 1 else NOT_ASKED
        table.add_row(
            str(run),
            f"{run.delta:g}",
            f"{found.lower:.6g}",
            f"{found.upper:.6g}",
            f"{seconds:.3f}",
            *_shown(pld, seconds),
            *_shown(prv, seconds),
        )
        rows.append(Row(f"seconds: {run}", seconds, MOST_SECONDS))
        if run.golden:
            rows.append(Row(f"certified gap: {run}", found.upper - found.lower, MOST_GAP))
    return rows


def measure_calibrations(budgets: list[tuple[float, Run]], table: Table) -> list[Row]:
    """Find the noise for every budget, ours and dp_accounting's."""
    rows = []
    for epsilon, run in budgets:
        noise, seconds = best(
            lambda epsilon=epsilon, run=run: calibrate(run.event, epsilon=epsilon, delta=run.delta)
        )
        peer = ask(peer_calibration, (epsilon, run))
        what = f"epsilon {epsilon:g}: {run.rate:.4g}, {run.steps} steps"
        table.add_row(what, f"{noise:.6g}", f"{seconds:.3f}", *_shown(peer, seconds))
        ratio = 0.0 if isinstance(peer, str) else peer[1] / seconds  # unmeasured is not met
        rows.append(Row(f"times faster, {what}", ratio, LEAST_SPEEDUP, at_most=False))
        if epsilon == 0.01:
            rows.append(Row(f"noise, {what}", noise, MOST_NOISE))
    return rows


# --- what a user would notice if it became slow ----------------------------------------------------------


def many_noises() -> None:
    """Price steps of a hundred different noises."""
    each = [dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(s)) for s in np.linspace(0.8, 1.6, 100)]
    price(dp.ComposedDpEvent(each), delta=1e-5, relation=ADD_REMOVE)


def schedule() -> None:
    """Price a schedule of fifty noises, 40 steps each."""
    noises = [(float(s), 40) for s in np.geomspace(2.0, 0.8, 50)]
    price(events.dp_sgd_schedule(noises, sampling_rate=0.01), delta=1e-5, relation=ADD_REMOVE)


def one_order() -> None:
    """Compute one RDP order of a new event, a hundred times."""
    for place in range(100):
        event = events.dp_sgd(noise_multiplier=1.1 + place / 100, sampling_rate=0.01, steps=1)
        rdp.curve(event, ADD_REMOVE, np.array([16.0]))


def import_seconds() -> float:
    """Return how long `import sfumato` takes in a new process, the best of three."""
    code = "import time; start = time.perf_counter(); import sfumato; print(time.perf_counter() - start)"
    runs = (subprocess.run([sys.executable, "-c", code], check=True, capture_output=True) for _ in range(3))
    return min(float(run.stdout) for run in runs)


def measure_others(table: Table) -> list[Row]:
    """Time what no peer is asked for."""
    rows = [
        Row("seconds: 100 different noises", best(many_noises, 1)[1], 20.0),
        Row("seconds: a schedule of 50 noises", best(schedule)[1], 5.0),
        Row("seconds: one RDP order of a new event", best(one_order, 1)[1] / 100, 0.005),
        Row("seconds: import sfumato", import_seconds(), MOST_SECONDS),
    ]
    for row in rows:
        table.add_row(row.what.removeprefix("seconds: "), f"{row.value:.4f}", f"{row.bar:g}")
    return rows


def _shown(peer: tuple[float, float] | str, seconds: float) -> tuple[str, str, str]:
    if isinstance(peer, str):
        return peer, "", ""
    return f"{peer[0]:.6g}", f"{peer[1]:.2f}", f"{peer[1] / seconds:.1f}"


def tables() -> tuple[Table, Table, Table]:
    """Return the empty tables."""
    prices = Table(title="Epsilon: rate, noise, steps, relation (-: not asked)")
    for name in ("run", "delta", "lower", "upper", "s", "PLD", "s", "ratio", "PRV", "s", "ratio"):
        prices.add_column(name, justify="left" if name == "run" else "right")
    noises = Table(title="Calibration of the noise multiplier, delta 1e-5 (PLD: calibrate_dp_mechanism)")
    for name in ("budget", "noise", "s", "PLD", "s", "ratio"):
        noises.add_column(name, justify="left" if name == "budget" else "right")
    others = Table(title="Ours alone")
    for name in ("what", "s", "bar"):
        others.add_column(name, justify="left" if name == "what" else "right")
    return prices, noises, others


def main() -> int:
    """Measure, print, and fail where a bar is not met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", action="store_true", help="rows for a program: what, value, bar, met")
    arguments = parser.parse_args()
    prices, noises, others = tables()
    runs = GOLDEN if arguments.quick else GOLDEN + SAMPLED + HONEST + PLAIN
    rows = measure_prices(runs, not arguments.quick, prices)
    rows += measure_calibrations(BUDGETS[:2] if arguments.quick else BUDGETS, noises)
    rows += measure_others(others)
    if arguments.json:
        keys = ("what", "value", "bar")
        print(json.dumps([{k: asdict(row)[k] for k in keys} | {"met": row.met} for row in rows], indent=2))
    else:
        console = Console(width=None if Console().is_terminal else 130)
        console.print(prices, noises, others)
        missed = [f"{row.what}: {row.value:.4g}, bar {row.bar:g}" for row in rows if not row.met]
        console.print("\n".join(["Bars not met:", *missed]) if missed else f"All {len(rows)} bars are met.")
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
