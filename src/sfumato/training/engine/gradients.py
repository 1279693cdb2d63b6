# SPDX-License-Identifier: Apache-2.0
"""Private gradients for a training loop of your own.

Guarantee  After `backward`, the `.grad` of every trainable parameter is (S + N) / expected_batch_size. S is
           the clipped sum over the batch, to which one unit (or group) adds at most `bound` in L2 norm. N is
           Gaussian noise of standard deviation `noise_multiplier * bound`, fresh at every step. Given the
           batch, that is `step.event(noise_multiplier)`; `event` returns what the steps so far cost together.
Edge cases A batch without rows is a step like any other: the gradient is noise alone. A unit whose gradient
           is not finite, or on whose rows the model or the loss fails, contributes nothing. A batch is run in
           pieces that fit in memory (`microbatch_size`); sums add up, and noise is added once. Under
           torch.distributed each rank passes its share of the units; shares are added up, with noise once
           (`distributed`). All ranks must call `finish` at every step, also those whose share is empty.
           Draws from global generators (dropout) leave no trace there (`random_state.private_draws`).
Failure    If a step fails, nothing of it is left: not in the next step's sums, not in any `.grad`. A step is
           counted before its gradient can be seen. No error quotes a row (`step.failure_guard`).
Not here   Which rows are in a batch (`privacy.sampling`): an event holds only for the sampler it names. How
           passes are run, checked and recorded (`passes`).
"""

from collections.abc import Generator as Yields
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.mechanisms.random import Generator
from sfumato.training.data import rows
from sfumato.training.engine import parameter_values
from sfumato.training.engine.losses import Loss, cross_entropy, weighted
from sfumato.training.engine.open_passes import open_passes
from sfumato.training.engine.step.accumulator import Sums, noisy_totals
from sfumato.training.engine.step.clip_adaptation import ClipAdaptation
from sfumato.training.engine.step.failure_guard import guarded
from sfumato.training.engine.step.public_rows import PublicRows
from sfumato.training.engine.step.random_groups import RandomGroups
from sfumato.training.engine.step.settings import PassSettings, check_settings, check_units, noisy_step
from sfumato.training.engine.step.step_record import History, StepRecord
from sfumato.training.engine.step.trials import Trials
from sfumato.training.privacy.clipping import ClippedSums, Clipper, Clipping, CoordinateClipping, one_clipping
from sfumato.training.privacy.dp_sgd import NoisyStep
from sfumato.training.privacy.gradient_pass import GradientPass
from sfumato.training.privacy.noise import IndependentNoise, NoiseSource
from sfumato.training.privacy.sampling import Sampling
from sfumato.training.random_state import StepDraws
from sfumato.training.sharding.sharded_model import open_model

__all__ = ["PrivateGradients"]

_PASSES = PassSettings()


class PrivateGradients:
    """Clipped, noised gradients in `.grad`, one call a step. Any optimizer of torch.optim can follow.

    Args:
        model: The model to train, on its device. Its trainable parameters must stay the same.
        loss: `loss(model, *batch)` returns one number for each row.
        noise_multiplier: The standard deviation of the noise, divided by `bound`.
        expected_batch_size: A public number by which noisy sums are divided.
        clip_norm: The most one unit's gradient may have in L2 norm. Pass this or `clipping`.
        clipping: Another style of clipping, such as `Clipping(per_layer=True, ...)`.
        group_size: How many units are averaged before clipping (`NoisyStep`); 1 clips each unit.
        projections: How many random projections estimate norms (`NoisyStep`); None computes them.
        passes: How passes over a batch are computed: engine, memory, recording and the self-check.
        generator: The source of the noise; None uses the operating system's entropy. Seed it for study only.
        noise: A noise source of another kind, with its own generator.
        trials: Allow `trying` and `alone`, which only an audit may use.

    Raises:
        InvalidParameterError: If an argument is out of range, or if two arguments exclude each other.
        UnsupportedModelError: If nothing in the model is trainable, or a layer cannot be trained privately.
        NotPrivateError: If a layer is known to keep something of the rows.

    >>> import torch
    >>> model = nn.Linear(3, 2)
    >>> private = PrivateGradients(model, clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=8)
    >>> private.backward(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64))
    >>> model.weight.grad.shape, private.steps
    (torch.Size([2, 3]), 1)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss = cross_entropy,
        *,
        noise_multiplier: float,
        expected_batch_size: float,
        clip_norm: float | None = None,
        clipping: Clipping | CoordinateClipping | None = None,
        group_size: int = 1,
        projections: int | None = None,
        passes: PassSettings = _PASSES,
        generator: Generator | None = None,
        noise: NoiseSource | None = None,
        trials: bool = False,
    ) -> None:
        self._step = step = noisy_step(one_clipping(clip_norm, clipping), group_size, projections, passes)
        check_settings(
            noise_multiplier=noise_multiplier,
            expected_batch_size=expected_batch_size,
            passes=passes,
            step=step,
            generator=generator,
            noise=noise,
        )
        self.noise_multiplier, self.expected_batch_size = noise_multiplier, expected_batch_size
        self.parameters = dict(parameter_values.find(model).parameters)
        self._clipper = Clipper(step.clipping, self.parameters)
        self._noise = noise if noise is not None else IndependentNoise(generator)
        self._sums, self._record = Sums(self.parameters), StepRecord()
        self.sharding = open_model(model, self._sums.add_)
        self._passes = open_passes(
            model,
            weighted(loss),
            self._clipper,
            settings=passes,
            projections=projections,
            generator=self._noise.generator,
            expected_batch_size=expected_batch_size,
            step=lambda: self.steps,
            sharding=self.sharding,
        )
        self._groups = RandomGroups(group_size, expected_batch_size=expected_batch_size)
        self._adaptation = ClipAdaptation(
            self._clipper, self.parameters, expected_units=self._groups.expected, sensitivity=step.sensitivity
        )
        self._trials, self._draws = Trials(allowed=trials), StepDraws()
        self.public_rows = PublicRows(grouped=group_size > 1)

    @property
    def step(self) -> NoisyStep:
        """The privacy settings of one step. They cannot be changed: steps were taken with them."""
        return self._step

    @property
    def history(self) -> History:
        """The steps so far: noise multipliers in order, each with its number of steps in a row."""
        return self._record.history

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return self._record.steps

    @property
    def bound(self) -> float:
        """The most one unit, or one group of `group_size`, contributes to the sum, in L2 norm."""
        return self._clipper.bound

    @property
    def microbatch_size(self) -> int | None:
        """How many units are run at once; None: as many as fit in memory."""
        return self._passes.microbatch_size

    @property
    def engine(self) -> str:
        """The engine in use. If "auto" was passed, it may change in a rehearsal."""
        return self._passes.engine

    @property
    def way(self) -> str:
        """How passes run and why, in one line: eagerly, as CUDA graphs, compiled. It is public."""
        return self._passes.way

    def event(self, sampling: Sampling, *, relation: Relation | str = Relation.ADD_REMOVE) -> DpEvent:
        """Return what the steps so far cost together.

        Args:
            sampling: The sampler that drew every batch.
            relation: Which data sets are neighbors.

        Returns:
            The event, for an accountant.

        Raises:
            InvalidParameterError: If the sampler has no event for this relation.
        """
        return self._record.event(self.step, sampling, Relation.parse(relation), self._noise)

    def scale_clipping(self, factor: float) -> None:
        """Clip the next steps at `factor` times the stated clip norm, with `factor` times the noise.

        Noise and bound grow alike, so the event does not change.

        Args:
            factor: A public number above 0, which does not depend on data.

        Raises:
            InvalidParameterError: If the thresholds adapt, or clipping is by coordinate.
        """
        self._clipper.scale(factor)

    def backward(self, *batch: Any, rows_per_unit: int = 1, row_weights: Tensor | None = None) -> None:
        """Take one noisy step over a batch: clip, add up, add noise, divide, and set every `.grad`.

        Args:
            batch: Tensors, or nested containers of tensors, with one row an example.
            rows_per_unit: So many consecutive rows are one unit. Their gradients are added before clipping.
                The number counts as public, unless `public_rows.expect` says otherwise.
            row_weights: A factor for the loss of each row: 0 for padding, 1/k to average k rows.

        Raises:
            InvalidParameterError: If the batch has another shape than these arguments state.
            UnsupportedModelError: If the model's gradients cannot be computed for each row.
            NotPrivateError: If the model keeps something of the rows.
        """
        with self._draws.part(self._noise.generator, self.steps):  # one for both: it takes time
            self.accumulate(*batch, rows_per_unit=rows_per_unit, row_weights=row_weights)
            self.finish()

    def accumulate(
        self,
        *batch: Any,
        rows_per_unit: int = 1,
        row_weights: Tensor | None = None,
        recorded: GradientPass | None = None,
    ) -> None:
        """Add the clipped sum over a part of the batch; `finish` ends the step.

        If it fails, the whole step starts anew: a unit that was added already must not be added again.

        Args:
            batch: As for `backward`.
            rows_per_unit: As for `backward`.
            row_weights: As for `backward`.
            recorded: A pass over these rows that was made already. It replaces the first pass here.

        Raises:
            SfumatoError: As for `backward`.
        """
        check_units(count := rows.count(batch), rows_per_unit)
        self.public_rows.given(rows_per_unit)
        with self.sharding.failing():
            self.settle(*batch)
        if not count:
            return
        whole = (self._groups.weights(batch, row_weights), *batch)
        with self.sharding.failing(), self._draws.part(self._noise.generator, self.steps):
            take_in = partial(self._take_in, whole, rows_per_unit, recorded)
            guarded(take_in, on_zeros=lambda: self._passes.try_synthetic(whole), clear=self.forget)

    def _take_in(self, batch: Sequence[Any], per_unit: int, recorded: GradientPass | None) -> None:
        """Clip the units of a batch, and add them to the sums."""
        if recorded is not None:
            return self._add(self._passes.taken(batch, per_unit, recorded))
        batch, per_unit = self._groups.drawn(batch, per_unit, self._noise.generator, step=self.steps)
        self._passes.run(batch, per_unit, self._add)

    def _add(self, found: ClippedSums) -> None:
        below = self._adaptation.plus(found.below)
        self.sharding.give_away(found.waiting)
        self._sums.add_(found.sums)  # nothing after it can fail: a piece that fails is added again
        self._adaptation.below = below

    def finish(self) -> None:
        """End a step: add noise to the accumulated sums, divide, set every `.grad`, and count the step."""
        noise_multiplier = self.noise_multiplier  # read once: the step is counted with the noise it got
        try:
            with self.sharding.failing(), self._draws.part(self._noise.generator, self.steps):
                self._noised(noise_multiplier)
                if not self._passes.finite:  # read only now, so that the device had work until here
                    self._run_again()
                    self._noised(noise_multiplier)
            self._record.count(noise_multiplier)
            self._adaptation.update(self._noise.generator, step=self.steps - 1)
            self._sums.to_grad()
        finally:
            self.forget()
        self._passes.step_taken(self.public_rows.per_unit)

    def _noised(self, noise_multiplier: float) -> None:
        """Add noise to the sums, unless they have it already, and divide."""
        if (given := self._passes.noisy_sum(noise_multiplier)) is not None:
            self._sums.add_(given)
        stddev = None if given is not None else noise_multiplier * self.bound
        for total in noisy_totals(self._sums, self.sharding, self._noise, stddev=stddev, step=self.steps):
            total.div_(self.expected_batch_size)

    def _run_again(self) -> None:
        """Compute the sums of this step without recordings: some unit's gradient is not finite."""
        first = self._passes.first

        def again() -> None:
            self._sums.clear()
            self._adaptation.clear()
            self._passes.again(self._add)

        guarded(again, on_zeros=lambda: self._passes.try_synthetic(first), clear=self.forget)

    def forget(self) -> None:
        """Drop the sums accumulated since the last step."""
        self._sums.clear()
        self._adaptation.clear()
        self._passes.clear()

    def released(self) -> dict[str, Tensor]:
        """Return the noisy gradient of every parameter, before it was rounded to the parameter's type.

        An audit tests the noise in these: noise that was rounded to bfloat16 or float16 is not Gaussian.

        Returns:
            The gradients by the name of their parameter.
        """
        return self._sums.released()

    def drop(self) -> None:
        """Set every `.grad` to None."""
        self._sums.drop()

    @contextmanager
    def trying(self) -> Yields[None]:
        """Take steps over synthetic rows that are not counted, with noise of their own.

        They leave nothing but their gradients: `drop` these before the next step.

        Yields:
            Nothing.

        Raises:
            InvalidParameterError: If trials were not allowed, or a step has begun.
        """
        noise, record, clipper = self._noise, self._record, self._clipper.state_dict()
        self._noise = self._trials.begin(noise, begun=self._sums.begun)
        self._record = StepRecord(record.history)
        try:
            yield
        finally:
            self._noise, self._record = noise, record
            self._clipper.load_state_dict(clipper)
            self.forget()

    def alone(self, *batch: Any) -> dict[str, Tensor]:
        """Return the gradient of one synthetic row, computed by a loop: not clipped, without noise.

        Args:
            batch: One row.

        Returns:
            The gradient of each parameter, by name.

        Raises:
            InvalidParameterError: If trials were not allowed.
        """
        self._trials.require()
        return self._passes.alone((None, *batch))

    def rehearse(self, *batch: Any) -> bool:
        """Clip and add up synthetic rows, and keep nothing: this settles how rows of this shape are run.

        Args:
            batch: Synthetic or public rows in the shape of the data.

        Returns:
            Whether the gradients of all these rows are finite: others contribute nothing.

        Raises:
            SfumatoError: As for `backward`.
        """
        return self._passes.rehearse((None, *batch))

    def settle(self, *batch: Any, made_up: Iterable[Sequence[Any]] | None = None) -> None:
        """Rehearse once with synthetic rows that have the shape of a batch's. Each step does so by itself.

        Args:
            batch: Rows, or none: only their nesting, types and shapes are used.
            made_up: Batches of synthetic rows, which are tried in turn; None makes some.

        Raises:
            SfumatoError: As for `rehearse`, or if no synthetic row has a finite gradient.
        """
        self._passes.settle((None, *batch), made_up)

    # --- checkpoints -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs.

        Returns:
            The steps so far and the thresholds; no noise.
        """
        found = self._clipper
        return {"history": list(self.history), "clipper": found.state_dict(), "clip_factor": found.factor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint. Noise continues too: none of it is drawn again for another batch.

        Args:
            state: What `state_dict` returned.

        Raises:
            InvalidParameterError: If steps were taken already.
        """
        self._record.load(state["history"])
        self._clipper.load_state_dict(state["clipper"])
        self._clipper.factor = float(state["clip_factor"])
