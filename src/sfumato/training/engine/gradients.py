# SPDX-License-Identifier: Apache-2.0
"""Private gradients for a training loop of your own.

Guarantee  After `backward`, the `.grad` of every trainable parameter is (S + N) / expected_batch_size: S the
           clipped sum over the batch, to which one unit (or group) adds at most `bound` in L2 norm, and N
           Gaussian noise of standard deviation `noise_multiplier * bound`, fresh at every step. Given the
           batch, that is `step.event(noise_multiplier)`; `event` says what the steps so far cost together.
Pieces     A batch is run in pieces that fit in memory (`microbatch_size`, or as many rows as are found to
           fit): sums add up, and noise comes once.
Empty      A batch without rows is a step like any other: the gradient is noise alone.
Ranks      Under torch.distributed each rank gives its share of the units; shares are added up, with noise
           once (`distributed`). All ranks must call `finish` at every step, also those whose share is empty.
Mending    A unit whose gradient is not finite contributes nothing. A piece that does not fit in memory is
           run again in smaller ones.
Failure    Where a step fails, nothing of it is left: not in the next step's sums, not in any `.grad`. A step
           is counted before its gradient can be seen.
Private    What a model, a loss or torch says where it fails may quote a row ("Target 7 is out of bounds"). It
           is not repeated and not chained. What fails on rows of zeros as well is raised as it is: that
           message tells nothing of the data.
Not here   Which rows are in a batch (`sampling`): an event holds only for the sampler it names.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Generator as Yields
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, QueryFailedError, SfumatoError
from sfumato.mechanisms.random import Generator, uniform_below
from sfumato.training import distributed
from sfumato.training.data import rows
from sfumato.training.engine import parameter_values
from sfumato.training.engine.accumulator import Sums
from sfumato.training.engine.losses import Loss, cross_entropy, weighted
from sfumato.training.engine.passes import Engines, Passes, recorder
from sfumato.training.privacy.clipping import ClippedSums, Clipper, Clipping, CoordinateClipping, GradientPass
from sfumato.training.privacy.dp_sgd import NoisyStep
from sfumato.training.privacy.noise import IndependentNoise, NoiseSource
from sfumato.training.privacy.sampling import Sampling

__all__ = ["Engines", "PrivateGradients"]


_TOLD: Final = (SfumatoError, MemoryError, torch.OutOfMemoryError)  # errors that quote no row


class PrivateGradients:
    """Clipped, noised gradients in `.grad`, one call a step; any optimizer of torch.optim after it.

    `loss(model, *batch)` returns one number for each row. `clipping` says more than `clip_norm` can;
    `group_size` and `projections` are those of `mechanism.NoisyStep`. `compile` and `cuda_graphs` make steps
    faster after the first ones (`recording`).

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
        engine: Engines | str = Engines.AUTO,
        microbatch_size: int | None = None,
        cuda_graphs: bool = False,
        compile: bool = False,
        generator: Generator | None = None,
        noise: NoiseSource | None = None,
        check: bool = True,
        trials: bool = False,
    ) -> None:
        _check.positive(noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size)
        if microbatch_size is not None:
            _check.count(microbatch_size=microbatch_size)
        if (cuda_graphs or compile) and projections is not None:
            raise InvalidParameterError(
                "projections are drawn anew at each step: leave cuda_graphs and compile out."
            )
        if noise is not None and generator is not None:
            raise InvalidParameterError(
                "a noise source has a generator of its own: leave one of the two out."
            )
        self._step = NoisyStep(
            clipping=_clipping(clip_norm, clipping), group_size=group_size, projections=projections
        )
        self.noise_multiplier = noise_multiplier
        self.expected_batch_size = expected_batch_size
        self.parameters = dict(parameter_values.find(model).parameters)
        self._clipper = Clipper(self.step.clipping, self.parameters)
        self._noise = noise if noise is not None else IndependentNoise(generator)
        self._passes = Passes(
            model,
            weighted(loss),
            self._clipper,
            engine=Engines(engine),
            projections=projections,
            generator=self._noise.generator,
            microbatch_size=microbatch_size,
            check=check,
        )
        self._passes.record(
            recorder(cuda_graphs=cuda_graphs, compile=compile), expected_batch_size=expected_batch_size
        )
        self._sums = Sums(self.parameters)
        self._below: Tensor | None = None
        self._clip_factor = 1.0
        self._history: tuple[tuple[float, int], ...] = ()
        self._trials = trials  # whether an audit may take steps that do not count
        self._tried = 0  # so many: no two have the same noise

    @property
    def step(self) -> NoisyStep:
        """What one step does, in privacy terms. It cannot be changed: steps were taken by it."""
        return self._step

    @property
    def history(self) -> tuple[tuple[float, int], ...]:
        """The steps so far: noise multipliers in order, each with how many steps in a row it was used for."""
        return self._history

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return sum(count for _, count in self._history)

    @property
    def bound(self) -> float:
        """The most one unit, or one group of `group_size`, contributes to the sum, in L2 norm."""
        if self._clip_factor == 1.0:
            return self._clipper.bound
        assert isinstance(self.step.clipping, Clipping)  # `scale_clipping` saw to it
        return self.step.clipping.bound(list(self.parameters)) * self._clip_factor

    def scale_clipping(self, factor: float) -> None:
        """Clip the steps to come at `factor` times the clip norm stated, with `factor` times the noise.

        `factor` must not depend on data. Noise and bound grow alike, so the event stays what it was.
        """
        self._clipper.load_state_dict({"thresholds": self._clipper.scaled(factor)})
        self._clip_factor = factor

    @property
    def microbatch_size(self) -> int | None:
        """How many units are run at once; None: as many as fit in memory."""
        return self._passes.microbatch_size

    @property
    def engine(self) -> str:
        """The engine at work: it may have changed from the one asked for, if that was `auto`."""
        return self._passes.engine

    def event(self, sampling: Sampling, *, relation: Relation | str = Relation.ADD_REMOVE) -> DpEvent:
        """Return what the steps so far cost together, if every batch came from `sampling`."""
        released = [(self.step.event(noise), count) for noise, count in self._history]
        return sampling.event(released, relation=Relation.parse(relation))

    def backward(self, *batch: Any, rows_per_unit: int = 1, row_weights: Tensor | None = None) -> None:
        """Take one noisy step over a batch: clip, add up, add noise, divide, and set every `.grad`.

        `rows_per_unit` consecutive rows make one unit, whose gradients are added before clipping; each row's
        loss is first multiplied by its entry of `row_weights` (0 for padding, 1/k to average k rows).
        """
        self.accumulate(*batch, rows_per_unit=rows_per_unit, row_weights=row_weights)
        self.finish()

    def accumulate(
        self,
        *batch: Any,
        rows_per_unit: int = 1,
        row_weights: Tensor | None = None,
        checked_rows: Tensor | None = None,
        recorded: GradientPass | None = None,
    ) -> None:
        """Add the clipped sum over a part of the batch; `finish` ends the step.

        Where it fails, the whole step starts anew: a unit that was added already must not be added again.
        `checked_rows` are the numbers of the rows that the self-check may look at: all where it is None. Rows
        that are nobody's must be left out, as they could not show what the check is there for.
        `recorded` is a pass over these rows that was made already; it takes the place of the first one here.
        """
        _check.count(rows_per_unit=rows_per_unit)
        count = rows.count(batch)
        if count % rows_per_unit:
            raise InvalidParameterError(
                f"a batch must hold whole units of rows_per_unit={rows_per_unit} rows. Pad each unit to that "
                "many rows, with row_weights of 0 for the padding."
            )
        if not count:
            return
        if row_weights is None and self.step.group_size > 1:
            row_weights = next(iter(rows.tensors(batch))).new_ones(count, dtype=torch.float32)
        whole = (row_weights, *batch)
        self._guarded(lambda: self._take_in(whole, rows_per_unit, checked_rows, recorded), whole)

    def _take_in(
        self, batch: Sequence[Any], per_unit: int, checked_rows: Tensor | None, recorded: GradientPass | None
    ) -> None:
        if checked_rows is None or not self._passes.unchecked:
            self._passes.check(batch)
        else:
            self._passes.check(rows.take(batch, checked_rows))
        if recorded is not None:
            self._add(self._passes.taken(batch, per_unit, recorded))
            return
        if self.step.group_size > 1:
            batch, per_unit = self._grouped(batch, per_unit)
        self._passes.run(batch, per_unit, self._add)

    def forget(self) -> None:
        """Drop what was accumulated since the last step: it was never released."""
        self._clear()

    def _guarded(self, work: Callable[[], None], batch: Sequence[Any]) -> None:
        """Do work on private rows. Where it fails nothing is left of the step, and no message quotes one."""
        try:
            work()
            return
        except Exception as error:
            self._clear()
            if isinstance(error, _TOLD):
                _unchain(error)
                raise
            failure = type(error).__name__
        except BaseException:
            self._clear()
            raise
        # Out of the handler: there, whatever is raised would be chained to what must not be told.
        self._passes.try_zeros(batch)
        raise QueryFailedError(
            f"the model or the loss failed on the rows of a batch ({failure}), and does not fail on rows of "
            "zeros. What it said is left out, as it may quote private values. Check what the loss asks of "
            "rows: whole-number labels in 0 ... classes - 1, token numbers below the size of the vocabulary, "
            "inputs of the kind and range that the model is made for."
        )

    def finish(self) -> None:
        """End a step: add noise to the accumulated sums, divide, set every `.grad`, and count the step."""
        noise_multiplier = self.noise_multiplier  # read once: the step is counted with what it got
        try:
            self._noised(noise_multiplier)
            # Asked only now, so that the device has had work until here.
            if not self._passes.finite:
                self._guarded(self._again, self._passes.first)
                self._noised(noise_multiplier)
            self._count(noise_multiplier)
            self._adapt()
            self._sums.to_grad()
        finally:
            self._clear()

    def _noised(self, noise_multiplier: float) -> None:
        sums = self._sums.flat()
        if distributed.is_first():  # before the shares are added up: so there is noise once, the same for all
            self._noise.add_(sums, stddev=noise_multiplier * self.bound, step=self.steps)
        distributed.add_up_(sums)
        for total in sums:
            total.div_(self.expected_batch_size)

    def _again(self) -> None:
        """Compute the sums of this step anew, without recordings: a unit's gradient is not finite."""
        self._sums.clear()
        self._below = None
        self._passes.again(self._add)

    def _clear(self) -> None:
        self._sums.clear()
        self._below = None
        self._passes.clear()

    def _adapt(self) -> None:
        if self._clipper.adaptive is None:
            return
        below = self._below if self._below is not None else torch.zeros(len(self._clipper.groups))
        below = below.to(next(iter(self.parameters.values())).device, torch.float64)  # alike on all ranks
        distributed.add_up_([below])
        if distributed.is_first():
            self._clipper.adapt(
                below,
                expected_batch_size=self._expected_groups(),
                generator=self._noise.generator.fork("clip", self.steps - 1),
                sensitivity=self.step.sensitivity,
            )
        self._same_thresholds(below.device)

    def _same_thresholds(self, device: torch.device) -> None:
        if distributed.size() > 1:
            own = torch.tensor(self._clipper.thresholds, dtype=torch.float64, device=device)
            self._clipper.load_state_dict({"thresholds": distributed.from_first(own).tolist()})

    def _count(self, noise_multiplier: float) -> None:
        *before, (noise, count) = self._history or ((noise_multiplier, 0),)
        same = noise == noise_multiplier
        last = [(noise, count + 1)] if same else [(noise, count), (noise_multiplier, 1)]
        self._history = (*before, *last)

    @contextmanager
    def trying(self) -> Yields[None]:
        """Take steps over rows that are nobody's: they do not count, and leave nothing but their gradients.

        Their noise is drawn for them alone, as noise of the step to come must not be seen before it. When
        their gradients were looked at, `drop` them.
        """
        self._require_trials()
        if self._sums.begun:
            raise InvalidParameterError(
                "a step has begun: end it with `finish` before anything is tried out."
            )
        noise, history, clipper = self._noise, self._history, self._clipper.state_dict()
        self._tried += 1
        self._noise = noise.forked("trial", self._tried)
        try:
            yield
        finally:
            self._noise, self._history = noise, history
            self._clipper.load_state_dict(clipper)
            self._clear()

    def released(self) -> dict[str, Tensor]:
        """Return the noisy gradient of every parameter, before it was rounded to the parameter's type.

        An audit tests the noise in these: noise that was rounded to bfloat16 or float16 is not Gaussian.
        """
        return self._sums.released()

    def drop(self) -> None:
        """Take every gradient away, such as those of a trial."""
        self._sums.hide()
        for parameter in self.parameters.values():
            parameter.grad = None

    def alone(self, *batch: Any) -> dict[str, Tensor]:
        """Return the gradient of one row that is nobody's, as a loop gives it: not clipped, without noise."""
        self._require_trials()
        return self._passes.alone((None, *batch))

    def _require_trials(self) -> None:
        if not self._trials:
            raise InvalidParameterError(
                "only an audit takes steps that do not count, with rows that are nobody's. Train with "
                "audit=Canaries(...)."
            )

    def rehearse(self, *batch: Any) -> bool:
        """Clip and add up rows that are nobody's, and keep nothing: what cannot work raises here.

        Return whether the gradients of all these rows are finite: others contribute nothing.
        """
        return self._passes.rehearse((None, *batch))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs: the steps so far and the thresholds; no noise."""
        return {
            "history": list(self._history),
            "clipper": self._clipper.state_dict(),
            "clip_factor": self._clip_factor,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint. Noise goes on too: none of it is drawn again for another batch."""
        if self._history:
            raise InvalidParameterError(
                "steps were taken already, and a checkpoint would replace the record of them. Load it into "
                "PrivateGradients that took no step yet."
            )
        self._clipper.load_state_dict(state["clipper"])
        self._clip_factor = float(state["clip_factor"])
        self._history = tuple((float(noise), int(count)) for noise, count in state["history"])

    def _add(self, found: ClippedSums) -> None:
        below = found.below
        if below is not None and self._below is not None:
            below = below + self._below.to(below.device)
        self._sums.add_(found.sums)  # the last that could fail: what fails is run again
        self._below = self._below if below is None else below

    def _expected_groups(self) -> float:
        """Return how many units, or groups where averages are clipped, a batch is expected to have."""
        size = self.step.group_size
        return self.expected_batch_size if size == 1 else max(1, round(self.expected_batch_size / size))

    def _grouped(self, batch: Sequence[Any], per_unit: int) -> tuple[Sequence[Any], int]:
        """Put each unit into a group drawn for it alone, and pad the groups to the same number of rows."""
        distributed.refuse_groups(self.step.group_size)
        units = rows.count(batch) // per_unit
        groups = int(self._expected_groups())
        drawn = uniform_below(groups, units, self._noise.generator.fork("groups", self.steps))
        members = torch.from_numpy(drawn)
        order = members.argsort(stable=True)
        sizes = members.bincount(minlength=groups)
        most = int(sizes.max())
        place = torch.arange(units) - (sizes.cumsum(0) - sizes)[members[order]]
        index = torch.full((groups, most), units)  # one past the last unit: a row of zeros
        index[members[order], place] = order
        flat = (index[:, :, None] * per_unit + torch.arange(per_unit)).flatten()
        with_zeros = rows.padded(batch, (units + 1) * per_unit)
        device = next(iter(rows.tensors(batch))).device
        weights, *rest = rows.take(with_zeros, flat.to(device))
        return (weights / self.step.group_size, *rest), most * per_unit


def _unchain(error: BaseException) -> None:
    """Forget what an error of ours was made of, where that is not ours: it may quote a row."""
    waiting, seen = [error], list[BaseException]()
    while waiting:
        behind = waiting.pop()
        seen.append(behind)
        if not isinstance(behind.__cause__, _TOLD):
            behind.__cause__ = None
        if not isinstance(behind.__context__, _TOLD):
            behind.__context__ = None
        waiting += [e for e in (behind.__cause__, behind.__context__) if e is not None and e not in seen]


def _clipping(
    clip_norm: float | None, clipping: Clipping | CoordinateClipping | None
) -> Clipping | CoordinateClipping:
    if (clip_norm is None) == (clipping is None):
        raise InvalidParameterError("give either clip_norm or clipping, and not both.")
    return Clipping(clip_norm=clip_norm) if clipping is None else clipping
