# SPDX-License-Identifier: Apache-2.0
"""The one call: from a budget to a trained model.

Promise    `train` forms batches by Poisson sampling at `expected_batch_size / public_size` and finds what was
           not said: the noise that meets a budget, or, where noise is given too, how many steps the budget
           pays for. Both are found from public numbers, before the data is touched.
Stopping   With `epsilon` and `noise_multiplier` the run ends before the first step that would exceed epsilon.
           That step is known beforehand: nothing adaptive is needed.
Account    With an account and neither of the two, the run takes all that the account has left.
Delta      That of the account, where there is one; else the default for the public size (`default_delta`).
"""

import os
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from sfumato import _check
from sfumato.accounting.default_delta import delta_or_default
from sfumato.accounting.guarantee import Relation
from sfumato.errors import BudgetExceededError, CalibrationError, InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.training import distributed
from sfumato.training.data.units import Augment, public_size_of
from sfumato.training.engine.losses import Loss, cross_entropy
from sfumato.training.optimizers import ClipSchedule, MakeOptimizer, MakeSchedule
from sfumato.training.privacy.clipping import Clipping, CoordinateClipping
from sfumato.training.privacy.dp_sgd import DpSgd, NoisyStep
from sfumato.training.privacy.sampling import PoissonSampling, Sampling
from sfumato.training.record.metrics import Score
from sfumato.training.record.run_folder import RunFolder
from sfumato.training.run import TrainingRun
from sfumato.training.run_audit import RunAudit, require_audit
from sfumato.training.runtime import Runtime
from sfumato.training.trainer import Trainer

__all__ = ["plan_run", "train"]


def plan_run(
    *,
    public_size: int,
    expected_batch_size: float,
    epochs: float | None = None,
    steps: int | None = None,
    delta: float | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    clipping: Clipping | CoordinateClipping,
    relation: Relation | str = Relation.ADD_REMOVE,
    sampling: Sampling | None = None,
    account: Account | None = None,
) -> DpSgd:
    """Return a run of DP-SGD that meets a budget, Poisson-sampled unless told otherwise; nothing is spent.

    >>> run = plan_run(public_size=60_000, expected_batch_size=600, epochs=5, epsilon=3, delta=1e-5,
    ...                clipping=Clipping(clip_norm=1.0))
    >>> run.steps, round(run.noise_multiplier(0), 2)
    (500, 0.74)
    """
    rate = _sampling_rate(public_size, expected_batch_size)
    run = DpSgd(
        step=NoisyStep(clipping=clipping),
        sampling=PoissonSampling(sampling_rate=rate) if sampling is None else sampling,
        noise=((1.0 if noise_multiplier is None else noise_multiplier, _steps(epochs, steps, rate)),),
        relation=Relation.parse(relation),
    )
    if epsilon is not None:
        delta = _delta(delta, public_size, account)
        if noise_multiplier is not None:
            return _stopped(run, epsilon, delta)
        planned = run.calibrated(epsilon=epsilon, delta=delta)
        return planned if account is None else _admitted(planned, account, epsilon, delta)
    if noise_multiplier is not None:
        return run
    if account is None:
        raise InvalidParameterError(
            "say how private the run must be: epsilon=..., or noise_multiplier=..., or an account to spend "
            "from."
        )
    return run.scaled(distributed.first_decides(lambda: _fitting(run, account)))


def _fitting(run: DpSgd, account: Account, bracket: tuple[float, float] = (1e-3, 1e6)) -> float:
    """Return the factor of the noise with which a run fits what an account has left."""
    try:
        return account.calibrate(run.scaled, bracket=bracket)
    except CalibrationError:
        left = account.remaining().run_epsilon
    raise BudgetExceededError(
        f"account {account.name!r} has too little left for this run: the largest that it admits has "
        f"epsilon={left:g}, and no noise makes these steps so cheap. Grant more budget, take fewer steps, or "
        "lower the expected batch size. Nothing was reserved for this run."
    )


def _delta(delta: float | None, public_size: int, account: Account | None) -> float:
    if delta is None and account is not None:
        return distributed.first_decides(lambda: account.budget.delta)
    return delta_or_default(delta, public_size)


def _admitted(run: DpSgd, account: Account, epsilon: float, delta: float) -> DpSgd:
    """Return a run with the little more noise that an account needs for what it said is left.

    An account counts runs beside each other by the Gaussian that dominates them, and a run with few effective
    steps is not quite a Gaussian. What asks for more than is left comes back as it is: the ledger refuses it.
    """

    def factor() -> float:
        asks_too_much = epsilon > account.remaining().run_epsilon or delta > account.budget.delta
        if run.relation is not account.relation or asks_too_much or account.admits(run):
            return 1.0
        return _fitting(run, account, (1.0, _MOST_EXTRA_NOISE))

    return run.scaled(distributed.first_decides(factor))


_MOST_EXTRA_NOISE = 4.0  # far more than any run needs; within 3% where noise multipliers are above 0.7


def _sampling_rate(public_size: int, expected_batch_size: float) -> float:
    _check.count(public_size=public_size)
    _check.positive(expected_batch_size=expected_batch_size)
    if expected_batch_size > public_size:
        raise InvalidParameterError(
            f"expected_batch_size={expected_batch_size:g} must be at most public_size={public_size}."
        )
    return expected_batch_size / public_size


def _steps(epochs: float | None, steps: int | None, rate: float) -> int:
    if (epochs is None) == (steps is None):
        raise InvalidParameterError(f"say either epochs or steps; got epochs={epochs!r}, steps={steps!r}.")
    if steps is None:
        assert epochs is not None
        _check.positive(epochs=epochs)
        return max(1, round(epochs / rate))
    _check.count(steps=steps)
    return steps


def _stopped(run: DpSgd, epsilon: float, delta: float) -> DpSgd:
    _check.positive(epsilon=epsilon)
    try:
        return run.stopped(epsilon=epsilon, delta=delta)
    except CalibrationError:
        cost = run.first(1).price(delta=delta)
        raise CalibrationError(
            f"epsilon={epsilon:g} does not pay for one step: at noise_multiplier={run.noise_multiplier(0):g} "
            f"the first costs {cost}. Use more noise or a lower sampling rate. Nothing was spent, and the "
            "data was not touched."
        ) from None


def train(
    model: nn.Module,
    data: Any,
    *,
    expected_batch_size: float,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    clip_norm: float | None = None,
    clipping: Clipping | CoordinateClipping | None = None,
    relation: Relation | str | None = None,
    loss: Loss = cross_entropy,
    public_size: int | None = None,
    owners: Tensor | None = None,
    contribution_bound: int | None = None,
    augment: Augment | None = None,
    views: int = 1,
    optimizer: MakeOptimizer | Optimizer | None = None,
    learning_rate: float | None = None,
    schedule: MakeSchedule | None = None,
    clip_schedule: ClipSchedule | None = None,
    ema_decay: float | None = None,
    audit: RunAudit | None = None,
    evaluation: Any = None,
    score: Score | None = None,
    evaluate_every: int | None = None,
    privacy_unit: str | None = None,
    account: Account | None = None,
    purpose: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    progress: bool = True,
    generator: Generator | None = None,
    runtime: Runtime | None = None,
) -> TrainingRun:
    """Train a model to a budget by DP-SGD, in place; return the run with its guarantee.

    `clip_norm` is 1 unless said; `delta` is the account's, or else the largest power of ten below
    1 / `public_size`; every other argument is that of `Trainer` or of `plan_run`.

    >>> import torch
    >>> data = torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64)
    >>> sizes = {"public_size": 100, "expected_batch_size": 20, "epochs": 1}
    >>> run = train(nn.Linear(2, 2), data, **sizes, epsilon=2, delta=1e-5)
    >>> print(run.guarantee)
    (2, 1e-05)-differential privacy for one example, add-remove neighbors
    """
    require_audit(audit)
    runtime = runtime if runtime is not None else Runtime()
    distributed.join(runtime.device_for(model), timeout=runtime.timeout)
    size = _public_size(data, public_size)
    delta = _delta(delta, size, account)
    mechanism = _planned(
        public_size=size,
        expected_batch_size=expected_batch_size,
        epochs=epochs,
        steps=steps,
        delta=delta,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        clipping=_clipping(clip_norm, clipping),
        relation=_relation(relation, account),
        account=account,
        resumed=RunFolder(folder) if resume and folder is not None else None,
    )
    return Trainer(
        model,
        data,
        mechanism=mechanism,
        loss=loss,
        public_size=public_size,
        owners=owners,
        contribution_bound=contribution_bound,
        augment=augment,
        views=views,
        optimizer=optimizer,
        learning_rate=learning_rate,
        schedule=schedule,
        clip_schedule=clip_schedule,
        ema_decay=ema_decay,
        audit=audit,
        evaluation=evaluation,
        score=score,
        evaluate_every=evaluate_every,
        delta=delta,
        privacy_unit=privacy_unit,
        account=account,
        purpose=purpose,
        folder=folder,
        checkpoint_every=checkpoint_every,
        progress=progress,
        generator=generator,
        runtime=runtime,
    ).fit(resume=resume)


def _planned(
    *,
    public_size: int,
    expected_batch_size: float,
    epochs: float | None,
    steps: int | None,
    delta: float | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    clipping: Clipping | CoordinateClipping,
    relation: Relation,
    account: Account | None,
    resumed: RunFolder | None,
) -> DpSgd:
    """Return the run. A resumed one that took what its account had left keeps the noise it began with."""
    began_with: list[tuple[float, int]] = []
    if resumed is not None and epsilon is None and noise_multiplier is None:
        stored: list[list[Any]] = distributed.first_decides(lambda: resumed.load()["noise"])
        began_with = [(float(multiplier), int(count)) for multiplier, count in stored]
        noise_multiplier = began_with[0][0]
    run = plan_run(
        public_size=public_size,
        expected_batch_size=expected_batch_size,
        epochs=epochs,
        steps=steps,
        delta=delta,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        clipping=clipping,
        relation=relation,
        account=account,
    )
    return replace(run, noise=tuple(began_with)) if began_with else run


def _public_size(data: Any, given: int | None) -> int:
    size = public_size_of(data, given)
    if size is None:
        raise InvalidParameterError(
            "the size of the data is private unless it is declared: say public_size, the number of units "
            "that may be known, such as a rounded one. It sets the sampling rate; the data may have more or "
            "fewer."
        )
    return size


def _clipping(
    clip_norm: float | None, clipping: Clipping | CoordinateClipping | None
) -> Clipping | CoordinateClipping:
    if clipping is None:
        return Clipping(clip_norm=1.0 if clip_norm is None else clip_norm)
    if clip_norm is not None:
        raise InvalidParameterError("give either clip_norm or clipping, and not both.")
    return clipping


def _relation(given: Relation | str | None, account: Account | None) -> Relation:
    if given is not None:
        return Relation.parse(given)
    if account is None:
        return Relation.ADD_REMOVE
    return distributed.first_decides(lambda: account.relation)
