# SPDX-License-Identifier: Apache-2.0
"""The loop of a training run: everything that changes from step to step, all of it in the checkpoint.

`load` followed by the remaining steps does what an uninterrupted run would have done: the same numbers bit
for bit with a seeded generator, the same distribution otherwise.

Guarantee  Step t takes the sampler's batch t, whatever its size, adds the noise of step t of the mechanism,
           and divides by the public expected batch size. At the end the steps taken are compared with the
           event that was charged. Rows leave optimizer and schedule as they are (`optimizer_state`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sfumato.accounting import events
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.mechanisms.random import Generator, resolve, study_note
from sfumato.training import distributed
from sfumato.training.data.units import Batch, Units, moved
from sfumato.training.engine import parameter_values
from sfumato.training.engine.before_charge import require_room_for_noise
from sfumato.training.engine.contributions import (
    Contributor,
    NoisySummer,
    refuse_other_units,
    require_room,
    summation_of,
)
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.losses import Loss
from sfumato.training.engine.rehearsal import synthetic
from sfumato.training.integrity.optimizer_state import OptimizerState
from sfumato.training.privacy.correlated_noise import CorrelatedNoise
from sfumato.training.privacy.denoising import Denoiser
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.privacy.sampling import Sampler
from sfumato.training.random_state import private_draws
from sfumato.training.rank_agreement import Agreement
from sfumato.training.record.metrics import Metrics
from sfumato.training.record.run_folder import random_state, restore_random_state
from sfumato.training.record.run_ownership import RunOwnership
from sfumato.training.run_audit import AuditedRun
from sfumato.training.runtime import Runtime
from sfumato.training.sharding import sharded_model, states
from sfumato.training.weight_average import WeightAverage

__all__ = ["TrainingLoop", "private_gradients"]

# Settings that all ranks must share. Others may have texts that differ from process to process.
_COMPARED = (
    "event",
    "relation",
    "clipping",
    "clip_schedule",
    "contribution_bound",
    "views",
    "expected_batch_size",
    "parameters",
)
_REHEARSED = 2  # rows of zeros: one would not show a batch axis


class TrainingLoop:
    """The moving parts of one run."""

    def __init__(
        self,
        *,
        model: nn.Module,
        units: Units,
        mechanism: DpSgd,
        private: PrivateGradients,
        optimizer: Optimizer,
        schedule: LRScheduler | None,
        average: WeightAverage | None,
        clip_factors: Sequence[float] | None,
        denoiser: Denoiser | None,
        audited: AuditedRun | None,
        agreement: Agreement,
        generator: Generator | None,
        runtime: Runtime,
        device: torch.device,
    ) -> None:
        self.model, self.units, self.mechanism, self.private = model, units, mechanism, private
        # Parts that the user holds in evaluation mode inside of a model in training mode stay there.
        self._held = [part for part in model.modules() if not part.training] if model.training else []
        self.optimizer, self.schedule, self.average = optimizer, schedule, average
        self.updating = OptimizerState(optimizer, schedule)  # which no row may change
        self.step, self.history = 0, list[Metrics]()
        self._clip_factors, self._denoiser, self._audited = clip_factors, denoiser, audited
        self._agreement = agreement
        require_room_for_noise(private, mechanism, clip_factors)  # before anything is charged
        self._numbers: list[Tensor] = []  # of the rows in the batch at hand, where a denoiser needs them
        self._generator = resolve(generator)
        self._runtime, self._device = runtime, device
        self._blank: tuple[Any, ...] | None = None  # rows of zeros, once synthetic rows were run
        if self.contributor is not None:  # before anything is charged
            refuse_other_units(several_rows=not units.plain)
        private.sharding.refuse(denoiser=denoiser)
        private.public_rows.expect(units.rows_per_unit)
        self._sampler = self._new_sampler()

    @property
    def contributor(self) -> Contributor | NoisySummer | None:
        """What gives contributions or noisy sums in place of gradients; None if nothing does."""
        engine = self._runtime.engine
        return engine if isinstance(engine, (Contributor, NoisySummer)) else None

    @property
    def learning_rate(self) -> float:
        """That of the first group of parameters, for the step to come."""
        return float(self.optimizer.param_groups[0]["lr"])

    def rehearse(self) -> None:
        """Run passes over synthetic rows: what cannot work raises before anything is paid for.

        Where steps add rows of zeros to batches, the model must also run these.
        """
        self._settle()
        zeros = self._blank if self._needs_zeros() else None
        if zeros is None:
            return
        draws, forward = private_draws(self._generator, "zeros", self.step), self._runtime.forward
        with draws, self.updating.kept(), forward(self._device):
            finite = self.private.rehearse(*zeros)
        if self._audited is not None:
            self._audited.require(finite=finite)

    def _settle(self) -> None:
        """Let synthetic rows decide how rows are run, once a process: no row of the data may."""
        if self._blank is not None:
            return
        with private_draws(self._generator, "rehearsal", self.step):  # a data set may be asked for a row
            blank = self.units.blank(_REHEARSED)
            if blank is None:
                return
            self._to_training()
            zeros = moved(blank, self._device)
            made_up = synthetic(zeros)
            audited = self._audited
            with self.updating.kept(), self._runtime.forward(self._device):
                self.private.settle(
                    *zeros, made_up=made_up if audited is None else map(audited.ordinary, made_up)
                )
        self._blank = zeros

    def _to_training(self) -> None:
        self.model.train()
        for part in self._held:
            part.training = False

    def _needs_zeros(self) -> bool:
        """Whether steps add rows of zeros to batches."""
        recorded = self._runtime.passes.recorded
        return recorded or self.mechanism.step.group_size > 1 or self._audited is not None

    def require_alike(self, settings: Mapping[str, str]) -> None:
        """Raise unless all ranks were started with the settings that bound what one unit does."""
        self._agreement.require_settings({name: settings[name] for name in _COMPARED})

    def open(self) -> None:
        """Read what was deferred until the run was paid for; then all ranks must hold the same."""
        self._settle()
        self.private.sharding.serve()
        with private_draws(self._generator, "open", self.step), self.updating.kept():
            if self.units.deferred:
                began = self._sampler.state_dict()
                self.units.open()
                self._sampler = self._new_sampler()
                self._sampler.load_state_dict(began)
            self._agreement.require_rows()
        if self._audited is not None and self._denoiser is None:
            self._audited.follow(self.optimizer, self.average)

    def _new_sampler(self) -> Sampler:
        try:
            return self.mechanism.sampling.sampler(self.units.num_units, self._generator)
        except InvalidParameterError as error:
            if self._audited is None:
                raise
            raise InvalidParameterError(f"{error} {self._audited.counted()}") from None

    def take_step(self) -> None:
        """Draw a batch, set private gradients, and move the weights."""
        self.compute_gradients()
        self.optimizer.step()
        self.complete_step()

    def compute_gradients(self) -> None:
        """Draw a batch and set private gradients: the first half of a step."""
        self._prepare()
        with private_draws(self._generator, "step", self.step):
            self._set_gradients()

    def complete_step(self) -> None:
        """Do what follows a move of the weights: the second half of a step."""
        if self._audited is not None:
            self._audited.moved(self.step)
        if self.schedule is not None:
            self.schedule.step()
        if self.average is not None:
            self.average.update()
        self.step += 1

    def _set_gradients(self) -> None:
        """Do all that is done with private rows in a step."""
        batch = distributed.drawn(lambda: self._sampler.batch(self.step), self._device)
        self._agreement.require_batch(batch, self.step)
        units = distributed.share(batch)
        with self.updating.kept():
            with self._runtime.forward(self._device):
                if self._audited is not None:
                    self._audited.try_out(self.private, step=self.step, device=self._device)
                for piece in self._pieces(units):
                    self._accumulate(piece)
            bound = self.private.bound  # of this step: `finish` may move it for the next
            self.private.finish()  # which may run rows again
        self._observe(units, bound)
        self._denoise()

    def _prepare(self) -> None:
        self._to_training()
        self.private.noise_multiplier = self.mechanism.noise_multiplier(self.step)
        if self._clip_factors is not None:
            self.private.scale_clipping(self._clip_factors[self.step])

    def _pieces(self, units: Tensor) -> list[Tensor]:
        """Return this rank's units of the step, in pieces that are loaded one after the other."""
        if not len(units):
            return []
        whole = self._runtime.microbatch_size is None or self.mechanism.step.group_size > 1
        return [units] if whole else list(units.split(self._runtime.microbatch_size or len(units)))

    def _accumulate(self, units: Tensor) -> None:
        stream = self._generator.fork("rows", self.step).fork("rank", distributed.rank())
        batch: Batch = self.units.take(units, stream)
        if not batch.rows:
            return
        if self._denoiser is not None and self._denoiser.reveals_batches and batch.numbers is not None:
            self._numbers.append(batch.numbers)
        weights = batch.row_weights
        self.private.accumulate(
            *moved(batch.rows, self._device),
            rows_per_unit=batch.rows_per_unit,
            row_weights=None if weights is None else weights.to(self._device),
        )

    def _observe(self, units: Tensor, bound: float) -> None:
        """Let an audit see the noisy gradient, which is what the run releases."""
        if self._audited is not None:
            self._audited.observe(units, self.private, step=self.step, bound=bound)

    def _denoise(self) -> None:
        """Replace the noisy gradient by a better one, made of it and of what is public."""
        numbers, self._numbers = self._numbers, []
        if self._denoiser is None:
            return
        named = parameter_values.find(self.model).parameters
        noisy = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
        better: Mapping[str, Tensor] = noisy
        if distributed.is_first():
            better = self._denoiser.denoise(
                self.model,
                noisy,
                rows=torch.cat(numbers) if numbers else None,
                generator=self._generator.fork("denoiser", self.step),
            )
        for name in noisy:
            named[name].grad = distributed.from_first(better[name].contiguous())

    def remark(self) -> str | None:
        """Return what a statement says of a contributor or a denoiser; None without one."""
        told = [part.statement() for part in (self.contributor, self._denoiser) if part is not None]
        return " ".join(told) or None

    def require_paid_steps(self, *, stopped: bool = False) -> None:
        """Raise unless the steps taken are those of the event: the last line of defense against a bug.

        A run that was `stopped` took the first ones of them.
        """
        taken = self.private.event(self.mechanism.sampling, relation=self.mechanism.relation)
        paid = self.mechanism.first(self.step) if stopped else self.mechanism
        if events.leaves(taken) != events.leaves(paid.event()):
            raise SfumatoError(
                "the steps that were taken are not those that were accounted for. This is a bug of sfumato: "
                "do not use the model, and please report it."
            )

    # --- checkpoints -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint needs of the moving parts. All ranks must ask; rank 0 gets it."""
        return states.gathered(self.parts()) | {"random": distributed.gathered(random_state(self._device))}

    def parts(self) -> dict[str, Any]:
        """Return the moving parts of this rank, but for its random state."""
        return {
            "step": self.step,
            "history": [asdict(row) for row in self.history],
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "sampler": self._sampler.state_dict(),
            "gradients": self.private.state_dict(),
            "denoiser": None if self._denoiser is None else self._denoiser.state_dict(),
            "canaries": None if self._audited is None else self._audited.state_dict(),
        }

    def roll_back(self, state: Mapping[str, Any]) -> None:
        """Put what outlives the loop back to a state, and leave no gradient: the loop ends here."""
        self._load_model(state)
        for parameter in (*self.model.parameters(), *self.private.parameters.values()):
            parameter.grad = None
        if self._denoiser is not None:
            self._denoiser.load_state_dict(state["denoiser"])

    def back_to(self, ownership: RunOwnership | None) -> Callable[[], Any]:
        """Return what gives the state that a failed run goes back to; None is its start, as for shards."""
        return (lambda: None) if ownership is None or self.private.sharding.shards else ownership.published

    def _load_model(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(states.placed_all(state["model"], self.model.state_dict()))
        self.optimizer.load_state_dict(states.of_optimizer(state["optimizer"], self.optimizer))

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._load_model(state)
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self._audited is not None:  # who takes part is known only now
            self._audited.load_state_dict(state["canaries"])
            self._sampler = self._new_sampler()
        self._sampler.load_state_dict(state["sampler"])
        self.private.load_state_dict(state["gradients"])
        if self._denoiser is not None:
            self._denoiser.load_state_dict(state["denoiser"])
        self.history = [Metrics.from_dict(row) for row in state["history"]]
        self.step = int(state["step"])
        if distributed.rank() < len(state["random"]):  # else there are more ranks: new ones draw as they like
            restore_random_state(state["random"][distributed.rank()], self._device)


def private_gradients(
    model: nn.Module,
    mechanism: DpSgd,
    loss: Loss,
    *,
    expected_batch_size: float,
    audited: AuditedRun | None,
    runtime: Runtime,
    generator: Generator | None,
) -> PrivateGradients:
    """Return the clipped, noisy gradients of a run, with room for the canaries of its audit."""
    step, correlation = mechanism.step, mechanism.correlation
    if step.summation != summation_of(runtime.engine):
        raise InvalidParameterError(
            "the noisy sums of the engine are not those of the mechanism. Pass the same summation to "
            "NoisyStep(summation=...) and to what computes the sums, Runtime(engine=...)."
        )
    if step.summation is not None:
        for noise_multiplier, _ in mechanism.noise:
            step.summation.scaled(noise_multiplier)  # what cannot be summed is refused before it is paid for
    require_room(runtime.engine, mechanism.sampling)
    _require_marked(runtime.engine, generator)
    passes, host = replace(runtime.passes, planned_steps=mechanism.steps), model
    if audited is not None:
        sharded_model.refuse_shards(model, "audit")
        host = audited.host(model)
        passes = replace(passes, engine=audited.engine(passes.engine))
    return PrivateGradients(
        host,
        loss if audited is None else audited.loss(loss),
        noise_multiplier=mechanism.noise_multiplier(0),
        expected_batch_size=expected_batch_size,
        clipping=step.clipping,
        group_size=step.group_size,
        projections=step.projections,
        passes=passes,
        generator=generator if correlation is None else None,
        noise=None if correlation is None else CorrelatedNoise(correlation, generator),
        trials=audited is not None,
    )


def _require_marked(engine: object, generator: Generator | None) -> None:
    """Refuse sums whose noise is for study only in a run that would not say so."""
    if isinstance(engine, NoisySummer) and study_note(engine.generator) and not study_note(generator):
        raise InvalidParameterError(
            "the noise of the sums does not come from a secure generator. Pass the run such a generator too, "
            "so that it is marked as one for study only, or leave both out."
        )
