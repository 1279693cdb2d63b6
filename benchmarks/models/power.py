# SPDX-License-Identifier: Apache-2.0
"""How small a mistake can an audit of one run see? The table of docs/audit.md, each row of it computed.

Run       The first example of docs/audit.md is trained once, to learn how many trials it has, of what size,
          and at which error each of its checks fails.
Chance    Of mistakes that only chance hides, what the run would have shown is simulated, 100 times, and put
          into the logs that the audit itself uses. For each simulation the smallest mistake whose check fails
          is found by halving; nine in ten of these are no larger than the value shown.
Certain   The smallest shortfall of a price, and of a weight, is found by halving, too: no chance is involved.
Quick     10 simulations.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from models.results import Row
from torch import nn

from sfumato.accounting.guarantee import round_up
from sfumato.audit.evidence import step_price
from sfumato.audit.evidence.results import Check, Finding
from sfumato.audit.runs.auditor import Auditor
from sfumato.audit.runs.batch_log import BatchLog
from sfumato.audit.runs.canaries import Canaries
from sfumato.audit.runs.contribution_log import ContributionLog
from sfumato.audit.runs.noise_log import NoiseLog
from sfumato.audit.runs.update_log import UpdateLog
from sfumato.testing import seeded
from sfumato.training import TrainingRun, train

COUNT = 1000  # canaries, half of them in
SIMULATIONS, QUICK_SIMULATIONS = 100, 10
POWER = 0.9
HALVINGS = 10
SUBJECT = "the smallest mistake that an audit of 1000 canaries sees nine times in ten"

Draws = np.random.Generator
Numbers = npt.NDArray[np.float64]


@dataclass
class Example:
    """The run of the first example, as far as its checks depend on it."""

    run: TrainingRun
    trials: list[int] = field(default_factory=list[int])  # coordinates of each trial
    tensors: dict[str, list[int]] = field(default_factory=dict[str, list[int]])  # ... of the model's tensors
    pushes: list[float] = field(default_factory=list[float])  # noise of each push, in what it is allowed

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return self.run.mechanism.steps

    @property
    def rate(self) -> float:
        """Its sampling rate."""
        return self.run.mechanism.sampling.sampling_rate  # type: ignore[attr-defined]  # Poisson sampling

    @property
    def noise(self) -> float:
        """Its noise multiplier."""
        return self.run.mechanism.noise_multiplier(0)

    def failed(self, findings: Sequence[Finding]) -> bool:
        """Whether a check of these findings fails."""
        error = self.run.audit.checks[0].error  # type: ignore[union-attr]  # the run was audited
        return Check.of("a check", findings, error=error, sees="").failed

    def taken(self, draws: Draws) -> npt.NDArray[np.bool_]:
        """Return which canaries that are in are in the batch of each step."""
        return draws.random((self.steps, COUNT // 2)) < self.rate


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A mistake of any size from 0 to 1: whether it is found, and what it is called."""

    name: str
    found: Callable[[float, Draws], bool]
    message: Callable[[float], str]
    chance: bool = True  # whether it depends on chance


def power(quick: bool, device: str) -> Iterator[Row]:
    """Yield the smallest mistake of each kind that is found nine times in ten; `note` says it in words."""
    del device  # numbers only
    simulations = QUICK_SIMULATIONS if quick else SIMULATIONS
    for mistake in mistakes(example()):
        seeds = range(simulations if mistake.chance else 1)
        found = sorted(smallest(mistake, seed) for seed in seeds)
        size = found[math.ceil(POWER * len(found)) - 1]
        message = "not found" if math.isinf(size) else mistake.message(size)
        yield Row(subject=SUBJECT, name=mistake.name, value=size, note=message)


def table(rows: Sequence[Row]) -> str:
    """Return rows as the table of a page."""
    lines = [f"| {row.name} | {row.note} |" for row in rows]
    return "\n".join(["| mistake | found nine times in ten from |", "| --- | --- |", *lines])


def up(value: float) -> str:
    """Return a number in two digits, rounded up: no mistake is said to be seen that is not."""
    return f"{round_up(value, 2):g}"


def down(value: float) -> str:
    """Return a number in two digits, rounded down."""
    return f"{-round_up(-value, 2):g}"


def smallest(mistake: Mistake, seed: int) -> float:
    """Return the smallest size that is found, nearly."""
    low, high = 0.0, 1.0
    if not mistake.found(high, np.random.default_rng(seed)):
        return math.inf
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        seen = mistake.found(middle, np.random.default_rng(seed))
        low, high = (low, middle) if seen else (middle, high)
    return high


def example() -> Example:
    """Train the example, and write down what its auditor is shown in trials."""
    trials, tensors, pushes = [], {}, []
    originals = {name: getattr(Auditor, name) for name in ("observe_trial", "observe_noise", "observe_push")}

    def observe_trial(self, noise, *, before):
        trials.append(len(noise))
        originals["observe_trial"](self, noise, before=before)

    def observe_noise(self, name, noise):
        tensors.setdefault(name, []).append(len(noise))
        originals["observe_noise"](self, name, noise)

    def observe_push(self, beyond, *, noise):
        pushes.append(noise)
        originals["observe_push"](self, beyond, noise=noise)

    with mock.patch.multiple(
        Auditor, observe_trial=observe_trial, observe_noise=observe_noise, observe_push=observe_push
    ):
        torch.manual_seed(0)
        x = torch.randn(2000, 20)
        run = train(
            nn.Linear(20, 2),
            (x, (x[:, 0] > 0).long()),
            public_size=2000,
            expected_batch_size=200,
            epochs=2,
            epsilon=4,
            delta=1e-5,
            learning_rate=0.5,
            audit=Canaries(count=COUNT),
            progress=False,
            generator=seeded(0),
        )
    return Example(run, trials, tensors, pushes)


def mistakes(of: Example) -> list[Mistake]:
    """Return the kinds of mistakes, for the run of the example."""
    expected = COUNT // 2 * of.rate**2
    tensor, (size, *_) = max(of.tensors.items(), key=lambda item: item[1][0])
    return [
        Mistake(
            name="noise too small in all steps",
            found=lambda x, draws: of.failed(noise_of(of, draws, lambda n: (1 - x) * n)),
            message=lambda x: f"a standard deviation of {down(100 * (1 - x))}% of the one stated",
        ),
        Mistake(
            name="noise too small in one step",
            found=lambda x, draws: of.failed(noise_of(of, draws, lambda n: in_one_step(n, 1 - x))),
            message=lambda x: f"{down(100 * (1 - x))}%",
        ),
        Mistake(
            name=f"noise too small in a tensor of {size} coordinates of the model",
            found=lambda x, draws: of.failed(trial_of(of, draws, tensor, 1 - x)),
            message=lambda x: f"{down(100 * (1 - x))}% (nearer to 100% in larger tensors and longer runs)",
        ),
        Mistake(
            name="noise shared by two steps, or taken back",
            found=lambda x, draws: of.failed(noise_of(of, draws, lambda n: shared_by_two(n, x))),
            message=lambda x: f"a correlation of {up(x)}",
        ),
        Mistake(
            name="noise shared by every step and the next",
            found=lambda x, draws: of.failed(noise_of(of, draws, lambda n: shared_by_all(n, x))),
            message=lambda x: f"a correlation of {up(x)}",
        ),
        Mistake(
            name="canaries' contributions too long, all of them",
            found=lambda x, draws: of.failed(contributions_of(of, draws, every=x)),
            message=lambda x: f"{up(100 * x)}%",
        ),
        Mistake(
            name="one contribution of a canary too long",
            found=lambda x, draws: of.failed(contributions_of(of, draws, one=30 * x)),
            message=lambda x: f"{up(1 + 30 * x)} times what clipping allows",
        ),
        Mistake(
            name="rows too long in the model's own tensors",
            found=lambda x, draws: of.failed(pushes_of(of, draws, x)),
            message=lambda x: f"{up(100 * x)}%",
        ),
        Mistake(
            name="sampling rate too high",
            found=lambda x, draws: of.failed(
                batches_of(of, draws.random((of.steps, COUNT // 2)) < of.rate * (1 + x))
            ),
            message=lambda x: f"{up(100 * x)}%",
        ),
        Mistake(
            name="batches that come back",
            found=lambda x, draws: of.failed(batches_of(of, coming_back(of, draws, round(40 * x)))),
            message=lambda x: (
                f"two that share {round(40 * x)} canaries, where {expected:.2g} should be shared"
            ),
        ),
        Mistake(
            name="claim below the cost of the steps",
            found=lambda x, _: is_too_low(of, of.run.epsilon - x),
            message=lambda x: f"by {up(x)}",
            chance=False,
        ),
        Mistake(
            name="weights that do not follow from what was released",
            found=lambda x, _: of.failed(updates_off_by(x / 1000)),
            message=lambda x: f"by {up(x / 10)}%",
            chance=False,
        ),
    ]


# --- what an audit would see ------------------------------------------------------------------------------


def noise_of(of: Example, draws: Draws, wrong: Callable[[Numbers], Numbers]) -> list[Finding]:
    """Return what is found in the coordinates of canaries, in steps and then in trials."""
    taken, width = of.taken(draws), max(of.trials)
    log = NoiseLog("the canaries' coordinates")
    seen = wrong(draws.normal(size=(of.steps + len(of.trials), width)))
    for step, noise in enumerate(seen):
        known = np.ones(width, dtype=bool)
        if step < of.steps:
            known[: COUNT // 2] = ~taken[step]
        log.add(noise, known=known, step=None if step < of.steps else "a trial")
    return log.findings()


def in_one_step(noise: Numbers, ratio: float) -> Numbers:
    """Return noise that is too small in one step."""
    noise[7] *= ratio
    return noise


def shared_by_two(noise: Numbers, correlation: float) -> Numbers:
    """Return noise of which one step has part of that of another."""
    noise[7] = correlation * noise[2] + math.sqrt(1 - correlation**2) * noise[7]
    return noise


def shared_by_all(noise: Numbers, correlation: float) -> Numbers:
    """Return noise of which each step has part of that of the one before."""
    for step in range(1, len(noise)):
        noise[step] = correlation * noise[step - 1] + math.sqrt(1 - correlation**2) * noise[step]
    return noise


def trial_of(of: Example, draws: Draws, wrong: str, ratio: float) -> list[Finding]:
    """Return what is found in trials of the model's tensors, one of which has too little noise."""
    logs = [NoiseLog(name) for name in of.tensors]
    for log in logs:
        for size in of.tensors[log.name]:
            log.add((ratio if log.name == wrong else 1.0) * draws.normal(size=size))
    pairs = [one.compared(other) for at, one in enumerate(logs) for other in logs[:at]]
    return [finding for log in logs for finding in log.findings()] + [pair for pair in pairs if pair]


def contributions_of(of: Example, draws: Draws, *, every: float = 0.0, one: float = 0.0) -> list[Finding]:
    """Return what is found in contributions that are too long: all by a share, or one by more."""
    log = ContributionLog("canaries")
    for step, taken in enumerate(of.taken(draws)):
        beyond = every / of.noise + draws.normal(size=int(taken.sum()))
        if step == 7:
            beyond[0] += one / of.noise
        log.add(beyond, draws.normal(size=COUNT - len(beyond)), noise=of.noise)
    return log.findings()


def pushes_of(of: Example, draws: Draws, longer: float) -> list[Finding]:
    """Return what is found in trials of rows that are clipped to too long a gradient."""
    log = ContributionLog("canaries in the model's own tensors")
    for noise in of.pushes:
        log.add(longer / noise + draws.normal(size=1), np.zeros(0), noise=noise)
    return log.findings()


def batches_of(of: Example, taken: npt.NDArray[np.bool_]) -> list[Finding]:
    """Return what is found in batches."""
    log = BatchLog(of.rate)
    for batch in taken:
        log.add(batch)
    return log.findings()


def coming_back(of: Example, draws: Draws, shared: int) -> npt.NDArray[np.bool_]:
    """Return batches, two of which share so many canaries."""
    taken = of.taken(draws)
    first, others = np.flatnonzero(taken[2]), np.flatnonzero(~taken[2])
    size = max(shared, int(taken[7].sum()))
    if shared > len(first):
        first, others = np.arange(COUNT // 2)[:shared], np.arange(shared, COUNT // 2)
        taken[2, first] = True
    taken[7] = False
    taken[7, draws.permutation(first)[:shared]] = True
    taken[7, draws.permutation(others)[: size - shared]] = True
    return taken


def is_too_low(of: Example, epsilon: float) -> bool:
    """Whether a claim is found to be below the cost of the steps."""
    least = step_price.least_epsilon(
        [of.noise] * of.steps,
        sampling_rate=of.rate,
        relation=of.run.guarantee.relation,
        delta=of.run.guarantee.delta,
    )
    return least > epsilon * (1 + step_price.ROUNDING)


def updates_off_by(share: float) -> list[Finding]:
    """Return what is found in weights that are moved by more than was released."""
    model = nn.Linear(20, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for parameter in model.parameters():
        nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    log = UpdateLog(model, optimizer, None)
    log.released()
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + share)
    log.moved(0)
    return log.findings()
