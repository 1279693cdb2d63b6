# SPDX-License-Identifier: Apache-2.0
"""Train a network privately, from data to a model with its guarantee.

Guarantee  A `TrainingRun` says what its `mechanism` says: the trainer takes batches, clipping, noise and
           length from that object and from nothing else, and the charge in the ledger is its event.
Order      The whole run is paid for first. Then model, loss and files are tried out, on rows of zeros, and
           where they fail the charge is given back: nothing was computed from the data. Then it begins,
           deferred rows are read, and an exception from there on leaves the run spent.
Shown      Weights are measured only after a checkpoint holds them, the last ones only after the run is
           committed, so nothing that was shown is ever lost and drawn again with other noise.
Resuming   A run that died goes on from its last checkpoint, without a second charge (docs/training.md says
           why), in one place only (`claims`).
Failure    Whatever stops a run, an interrupt from the keyboard included, leaves in memory what its last
           checkpoint holds, or what was there before it (`undoing`).
Ranks      Under torchrun the same script trains in all processes together (`distributed`).
"""

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.ledger.recorded import record_note
from sfumato.mechanisms.random import Generator as Randomness
from sfumato.mechanisms.random import study_note
from sfumato.training import distributed
from sfumato.training.data.units import Augment, Units, public_size_of
from sfumato.training.engine import parameter_values
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.losses import Loss, cross_entropy
from sfumato.training.integrity.rollback import undone_on_failure
from sfumato.training.loop import TrainingLoop
from sfumato.training.optimizers import (
    ClipSchedule,
    MakeOptimizer,
    MakeSchedule,
    clip_factors,
    open_optimizer,
    open_schedule,
)
from sfumato.training.payment import Payment
from sfumato.training.privacy import denoising, terms
from sfumato.training.privacy.denoising import Denoiser
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.rank_agreement import Agreement
from sfumato.training.record import fingerprints, run_settings
from sfumato.training.record.evaluation import Reports, every
from sfumato.training.record.metrics import Score
from sfumato.training.record.progress import ProgressBar
from sfumato.training.record.run_folder import RunFolder, require_same_run
from sfumato.training.record.run_ownership import RunOwnership
from sfumato.training.run import TrainingRun
from sfumato.training.run_audit import AuditedRun, RunAudit, require_audit
from sfumato.training.runtime import Runtime
from sfumato.training.weight_average import WeightAverage

__all__ = ["Trainer"]

_CHECKPOINTS = 20  # in a run, unless told otherwise


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
        audit: RunAudit | None = None,
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
        self._model, self._loss, self._mechanism = model, loss, mechanism
        self._units = Units(
            data, owners=owners, contribution_bound=contribution_bound, augment=augment, views=views
        )
        self._expected_batch_size = mechanism.sampling.expected_batch_size(public_size_of(data, public_size))
        self._contributions = {"contribution_bound": contribution_bound, "views": views}
        self._optimizer, self._learning_rate, self._schedule = optimizer, learning_rate, schedule
        self._clip_factors = clip_factors(clip_schedule, mechanism.steps)
        self._ema_decay, self._denoiser = ema_decay, denoiser
        denoising.require(denoiser, mechanism)
        require_audit(audit)
        self._audit, self._generator, self._account = audit, generator, account
        self._audited = self._planted()  # what cannot be audited is refused at once
        self._payment = Payment(account, mechanism, purpose=purpose, generator=generator)
        self._delta = terms.delta_of(delta, account)
        self._privacy_unit = terms.privacy_unit_of(privacy_unit, account, by_owner=self._units.by_owner)
        self._folder = None if folder is None else RunFolder(folder)
        self._claims: RunOwnership | None = None  # of the run at work
        self._settled = False  # whether its result may leave
        self._checkpoint_every = every(mechanism.steps, _CHECKPOINTS, checkpoint_every=checkpoint_every)
        self._progress = progress
        self._reports = Reports(
            mechanism,
            delta=self._delta,
            evaluation=evaluation,
            loss=loss,
            score=score,
            evaluate_every=evaluate_every,
            runtime=self._runtime,
            device=self._device,
            folder=self._folder,
        )

    # Read-only: what a run was made as, charged for and priced by is one thing.
    @property
    def mechanism(self) -> DpSgd:
        """The privacy of the run."""
        return self._mechanism

    @property
    def expected_batch_size(self) -> float:
        """The public number that noisy sums are divided by."""
        return self._expected_batch_size

    @property
    def delta(self) -> float:
        """The delta of the guarantee."""
        return self._delta

    @property
    def privacy_unit(self) -> str:
        """Who is protected."""
        return self._privacy_unit

    def fit(
        self, *, resume: bool = False, record: Callable[[TrainingRun], str] = TrainingRun.to_json
    ) -> TrainingRun:
        """Train, or with `resume` go on with the run in the folder; return the run when it is finished.

        `record` makes the text of `run.json`, which the folder of a finished run holds. Where a run is
        stopped, the model goes back to the last checkpoint, or to what it was before.
        """
        with self._alone(resume=resume):
            loop, self._settled = self._loop(), False
            self._claims = None if self._folder is None else RunOwnership(self._payment, self._folder)

            def work() -> TrainingRun:
                (self._resume if resume else self._start)(loop)
                loop.open()
                self._take_steps(loop)
                return self._finish(loop, record)

            return undone_on_failure(work, loop, published=self._published, kept=lambda: self._settled)

    def _take_steps(self, loop: TrainingLoop) -> None:
        shown = self._progress and distributed.is_first()
        with ProgressBar(steps=self.mechanism.steps, done=loop.step, shown=shown) as bar:
            if loop.step == self.mechanism.steps:
                self._settle(loop)
            if self._reports.due(loop):  # the run died between a checkpoint and its measurement
                self._reports.make(loop, bar)
            while loop.step < self.mechanism.steps:
                loop.take_step()
                bar.advance()
                self._after_step(loop, bar)

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
            distributed.first_decides(lambda: held.enter_context(folder.taken(resume=resume)))
            yield

    def _planted(self) -> AuditedRun | None:
        audit = self._audit
        return None if audit is None else audit.plant(self._units, self.mechanism, self._generator)

    def _loop(self) -> TrainingLoop:
        self._audited = self._planted()  # nothing that an earlier run has shown is evidence about this one
        model = self._model.to(self._device)
        distributed.refuse_groups(self.mechanism.step.group_size)
        distributed.same_weights_(model)
        parameters = dict(parameter_values.find(model).parameters)
        optimizer = open_optimizer(self._optimizer, parameters, self._learning_rate)
        return TrainingLoop(
            model=model,
            units=self._units if self._audited is None else self._audited.units,
            mechanism=self.mechanism,
            private=self._private(model),
            optimizer=optimizer,
            schedule=open_schedule(self._schedule, optimizer),
            average=None if self._ema_decay is None else WeightAverage(parameters, decay=self._ema_decay),
            clip_factors=self._clip_factors,
            denoiser=self._denoiser,
            audited=self._audited,
            agreement=Agreement(self._units),
            generator=self._generator,
            runtime=self._runtime,
            device=self._device,
        )

    def _private(self, model: nn.Module) -> PrivateGradients:
        step, runtime, audited = self.mechanism.step, self._runtime, self._audited
        return PrivateGradients(
            model if audited is None else audited.host(model),
            self._loss if audited is None else audited.loss(self._loss),
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
            trials=audited is not None,
        )

    def _start(self, loop: TrainingLoop) -> None:
        self.mechanism.price(delta=self.delta)  # what cannot be priced is refused before anything is paid
        loop.require_alike(self._fingerprint(loop))
        distributed.first_decides(self._payment.reserve)
        state = self._state(loop)
        distributed.first_decides(lambda: self._prepare(loop, state))
        distributed.first_decides(self._payment.begin if self._claims is None else self._claims.begin)

    def _prepare(self, loop: TrainingLoop, state: Mapping[str, Any]) -> None:
        """Find out what cannot work while nothing was computed from data: then the charge is given back."""
        try:
            if self._runtime.check:
                loop.rehearse()
                self._reports.try_out(loop)
            if self._claims is not None:
                self._claims.prepare(state)
        except BaseException:
            if self._folder is not None:
                self._folder.clear()
            self._payment.refund()
            raise

    def _resume(self, loop: TrainingLoop) -> None:
        folder, claims = self._folder, self._claims
        assert folder is not None and claims is not None  # `_alone` saw to it
        state = distributed.first_decides(folder.load)
        require_same_run(state["fingerprint"], self._fingerprint(loop), folder.path)
        loop.require_alike(self._fingerprint(loop))
        state = distributed.first_decides(lambda: self._claimed(claims, state))
        loop.load(state)
        self._settled = distributed.first_decides(lambda: self._payment.committed)
        self._reports.rewrite(loop)

    def _claimed(self, claims: RunOwnership, state: dict[str, Any]) -> dict[str, Any]:
        """Take over a run that died, in the ledger first; return the state to go on from."""
        self._payment.resume(state["reservation"], finished=state["step"] == self.mechanism.steps)
        found = claims.find(state)
        if not self._payment.committed:
            claims.go_on(found)
        return found

    def _published(self) -> dict[str, Any] | None:
        """Return the last checkpoint of this run; None where there is none, or it is another rank's."""
        if self._folder is None or self._claims is None or not self._claims.held:
            return None
        return self._folder.load()

    # --- between steps -----------------------------------------------------------------------------------

    def _after_step(self, loop: TrainingLoop, bar: ProgressBar) -> None:
        due = self._reports.due(loop)
        if due or loop.step % self._checkpoint_every == 0:
            self._save(loop)
        if loop.step == self.mechanism.steps:
            self._settle(loop)
        if due:  # only now: what the checkpoint holds cannot be lost any more
            self._reports.make(loop, bar)

    def _save(self, loop: TrainingLoop) -> None:
        if (claims := self._claims) is not None:
            state = self._state(loop)
            distributed.first_decides(lambda: claims.publish(state))

    def _state(self, loop: TrainingLoop) -> dict[str, Any]:
        return {
            "fingerprint": self._fingerprint(loop),
            "noise": [list(part) for part in self.mechanism.noise],
            "reservation": self._payment.number,
            **loop.state(),
        }

    def _fingerprint(self, loop: TrainingLoop) -> dict[str, str]:
        """Return every public setting as text: two runs that agree in all of them are the same run."""
        claim = run_settings.of_claim(
            self.mechanism,
            self._generator,
            **self._contributions,
            expected_batch_size=repr(self.expected_batch_size),
            delta=repr(self.delta),
            privacy_unit=self.privacy_unit,
            account=repr(None if self._account is None else self._account.name),
            ema_decay=repr(self._ema_decay),
            denoiser=repr(self._denoiser),
            audit=repr(self._audit),
        )
        return claim | run_settings.of_loop(loop, self._loss, self._clip_factors)

    # --- after the last step -----------------------------------------------------------------------------

    def _settle(self, loop: TrainingLoop) -> None:
        """Record that the result leaves, before anybody sees any of it."""
        if self._settled:
            return
        loop.require_paid_steps()
        distributed.first_decides(self._payment.commit if self._claims is None else self._claims.commit)
        self._settled = True

    def _finish(self, loop: TrainingLoop, record: Callable[[TrainingRun], str]) -> TrainingRun:
        self._settle(loop)
        if loop.average is not None:
            loop.average.keep()
        loop.model.eval()
        run = self._run(loop)

        def write() -> None:
            if self._folder is not None:
                self._folder.finish(loop.model.state_dict())
                self._folder.write_report(record(run))

        distributed.first_decides(write)
        return run

    def _run(self, loop: TrainingLoop) -> TrainingRun:
        history = distributed.first_decides(lambda: loop.history)
        price = self.mechanism.price(delta=self.delta)
        claim = price.guarantee(self.privacy_unit)
        return TrainingRun(
            model=loop.model,
            mechanism=self.mechanism,
            price=price,
            privacy_unit=self.privacy_unit,
            expected_batch_size=self.expected_batch_size,
            history=tuple(history),
            seconds=loop.seconds,
            evaluated=self._reports.evaluated,
            denoised=None if self._denoiser is None else self._denoiser.statement(),
            audit=None if self._audited is None else self._audited.judge(claim),
            study_note=study_note(self._generator),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            account=None if self._account is None else self._account.name,
            reservation=distributed.first_decides(lambda: self._payment.number),
            release_number=distributed.first_decides(lambda: self._payment.release_number),
            record_note=record_note(self._account),
            settings_sha256=distributed.first_decides(self._settings_fingerprint),
            weights_sha256=fingerprints.fingerprint_of(loop.model.state_dict()),
        )

    def _settings_fingerprint(self) -> str | None:
        return None if self._folder is None else self._folder.settings_fingerprint()
