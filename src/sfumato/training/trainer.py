# SPDX-License-Identifier: Apache-2.0
"""Train a network privately, from data to a model with its guarantee.

Guarantee  A `TrainingRun` says what its `mechanism` says: the trainer takes batches, clipping, noise and
           length from that object and from nothing else, and the charge in the ledger is its event.
Order      The whole run is paid for first. Then model, loss and files are tried out, on rows of zeros, and
           where they fail the charge is given back: nothing was computed from the data. Then it begins,
           deferred rows are read, and an exception from there on leaves the run spent.
Shown      What was measured is shown only after a checkpoint holds it, so nothing that was shown is ever lost
           and drawn again with other noise.
Resuming   A run that died goes on from its last checkpoint, without a second charge (docs/training.md says
           why).
Ranks      Under torchrun the same script trains in all processes together (`distributed`).
"""

import hashlib
import os
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from sfumato import _check
from sfumato.accounting import events
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator as Randomness
from sfumato.mechanisms.random import resolve, study_note, words
from sfumato.training import denoising, distributed, swapping
from sfumato.training.auditing import Auditor, Canaried
from sfumato.training.averaging import WeightAverage
from sfumato.training.checkpoint import RunFolder, require_same_run
from sfumato.training.data import Augment, Units, open_rows, public_size_of
from sfumato.training.denoising import Denoiser
from sfumato.training.gradients import PrivateGradients
from sfumato.training.losses import Loss, cross_entropy
from sfumato.training.mechanism import DpSgd
from sfumato.training.metrics import Metrics, MetricsFile, Score, correct, evaluate
from sfumato.training.paying import Payment
from sfumato.training.progress import ProgressBar
from sfumato.training.run import TrainingRun
from sfumato.training.runtime import Runtime
from sfumato.training.schedules import (
    ClipSchedule,
    MakeOptimizer,
    MakeSchedule,
    clip_factors,
    open_optimizer,
    open_schedule,
)
from sfumato.training.session import Session

__all__ = ["Trainer"]

_REPORTS = 10  # measurements in a run, unless told otherwise
_CHECKPOINTS = 20  # ... and checkpoints
_ROWS = ("example", "row", "label")  # units that are one row each
_TRIED = 2  # rows of the evaluation data that are tried out before anything begins


class Trainer:
    """DP-SGD on a model; `fit()` trains it in place and returns a `TrainingRun`.

    The privacy of the run is `mechanism`, for the unit that `owners` makes (rows without it). `public_size`
    is the number of units that may be known; `delta` is that of the guarantee (an account has one).
    `evaluation` is data that is NOT protected: what is measured on it is shown exactly. docs/training.md
    tells of the other arguments.

    >>> import torch
    >>> from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling
    >>> mechanism = DpSgd(
    ...     step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
    ...     sampling=PoissonSampling(sampling_rate=0.25),
    ...     noise=[(2.0, 3)],
    ...     relation="add-remove",
    ... )
    >>> data = torch.zeros(40, 2), torch.zeros(40, dtype=torch.int64)
    >>> run = Trainer(nn.Linear(2, 2), data, mechanism=mechanism, public_size=40, delta=1e-5).fit()
    >>> run.history[-1].step, run.guarantee.privacy_unit
    (3, 'example')
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        mechanism: DpSgd,
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
        denoiser: Denoiser | None = None,
        audit: Auditor | None = None,
        evaluation: Any = None,
        score: Score | None = None,
        evaluate_every: int | None = None,
        delta: float | None = None,
        privacy_unit: str | None = None,
        account: Account | None = None,
        purpose: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        progress: bool = True,
        generator: Randomness | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._runtime = runtime if runtime is not None else Runtime()
        self._device = self._runtime.device_for(model)
        distributed.join(self._device, timeout=self._runtime.timeout)
        self._model, self._loss, self.mechanism = model, loss, mechanism
        self._units = Units(
            data, owners=owners, contribution_bound=contribution_bound, augment=augment, views=views
        )
        self.expected_batch_size = _expected_batch_size(mechanism, public_size_of(data, public_size))
        self._claims = {"contribution_bound": str(contribution_bound), "views": str(views)}
        self._optimizer, self._learning_rate, self._schedule = optimizer, learning_rate, schedule
        self._clip_factors = clip_factors(clip_schedule, mechanism.steps)
        self._ema_decay, self._denoiser = ema_decay, denoiser
        denoising.require(denoiser, mechanism)
        self._audit, self._generator = audit, generator
        self._canaried = self._planted()  # what cannot be audited is refused at once
        self._evaluation = None if evaluation is None else open_rows(evaluation)
        self._score = correct if score is None and loss is cross_entropy else score
        self._evaluate_every = _every(mechanism.steps, _REPORTS, evaluate_every=evaluate_every)
        self._account = account
        self._payment = Payment(account, mechanism, purpose=purpose, seeded=resolve(generator).seeded)
        self.delta = _delta(delta, account)
        self.privacy_unit = _privacy_unit(privacy_unit, account, by_owner=self._units.by_owner)
        self._folder = None if folder is None else RunFolder(folder)
        self._checkpoint_every = _every(mechanism.steps, _CHECKPOINTS, checkpoint_every=checkpoint_every)
        self._progress = progress

    def fit(self, *, resume: bool = False) -> TrainingRun:
        """Train, or with `resume` go on with the run in the folder; return the run when it is finished."""
        with self._alone(resume=resume):
            session = self._session()
            if resume:
                self._resume(session)
            else:
                self._start(session)
            session.open()
            with ProgressBar(
                steps=self.mechanism.steps,
                done=session.step,
                shown=self._progress and distributed.is_first(),
            ) as bar:
                while session.step < self.mechanism.steps:
                    session.take_step()
                    bar.advance()
                    self._after_step(session, bar)
            return self._finish(session)

    # --- before the first step ---------------------------------------------------------------------------

    @contextmanager
    def _alone(self, *, resume: bool) -> Generator[None]:
        folder = self._folder
        if folder is None:
            if resume:
                raise InvalidParameterError("there is nothing to resume without a folder: say folder=...")
            yield
            return
        with ExitStack() as held:

            def enter() -> None:
                folder.make()
                held.enter_context(folder.used())
                if not resume:
                    folder.require_unused()

            distributed.first_decides(enter)
            yield

    def _planted(self) -> Canaried | None:
        return (
            None if self._audit is None else self._audit.plant(self._units, self.mechanism, self._generator)
        )

    def _session(self) -> Session:
        self._canaried = self._planted()  # nothing that an earlier run has shown is evidence about this one
        model = self._model.to(self._device)
        distributed.refuse_groups(self.mechanism.step.group_size)
        distributed.same_weights_(model)
        parameters = dict(swapping.find(model).parameters)
        optimizer = open_optimizer(self._optimizer, parameters, self._learning_rate)
        return Session(
            model=model,
            units=self._units if self._canaried is None else self._canaried.units,
            mechanism=self.mechanism,
            private=self._private(model),
            optimizer=optimizer,
            schedule=open_schedule(self._schedule, optimizer),
            average=None if self._ema_decay is None else WeightAverage(parameters, decay=self._ema_decay),
            clip_factors=self._clip_factors,
            denoiser=self._denoiser,
            canaried=self._canaried,
            generator=self._generator,
            runtime=self._runtime,
            device=self._device,
        )

    def _private(self, model: nn.Module) -> PrivateGradients:
        step, runtime, canaried = self.mechanism.step, self._runtime, self._canaried
        return PrivateGradients(
            model if canaried is None else canaried.host(model),
            self._loss if canaried is None else canaried.loss(self._loss),
            noise_multiplier=self.mechanism.noise_multiplier(0),
            expected_batch_size=self.expected_batch_size,
            clipping=step.clipping,
            group_size=step.group_size,
            projections=step.projections,
            engine=runtime.engine,
            microbatch_size=runtime.microbatch_size,
            compile=runtime.compile,
            cuda_graphs=runtime.cuda_graphs,
            generator=self._generator,
            check=runtime.check,
        )

    def _start(self, session: Session) -> None:
        self.mechanism.price(delta=self.delta)  # what cannot be priced is refused before anything is paid
        distributed.first_decides(self._payment.reserve)
        state = self._state(session)
        distributed.first_decides(lambda: self._prepare(session, state))
        distributed.first_decides(self._payment.begin)

    def _prepare(self, session: Session, state: Mapping[str, Any]) -> None:
        """Find out what cannot work while nothing was computed from data: then the charge is given back."""
        try:
            if self._runtime.check:
                session.rehearse()
                self._evaluated(session, most=_TRIED)
            if self._folder is not None:
                self._folder.save(state)
                self._folder.load()  # what could not be read later must be known now
        except BaseException:
            if self._folder is not None:
                self._folder.checkpoint.unlink(missing_ok=True)
            self._payment.refund()
            raise

    def _resume(self, session: Session) -> None:
        folder = self._folder
        assert folder is not None  # `_alone` saw to it
        state = distributed.first_decides(folder.load)
        require_same_run(state["fingerprint"], self._fingerprint(session), folder.path)
        distributed.first_decides(lambda: self._payment.resume(state["reservation"]))
        session.load(state)
        if distributed.is_first():
            MetricsFile(folder.metrics).rewrite(session.history)

    # --- between steps -----------------------------------------------------------------------------------

    def _after_step(self, session: Session, bar: ProgressBar) -> None:
        last = session.step == self.mechanism.steps
        report = last or session.step % self._evaluate_every == 0
        if report and distributed.is_first():
            session.history.append(self._measured(session))
        if report or session.step % self._checkpoint_every == 0:
            self._save(session)
        if report and distributed.is_first():  # only now: what the checkpoint holds cannot be lost any more
            if self._folder is not None:
                MetricsFile(self._folder.metrics).append(session.history[-1])
            bar.note(session.history[-1])

    def _measured(self, session: Session) -> Metrics:
        spent = self.mechanism.first(session.step).price(delta=self.delta)
        loss, accuracy = self._evaluated(session)
        return Metrics(
            step=session.step,
            epsilon=spent.epsilon,
            learning_rate=session.learning_rate,
            seconds=session.seconds,
            loss=loss,
            accuracy=accuracy,
        )

    def _evaluated(self, session: Session, *, most: int | None = None) -> tuple[float | None, float | None]:
        """Return loss and accuracy on evaluation data, of the averaged weights where there are any."""
        if self._evaluation is None:
            return None, None
        with session.average.applied() if session.average is not None else nullcontext():
            return evaluate(
                session.model,
                self._evaluation,
                loss=self._loss,
                score=self._score,
                runtime=self._runtime,
                device=self._device,
                most=most,
            )

    def _save(self, session: Session) -> None:
        if self._folder is None:
            return
        state = self._state(session)
        if distributed.is_first():
            self._folder.save(state)

    def _state(self, session: Session) -> dict[str, Any]:
        return {
            "fingerprint": self._fingerprint(session),
            "noise": [list(part) for part in self.mechanism.noise],
            "reservation": self._payment.number,
            **session.state(),
        }

    def _fingerprint(self, session: Session) -> dict[str, str]:
        """Return every public setting as text: two runs that agree in all of them are the same run."""
        factors = None if self._clip_factors is None else _digest(repr(self._clip_factors))
        return {
            **self._claims,
            "steps": str(self.mechanism.steps),
            "event": events.to_json(self.mechanism.event()),
            "relation": self.mechanism.relation.value,
            "sampling": repr(self.mechanism.sampling),
            "clipping": repr(self.mechanism.step),
            "expected_batch_size": repr(self.expected_batch_size),
            "delta": repr(self.delta),
            "privacy_unit": self.privacy_unit,
            "account": repr(None if self._account is None else self._account.name),
            "generator": _generator_mark(self._generator),
            "loss": getattr(self._loss, "__qualname__", type(self._loss).__name__),
            "parameters": repr(
                [(n, list(p.shape), str(p.dtype)) for n, p in session.private.parameters.items()]
            ),
            "optimizer": f"{type(session.optimizer).__name__} {session.optimizer.defaults!r}",
            "schedule": "None" if session.schedule is None else type(session.schedule).__name__,
            "clip_schedule": repr(factors),
            "ema_decay": repr(self._ema_decay),
            "denoiser": repr(self._denoiser),
            "audit": repr(self._audit),
        }

    # --- after the last step -----------------------------------------------------------------------------

    def _finish(self, session: Session) -> TrainingRun:
        session.require_paid_steps()
        if session.average is not None:
            session.average.keep()
        session.model.eval()
        run = self._run(session)

        def write() -> None:
            if self._folder is not None:
                self._folder.finish(session.model.state_dict())
            self._payment.commit()
            if self._folder is not None:
                _write(self._folder.report, run.to_json() + "\n")

        distributed.first_decides(write)
        return run

    def _run(self, session: Session) -> TrainingRun:
        history = distributed.first_decides(lambda: session.history)
        price = self.mechanism.price(delta=self.delta)
        claim = price.guarantee(self.privacy_unit)
        return TrainingRun(
            model=session.model,
            mechanism=self.mechanism,
            price=price,
            privacy_unit=self.privacy_unit,
            expected_batch_size=self.expected_batch_size,
            history=tuple(history),
            seconds=session.seconds,
            evaluated=self._evaluation is not None,
            denoised=None if self._denoiser is None else self._denoiser.said(),
            audit=None if self._canaried is None else self._canaried.judge(claim),
            study_note=study_note(self._generator),
            account=None if self._account is None else self._account.name,
            reservation=distributed.first_decides(lambda: self._payment.number),
        )


def _expected_batch_size(mechanism: DpSgd, public_size: int | None) -> float:
    return mechanism.sampling.expected_batch_size(public_size)


def _write(place: Path, text: str) -> None:
    """Write a file whole or not at all: one that is there says that the run is finished."""
    part = place.with_name(place.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, place)


def _every(steps: int, times: int, **given: int | None) -> int:
    (value,) = given.values()
    if value is None:
        return max(1, steps // times)
    _check.count(**{name: number for name, number in given.items() if number is not None})
    return value


def _delta(delta: float | None, account: Account | None) -> float:
    if delta is None and account is None:
        raise InvalidParameterError(
            "say delta, the chance that the guarantee may fail: clearly below 1 / (number of units), such as "
            "1e-6."
        )
    found = distributed.first_decides(lambda: account.budget.delta) if delta is None and account else delta
    assert found is not None
    _check.probability(delta=found)
    return found


def _privacy_unit(given: str | None, account: Account | None, *, by_owner: bool) -> str:
    if account is None:
        return given if given is not None else "user" if by_owner else "example"
    stated = distributed.first_decides(lambda: account.privacy_unit)
    if given is not None and given != stated:
        raise InvalidParameterError(
            f"privacy_unit={given!r} was given, but account {account.name!r} protects one {stated!r}. Leave "
            "it out, or use an account of that unit."
        )
    if given is None and not by_owner and stated not in _ROWS:
        raise InvalidParameterError(
            f"account {account.name!r} protects one {stated!r}, but nothing says whose the rows are. Say "
            f"owners=..., or privacy_unit={stated!r} if each row is another {stated}."
        )
    return stated


def _generator_mark(generator: Randomness | None) -> str:
    """Return what tells one seed from another; nothing of a stream that must stay secret."""
    source = resolve(generator)
    if not source.seeded:
        return "secure" if source.secure else "not cryptographic"
    return _digest(str(int(words(1, source.fork("fingerprint", 0))[0])))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
