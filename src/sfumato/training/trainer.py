# SPDX-License-Identifier: Apache-2.0
"""Train a network privately, from data to a model with its guarantee.

The whole run is charged first. Then it is tried on rows of zeros: a failure is refunded, as nothing was read.
Then deferred rows are read, and an exception leaves the run spent. Weights are evaluated once a checkpoint
holds them, the last ones after the commit: what was shown cannot be lost and drawn again with other noise.

Guarantee  The trainer takes batches, clipping, noise and length from its `mechanism` and from nothing else.
           The charge in the ledger is the event of that mechanism.
Failure    Whatever stops a run leaves in memory what its last checkpoint holds, or what was there before
           (`rollback`). A run that died is resumed without a second charge, in one place (`run_ownership`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from torch import nn

from sfumato.accounting.plan import Plan
from sfumato.mechanisms.random import Generator as Randomness
from sfumato.training import distributed
from sfumato.training.budget import delta_for, dp_sgd_for
from sfumato.training.data.silence import often_silent
from sfumato.training.data.units import Units, public_size_of
from sfumato.training.description import (
    Charge,
    Evaluation,
    Optimization,
    Privacy,
    RunKeywords,
    Storage,
    describe,
)
from sfumato.training.engine import before_charge, parameter_values
from sfumato.training.integrity.rollback import undone_on_failure
from sfumato.training.integrity.standing import Standing
from sfumato.training.loop import TrainingLoop, private_gradients
from sfumato.training.optimizers import clip_factors, open_optimizer, open_schedule
from sfumato.training.payment import Payment
from sfumato.training.privacy import denoising, terms
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.rank_agreement import Agreement
from sfumato.training.record import run_settings
from sfumato.training.record.evaluation import Reports, every
from sfumato.training.record.finished_run import finished_run
from sfumato.training.record.progress import ProgressBar
from sfumato.training.record.reporting import Reporting
from sfumato.training.record.run_folder import RunFolder, require_same_run, taken_by_first
from sfumato.training.record.run_loggers import RunLoggers
from sfumato.training.record.run_ownership import RunOwnership
from sfumato.training.run import TrainingRun
from sfumato.training.run_audit import AuditedRun, RunAudit, require_audit
from sfumato.training.runtime import Runtime
from sfumato.training.sharding import sharded_model, states
from sfumato.training.weight_average import WeightAverage

__all__ = ["Trainer"]

_CHECKPOINTS = 20  # in a run, unless told otherwise


class Trainer:
    """DP-SGD on a model; `fit()` trains it in place and returns a `TrainingRun`.

    Args:
        model: A torch module.
        data: Tensors in a tuple, a map-style torch data set, or a data set of `sfumato.datasets`.
        privacy: What is claimed: a `Privacy`, what `sfumato.plan` returned, or a `DpSgd` mechanism.
        optimization: How the model is optimized.
        evaluation: Data that is NOT protected, or an `Evaluation` with a score of its own.
        storage: Where checkpoints, metrics and weights are kept.
        charge: The account that pays, and the purpose.
        audit: `sfumato.audit.Canaries(count=1000)` to audit the run from within.
        runtime: Device, engine and memory.
        generator: The source of randomness. Default: secure. A seeded one protects nobody.
        **keywords: Any field of the five descriptions, such as `epsilon`, `mechanism`, `folder`.

    Raises:
        InvalidParameterError: If a setting is missing, unknown or out of range. Nothing is spent.

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

    _resuming = "resume=True"  # what a caller continues a run with

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        privacy: Privacy | Plan | DpSgd | None = None,
        optimization: Optimization | None = None,
        evaluation: Evaluation | Any = None,
        storage: Storage | None = None,
        charge: Charge | None = None,
        audit: RunAudit | None = None,
        runtime: Runtime | None = None,
        generator: Randomness | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> None:
        require_audit(audit)
        described = describe(
            keywords,
            privacy=privacy,
            optimization=optimization,
            evaluation=evaluation,
            storage=storage,
            charge=charge,
        )
        self._runtime = runtime if runtime is not None else Runtime()
        self._device = self._runtime.device_for(model)
        distributed.join(self._device, timeout=self._runtime.timeout)
        self._model, self._optimization = model, described.optimization
        self._audit, self._generator, shown = audit, generator, described.evaluation
        self._loggers, self._progress = RunLoggers(shown.loggers), shown.progress and distributed.is_first()
        self._claim(data, described.privacy, described.charge)
        self._keep(described.storage)
        self._reports: Reporting = Reports(
            self._mechanism,
            described.evaluation,
            delta=self._delta,
            loss=self._optimization.loss,
            runtime=self._runtime,
            device=self._device,
            folder=self._folder,
        )

    def _claim(self, data: Any, privacy: Privacy, charge: Charge) -> None:
        """Fix what is claimed and for whom; refuse what cannot be claimed."""
        self._account, optimization = charge.account, self._optimization
        size = public_size_of(data, privacy.public_size)
        self._mechanism = dp_sgd_for(privacy, public_size=size, account=charge.account)
        self._units = Units(
            data,
            owners=privacy.owners,
            contribution_bound=privacy.contribution_bound,
            augment=optimization.augment,
            views=optimization.views,
        )
        self._contributions = {"contribution_bound": privacy.contribution_bound, "views": optimization.views}
        self._expected_batch_size = self._mechanism.sampling.expected_batch_size(size)
        self._clip_factors = clip_factors(optimization.clip_schedule, self._mechanism.steps)
        denoising.require(optimization.denoiser, self._mechanism)
        self._audited = self._planted()  # what cannot be audited is refused at once
        self._delta = delta_for(privacy, size, charge.account)
        self._payment = Payment(charge, self._mechanism, generator=self._generator, delta=self._delta)
        self._privacy_unit = terms.privacy_unit_of(
            privacy.privacy_unit, charge.account, by_owner=self._units.by_owner
        )

    def _keep(self, storage: Storage) -> None:
        """Fix where the run is kept, and how often."""
        self._folder = None if storage.folder is None else RunFolder(storage.folder)
        self._ownership: RunOwnership | None = None  # of the run at work
        self._checkpoint_every = every(
            self._mechanism.steps, _CHECKPOINTS, checkpoint_every=storage.checkpoint_every
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
        self,
        *,
        resume: bool = False,
        record: Callable[[TrainingRun], str] = TrainingRun.to_json,
        reporting: Reporting | None = None,
    ) -> TrainingRun:
        """Train the model, or continue the run in the folder; a failure restores the last checkpoint.

        Args:
            resume: Whether to continue the run in the folder.
            record: Makes the text of `run.json` in the folder from the finished run.
            reporting: What is done between the steps. Default: evaluation as it was described.

        Returns:
            The finished run.

        Raises:
            BudgetExceededError: If the account cannot pay for the run. Nothing is spent.
            CheckpointError: If the folder cannot be used.
        """
        with self._loggers, taken_by_first(self._folder, resume=resume), often_silent():
            self._reports = self._reports if reporting is None else reporting
            kept, charged = self._folder is not None, self._account is not None
            loop, self._standing = self._loop(), Standing(kept, charged, self._resuming)
            self._ownership = None if self._folder is None else RunOwnership(self._payment, self._folder)

            def work() -> TrainingRun:
                (self._resume if resume else self._start)(loop)
                self._standing.begun = True
                self._loggers.begin(loop, delta=self.delta, privacy_unit=self.privacy_unit)
                loop.open()
                self._take_steps(loop)
                return self._finish(loop, record)

            return undone_on_failure(work, loop, self._standing, published=loop.back_to(self._ownership))

    def _take_steps(self, loop: TrainingLoop) -> None:
        with ProgressBar(steps=self.mechanism.steps, done=loop.step, shown=self._progress) as bar:
            self._reports.begin(loop)
            if self._over(loop):
                self._settle(loop)
            if distributed.first_decides(lambda: self._reports.due(loop)):  # it died before a measurement
                self._reports.make(loop, bar)
            while not self._over(loop):
                self._reports.before(loop)
                loop.take_step()
                bar.advance()
                bar.say(loop.private.way)
                self._after_step(loop, bar)
                self._loggers.catch_up(loop.history)
            if loop.step < self.mechanism.steps and not self._standing.settled:
                self._save(loop)  # the last checkpoint says that no step follows

    def _over(self, loop: TrainingLoop) -> bool:
        return loop.step == self.mechanism.steps or self._reports.stopped

    def _planted(self) -> AuditedRun | None:
        return self._audit.plant(self._units, self.mechanism, self._generator) if self._audit else None

    def _loop(self) -> TrainingLoop:
        self._audited = self._planted()  # nothing that an earlier run has shown is evidence about this one
        model = sharded_model.placed_on(self._model, self._device)
        distributed.refuse_groups(self.mechanism.step.group_size)
        distributed.same_weights_(model)
        parameters = dict(parameter_values.find(model).parameters)
        how = self._optimization
        optimizer = open_optimizer(how.optimizer, parameters, how.learning_rate)
        return TrainingLoop(
            model=model,
            units=self._units if self._audited is None else self._audited.units,
            mechanism=self.mechanism,
            private=private_gradients(
                model,
                self.mechanism,
                how.loss,
                expected_batch_size=self.expected_batch_size,
                audited=self._audited,
                runtime=self._runtime,
                generator=self._generator,
            ),
            optimizer=optimizer,
            schedule=open_schedule(how.schedule, optimizer),
            average=None if how.ema_decay is None else WeightAverage(parameters, decay=how.ema_decay),
            clip_factors=self._clip_factors,
            denoiser=how.denoiser,
            audited=self._audited,
            agreement=Agreement(self._units),
            generator=self._generator,
            runtime=self._runtime,
            device=self._device,
        )

    def _start(self, loop: TrainingLoop) -> None:
        self.mechanism.price(delta=self.delta)  # what cannot be priced is refused before anything is paid
        before_charge.require_finite(loop.model, check=self._runtime.check)
        loop.require_alike(self._fingerprint(loop))
        distributed.first_decides(self._payment.reserve)
        state = self._state(loop)
        distributed.first_decides(lambda: self._prepare(loop, state), meanwhile=loop.private.sharding.serve)
        distributed.first_decides(self._payment.begin if self._ownership is None else self._ownership.begin)

    def _prepare(self, loop: TrainingLoop, state: Mapping[str, Any]) -> None:
        """Find out what cannot work while nothing was computed from data: then the charge is given back."""
        try:
            if self._runtime.check:
                loop.rehearse()
                self._reports.try_out(loop)
            if self._ownership is not None:
                self._ownership.prepare(state)
        except BaseException:
            if self._folder is not None:
                self._folder.clear()
            self._payment.refund()
            raise

    def _resume(self, loop: TrainingLoop) -> None:
        folder, ownership = self._folder, self._ownership
        assert folder is not None and ownership is not None  # `taken_by_first` saw to it
        state = distributed.first_decides(folder.load)
        require_same_run(state["fingerprint"], self._fingerprint(loop), folder.path)
        loop.require_alike(self._fingerprint(loop))
        state = distributed.first_decides(lambda: self._claimed(ownership, state))
        loop.load(state)
        self._reports.load_state(state["reports"])
        self._standing.settled = distributed.first_decides(lambda: self._payment.committed)
        self._reports.rewrite(loop)

    def _claimed(self, ownership: RunOwnership, state: dict[str, Any]) -> dict[str, Any]:
        """Take over a run that died, in the ledger first; return the state to go on from."""
        self._payment.resume(state["reservation"], finished=state["over"])
        found = ownership.find(state)
        if not self._payment.committed:
            ownership.go_on(found)
        return found

    def _after_step(self, loop: TrainingLoop, bar: ProgressBar) -> None:
        self._reports.after(loop)
        if (due := self._reports.due(loop)) or loop.step % self._checkpoint_every == 0:
            self._save(loop)
        if loop.step == self.mechanism.steps:
            self._settle(loop)
        if due:  # only now: what the checkpoint holds cannot be lost any more
            self._reports.make(loop, bar)

    def _save(self, loop: TrainingLoop) -> None:
        if (ownership := self._ownership) is not None:
            state = self._state(loop)
            distributed.first_decides(lambda: ownership.publish(state))

    def _state(self, loop: TrainingLoop) -> dict[str, Any]:
        noise, number = [list(part) for part in self.mechanism.noise], self._payment.number
        kept = {"fingerprint": self._fingerprint(loop), "noise": noise, "reservation": number}
        return kept | {"reports": self._reports.state(), "over": self._over(loop)} | loop.state()

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
            ema_decay=repr(self._optimization.ema_decay),
            denoiser=repr(self._optimization.denoiser),
            audit=repr(self._audit),
        )
        return claim | run_settings.of_loop(loop, self._optimization.loss, self._clip_factors)

    def _settle(self, loop: TrainingLoop) -> None:
        """Record that the result leaves, before anybody sees any of it."""
        if self._standing.settled:
            return
        loop.require_paid_steps(stopped=self._reports.stopped)
        distributed.first_decides(self._payment.commit if self._ownership is None else self._ownership.commit)
        self._standing.settled = True

    def _finish(self, loop: TrainingLoop, record: Callable[[TrainingRun], str]) -> TrainingRun:
        self._settle(loop)
        if loop.average is not None:
            loop.average.keep()
        self._reports.finish(loop)
        loop.model.eval()
        run = self._run(loop, weights := states.gathered(loop.model.state_dict()))

        def write() -> None:
            if self._folder is not None:
                self._folder.finish(weights)
                self._folder.write_report(record(run))

        distributed.first_decides(write)
        self._loggers.finish(run)
        return run

    def _run(self, loop: TrainingLoop, weights: Mapping[str, Any]) -> TrainingRun:
        return finished_run(
            loop,
            weights,
            price=self.mechanism.price(delta=self.delta),
            privacy_unit=self.privacy_unit,
            rows_note=terms.rows_note(self.privacy_unit, self._contributions["contribution_bound"]),
            evaluated=self._reports.evaluated,
            audited=self._audited,
            generator=self._generator,
            account=self._account,
            payment=self._payment,
            folder=self._folder,
        )
