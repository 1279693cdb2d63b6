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

import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import (
    InvalidParameterError,
    QueryFailedError,
    SfumatoError,
    UnsupportedModelError,
    UnsupportedUseError,
)
from sfumato.mechanisms.random import Generator, uniform_below
from sfumato.training import distributed, fixing, rows, swapping
from sfumato.training.barrier import Barrier, fill_caches, refuse_unsafe
from sfumato.training.book_keeping import BookKeeping
from sfumato.training.checking import Engine, refuse_other_routes, same_draws, self_check
from sfumato.training.clipping import ClippedSums, Clipper, Clipping, CoordinateClipping, GradientPass
from sfumato.training.compiling import Compiling
from sfumato.training.fitting import rows_that_fit
from sfumato.training.functional import Functional
from sfumato.training.graphs import CudaGraphs
from sfumato.training.losses import Loss, cross_entropy, weighted
from sfumato.training.mechanism import NoisyStep
from sfumato.training.noise import IndependentNoise, NoiseSource
from sfumato.training.projections import Projections
from sfumato.training.recording import Recorder, Recordings, Replay
from sfumato.training.sampling import Sampling
from sfumato.training.sums import Sums

__all__ = ["Engines", "PrivateGradients"]


T = TypeVar("T")

_SIZES = 8  # of batches that recordings are made for, up to the expected one
_ZEROS: Final = 2  # rows that a failure is repeated on: one would not show a batch axis
_TOLD: Final = (SfumatoError, MemoryError, torch.OutOfMemoryError)  # errors that quote no row


class Engines(Enum):
    """Ways to get clipped sums. They agree; they differ in speed, memory and in what they support."""

    AUTO = "auto"  # book-keeping, or functional where an operation has no rule
    BOOK_KEEPING = "book-keeping"
    FUNCTIONAL = "functional"


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
        refuse_unsafe(model)
        self._may_mix = any(hasattr(module, "running_mean") for module in model.modules())
        self._step = NoisyStep(
            clipping=_clipping(clip_norm, clipping), group_size=group_size, projections=projections
        )
        self.noise_multiplier = noise_multiplier
        self.expected_batch_size = expected_batch_size
        self.microbatch_size = microbatch_size  # units at once; None: as many as fit
        self._fitting: int | None = None  # rows at once, once measured
        self.parameters = dict(swapping.find(model).parameters)
        self._clipper = Clipper(self.step.clipping, self.parameters)
        self._model, self._loss = model, weighted(loss)
        self._barrier = Barrier(model)
        self._noise = noise if noise is not None else IndependentNoise(generator)
        self._kind = Engines(engine)
        self._engine = self._make_engine()
        self._recordings = self._make_recordings(_recorder(cuda_graphs=cuda_graphs, compile=compile))
        self._unchecked = check
        self._sums = Sums(self.parameters)
        self._below: Tensor | None = None
        self._pieces: list[tuple[Replay | None, Sequence[Any], int]] = []  # of this step, if recorded
        self._clip_factor = 1.0
        self._history: tuple[tuple[float, int], ...] = ()

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
    def engine(self) -> str:
        """The engine at work: it may have changed from the one asked for, if that was `auto`."""
        return type(self._engine).__name__

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
        checked_rows: int | None = None,
        recorded: GradientPass | None = None,
    ) -> None:
        """Add the clipped sum over a part of the batch; `finish` ends the step.

        Where it fails, the whole step starts anew: a unit that was added already must not be added again.
        `checked_rows` is how many rows, from the first on, the self-check may look at: all where it is None.
        Rows that are nobody's must come after them, as they could not show what the check is there for.
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
        self, batch: Sequence[Any], per_unit: int, checked_rows: int | None, recorded: GradientPass | None
    ) -> None:
        self._self_check(batch if checked_rows is None else rows.take(batch, slice(0, checked_rows)))
        if recorded is not None:
            with self._barrier.guarding():
                found = self._clipped(batch, per_unit, recorded)
            self._add(found)
            return
        if self.step.group_size > 1:
            batch, per_unit = self._grouped(batch, per_unit)
        self._run(batch, per_unit)

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
        self._try_zeros(batch)
        raise QueryFailedError(
            f"the model or the loss failed on the rows of a batch ({failure}), and does not fail on rows of "
            "zeros. What it said is left out, as it may quote private values. Check what the loss asks of "
            "rows: whole-number labels in 0 ... classes - 1, token numbers below the size of the vocabulary, "
            "inputs of the kind and range that the model is made for."
        )

    def _try_zeros(self, batch: Sequence[Any]) -> None:
        """Run rows of zeros in the shape of a batch's: what fails on these may be told."""
        zeros = rows.padded(rows.take(batch, slice(0, 0)), _ZEROS)
        with same_draws(self._model), self._barrier.undoing():
            Functional(self._model, self._loss, vectorized=False).run(zeros)

    def finish(self) -> None:
        """End a step: add noise to the accumulated sums, divide, set every `.grad`, and count the step."""
        noise_multiplier = self.noise_multiplier  # read once: the step is counted with what it got
        try:
            self._noised(noise_multiplier)
            # Asked only now, so that the device has had work until here.
            if not all(replay is None or replay.finite() for replay, _, _ in self._pieces):
                self._guarded(self._again, self._pieces[0][1])
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
        """Compute the sums of this step anew, without graphs: a unit's gradient is not finite."""
        pieces = [(batch, per_unit) for _, batch, per_unit in self._pieces]
        self._clear()
        for batch, per_unit in pieces:
            self._add(self._barred(partial(self._clipped, batch, per_unit), batch))

    def _clear(self) -> None:
        self._sums.clear()
        self._below = None
        self._pieces = []

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

    def rehearse(self, *batch: Any) -> bool:
        """Clip and add up rows that are nobody's, and keep nothing: what cannot work raises here.

        Return whether the gradients of all these rows are finite: others contribute nothing.
        """
        whole = (None, *batch)
        with same_draws(self._model):
            found = self._barred(lambda: self._clipper.sums(self._pass(whole, 1)), whole)
            return not isinstance(found, Tensor)

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

    # --- one piece ---------------------------------------------------------------------------------------

    def _run(self, batch: Sequence[Any], per_unit: int) -> None:
        units = rows.count(batch) // per_unit
        begin = 0
        while begin < units:
            size = min(self._units_at_once(batch, per_unit), units - begin)
            part = slice(begin * per_unit, (begin + size) * per_unit)
            piece = batch if size == units else rows.take(batch, part)
            try:
                self._add(self._barred(partial(self._piece, piece, per_unit, len(self._pieces)), piece))
                begin += size
            except (torch.OutOfMemoryError, MemoryError) as error:
                self._halve(size, error)

    def _piece(self, batch: Sequence[Any], per_unit: int, earlier: int) -> ClippedSums:
        del self._pieces[earlier:]  # what an attempt before left
        return self._replay(batch, per_unit) or self._clipped(batch, per_unit)

    def _barred(self, work: Callable[[], T], batch: Sequence[Any]) -> T:
        """Do work that runs rows of a batch through the model, which may keep nothing of them."""
        slow = isinstance(self._engine, Functional) and not self._engine.vectorized
        return self._barrier.run(work, lambda: self._settle(batch), thorough=slow or None)

    def _settle(self, batch: Sequence[Any]) -> None:
        """Let the model fill its caches with made-up rows, which it sees as the engine shows it rows."""
        together = isinstance(self._engine, Projections)  # all other engines show one row at a time
        count = _ZEROS + (rows.count(batch) == _ZEROS) if together else 1
        made_up = rows.made_up(rows.padded(rows.take(batch, slice(0, 0)), count))
        with same_draws(self._model), swapping.as_written():
            fill_caches(lambda made: self._loss(self._model, *made), made_up)

    def _units_at_once(self, batch: Sequence[Any], per_unit: int) -> int:
        if self.microbatch_size is not None:
            return self.microbatch_size
        if self._fitting is None:
            whole = isinstance(self._engine, Functional)  # it keeps a gradient for each row
            more = sum(p.numel() * p.element_size() for p in self.parameters.values()) if whole else 0
            try:
                with same_draws(self._model), self._barrier.undoing():
                    self._fitting = rows_that_fit(self._model, self._loss, batch, more=more)
            except (torch.OutOfMemoryError, MemoryError):
                self._fitting = 1  # not even the few rows that it is measured on
        return max(1, self._fitting // per_unit)

    def _halve(self, size: int, error: BaseException) -> None:
        if size == 1:
            raise InvalidParameterError(
                "one unit's gradients alone do not fit in memory. Use a smaller model, a coarser data type, "
                "or freeze a part of it."
            ) from error
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.microbatch_size = 1 << ((size - 1).bit_length() - 1)  # half, but the exact size is private
        warnings.warn(
            f"a piece did not fit in memory; going on with microbatch_size={self.microbatch_size}. Give it "
            "from the start to save the failed attempt.",
            stacklevel=7,
        )

    def _clipped(
        self, batch: Sequence[Any], per_unit: int, recorded: GradientPass | None = None
    ) -> ClippedSums:
        """Clip one piece and add up; units whose gradient is not finite are left out."""
        if self._clipper.adaptive is not None:
            batch = _without_padding(batch, per_unit)
        units = rows.count(batch) // per_unit
        if not units:
            return ClippedSums({})
        found = self._clipper.sums(recorded or self._pass(batch, per_unit))
        while isinstance(found, Tensor):  # which units are finite
            batch = rows.take(batch, found.repeat_interleave(per_unit))
            if not rows.count(batch):
                return ClippedSums({}, torch.full((len(self._clipper.groups),), -0.5 * units))
            found = self._clipper.sums(self._pass(batch, per_unit))
        return found.without(units - rows.count(batch) // per_unit)

    def _replay(self, batch: Sequence[Any], per_unit: int) -> ClippedSums | None:
        if self._recordings is None:
            return None
        if not self._recordings.takes(batch):
            self._pieces.append((None, batch, per_unit))
            return None
        try:
            replay = self._recordings.replay(batch, per_unit)
        except UnsupportedUseError:
            return None  # the pass that follows settles which engine can run it
        sums = replay.sums
        if self._clipper.adaptive is not None:
            sums = sums.without(replay.padding + float((~_real(batch, per_unit)).sum()))
        if distributed.size() > 1:  # ranks must agree on what they add up, so this one looks at once
            return sums if replay.finite() else None
        self._pieces.append((replay, batch, per_unit))
        return sums

    def _add(self, found: ClippedSums) -> None:
        below = found.below
        if below is not None and self._below is not None:
            below = below + self._below.to(below.device)
        self._sums.add_(found.sums)  # the last that could fail: what fails is run again
        self._below = self._below if below is None else below

    def _pass(self, batch: Sequence[Any], per_unit: int) -> GradientPass:
        try:
            return self._engine.run(batch, per_unit=per_unit)
        except UnsupportedUseError as error:
            if not isinstance(self._engine, BookKeeping):
                raise
            reason = error
        self._barrier.rewind()
        engine = Functional(self._model, self._loss)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.func.vmap cannot run")  # one warning is enough
            found = engine.run(batch, per_unit=per_unit)  # raises again where the engine was not the reason
        if self._kind is not Engines.AUTO:
            raise reason
        self._kind, self._engine, self._recordings = Engines.FUNCTIONAL, engine, None
        how = "which is slower" if engine.vectorized else "row by row, which is slow"
        warnings.warn(f"{reason} Going on with the functional engine, {how}.", stacklevel=9)
        return found

    def _make_engine(self) -> Engine:
        if self.step.projections is not None:
            return Projections(
                self._model, self._loss, projections=self.step.projections, generator=self._noise.generator
            )
        if self._kind is Engines.FUNCTIONAL:
            return Functional(self._model, self._loss)
        return BookKeeping(self._model, self._loss)

    def _make_recordings(self, recorder: Recorder | None) -> Recordings | None:
        if recorder is None:
            return None
        if isinstance(self.step.clipping, CoordinateClipping):
            raise InvalidParameterError(
                "clipping by coordinate keeps every unit's gradient: leave cuda_graphs and compile out."
            )
        step = max(1, int(self.expected_batch_size) // _SIZES)
        return Recordings(self._engine, self._clipper, self._model, recorder, step=step)

    def _self_check(self, batch: Sequence[Any]) -> None:
        if self._may_mix:
            fixing.refuse_mixing(self._model)  # it may be in another mode than it was
        if not self._unchecked:
            return
        batch = _without_padding(batch, 1)
        if not rows.count(batch):
            return
        if list(swapping.find(self._model).parameters) != list(self.parameters):
            raise InvalidParameterError(
                "what is trainable in the model has changed since training was set up: parameters were "
                "frozen or unfrozen. Set training up again after it."
            )
        with same_draws(self._model):
            self._barred(partial(self._pass, rows.take(batch, slice(0, 1)), 1), batch)  # settles the engine
            with self._barrier.undoing():
                refuse_other_routes(self._model, self._loss, batch)
        self._refuse_never_finite(batch)
        checked = isinstance(self._engine, Functional)
        check = partial(self_check, self._engine, self._model, self._loss, batch)
        self._unchecked = not (checked or self._barred(check, batch))

    def _refuse_never_finite(self, batch: Sequence[Any]) -> None:
        """Raise where no made-up row has a finite gradient: neither would any of the data's, all alone."""
        if self._finite_somewhere(batch):
            return
        raise UnsupportedModelError(
            "the gradient of a single row is not finite, whatever the row is: it was tried on rows of zeros, "
            "of ones and of random numbers. Each row is learned from alone, so a model that divides by a "
            "deviation over the batch has no gradient. Normalize within a row (GroupNorm, LayerNorm)."
        )

    def _finite_somewhere(self, batch: Sequence[Any]) -> bool:
        weights, *own = rows.take(batch, slice(0, 1))
        for made in rows.made_up(own):
            try:
                with same_draws(self._model), self._barrier.undoing():
                    found = self._clipper.sums(self._engine.run((weights, *made)))
            except Exception:  # such rows are no input of this model: they show nothing
                return True
            if not isinstance(found, Tensor):
                return True
        return False

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


def _recorder(*, cuda_graphs: bool, compile: bool) -> Recorder | None:
    inside = Compiling() if compile else None
    return CudaGraphs(inside) if cuda_graphs else inside


def _real(batch: Sequence[Any], per_unit: int) -> Tensor:
    """Return which units are not padding, whose rows all have a weight of 0: [units] of bool."""
    weights, *rest = batch
    if weights is None:
        found = next(iter(rows.tensors(rest)))
        return torch.ones(found.shape[0] // per_unit, dtype=torch.bool, device=found.device)
    return (weights.reshape(-1, per_unit) != 0).any(1)


def _without_padding(batch: Sequence[Any], per_unit: int) -> Sequence[Any]:
    real = _real(batch, per_unit)
    return batch if bool(real.all()) else rows.take(batch, real.repeat_interleave(per_unit))


def _clipping(
    clip_norm: float | None, clipping: Clipping | CoordinateClipping | None
) -> Clipping | CoordinateClipping:
    if (clip_norm is None) == (clipping is None):
        raise InvalidParameterError("give either clip_norm or clipping, and not both.")
    return Clipping(clip_norm=clip_norm) if clipping is None else clipping
