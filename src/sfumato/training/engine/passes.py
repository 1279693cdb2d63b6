# SPDX-License-Identifier: Apache-2.0
"""Passes over private rows: which engine runs them, in which pieces, and which checks are made.

Guarantee  The clipped sums that `run` adds are those of all units of a batch, each counted once: a piece that
           fails is run again as a whole, and a unit whose gradient is not finite is left out. Every pass goes
           through the release barrier (`integrity.release_barrier`).
Edge cases If rows cannot be isolated, the functional engine is used, unless an engine was chosen by name. It
           must be able to run the batch, or its own error is raised.
Failure    A model that is not private, or whose gradients are not those of a loop, is refused before its
           first sums are added.
Not here   Noise, and the record of steps (`gradients`). Recordings (`recorded_pieces`).
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError, UnsupportedModelError, UnsupportedUseError
from sfumato.mechanisms.random import Generator
from sfumato.training.data import rows
from sfumato.training.engine import parameter_values
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.contributions import (
    ContributionPasses,
    Contributor,
    NoisySummer,
    NoisySumPasses,
)
from sfumato.training.engine.functional import Functional
from sfumato.training.engine.losses import Loss
from sfumato.training.engine.microbatches import rows_that_fit
from sfumato.training.engine.projections import Projections
from sfumato.training.engine.recorded_pieces import RecordedPieces, real_units, recorder
from sfumato.training.engine.self_check import refuse_other_routes, same_draws, self_check
from sfumato.training.engine.step.settings import Engines, PassSettings
from sfumato.training.fast.pass_cache import Recorder
from sfumato.training.integrity.release_barrier import Barrier, fill_caches, refuse_unsafe
from sfumato.training.models import batch_norm
from sfumato.training.privacy.clipping import ClippedSums, Clipper
from sfumato.training.privacy.gradient_pass import Engine, GradientPass

__all__ = ["Passes", "open_passes"]

T = TypeVar("T")

_ZEROS: Final = 2  # rows that a failure is repeated on: one would not show a batch axis


class Passes:
    """The passes of one model, one loss and one style of clipping."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clipper: Clipper,
        *,
        settings: PassSettings,
        projections: int | None,
        generator: Generator,
        expected_batch_size: float,
    ) -> None:
        refuse_unsafe(model)
        self.microbatch_size = settings.microbatch_size  # units at once; None: as many as fit
        self._model, self._loss, self._clipper = model, loss, clipper
        self._parameters = parameter_values.find(model).parameters
        self._may_mix = any(hasattr(module, "running_mean") for module in model.modules())
        assert isinstance(settings.engine, Engines)  # `PassSettings` made it one
        self._kind, self._unchecked = settings.engine, settings.check
        self._barrier = Barrier(model)
        self._engine = self._make_engine(projections, generator)
        self._replays = RecordedPieces(clipper)
        self._fitting: int | None = None  # rows at once, once measured
        self.record(recorder(settings), expected_batch_size=expected_batch_size)

    @property
    def engine(self) -> str:
        """The name of the engine at work."""
        return type(self._engine).__name__

    @property
    def finite(self) -> bool:
        """Whether all sums that were replayed since `clear` are finite. It waits for the device."""
        return self._replays.finite

    @property
    def first(self) -> Sequence[Any]:
        """The first batch that was replayed since `clear`."""
        return self._replays.first

    def clear(self) -> None:
        """Forget what was replayed: a step has ended."""
        self._replays.take_all()

    def record(self, recorder: Recorder | None, *, expected_batch_size: float) -> None:
        """Keep faster versions of passes from now on; none without a recorder."""
        self._replays.record(recorder, self._engine, self._model, expected_batch_size=expected_batch_size)

    def run(self, batch: Sequence[Any], per_unit: int, add: Callable[[ClippedSums], None]) -> None:
        """Clip a batch in pieces that fit in memory, and `add` the sums of each."""
        units = rows.count(batch) // per_unit
        begin = 0
        while begin < units:
            size = min(self._units_at_once(batch, per_unit), units - begin)
            part = slice(begin * per_unit, (begin + size) * per_unit)
            piece = batch if size == units else rows.take(batch, part)
            try:
                again = partial(self._replays.replay, piece, per_unit, record=False)
                found = self._barred(partial(self._piece, piece, per_unit), piece, again)
                self._replays.keep(piece, per_unit)
                add(found)
                begin += size
            except (torch.OutOfMemoryError, MemoryError) as error:
                self._halve(size, error)

    def noisy_sum(self, noise_multiplier: float) -> None:
        """Return None: noise must be added to the sums."""
        return None

    def again(self, add: Callable[[ClippedSums], None]) -> None:
        """Compute the sums since `clear` anew, without recordings: a unit's gradient is not finite."""
        for piece in self._replays.take_all():
            add(self._barred(partial(self._clipped, piece.batch, piece.per_unit), piece.batch))

    def taken(self, batch: Sequence[Any], per_unit: int, recorded: GradientPass) -> ClippedSums:
        """Return the clipped sums of a pass that was made already."""
        with self._barrier.guarding():
            found = self._clipped(batch, per_unit, recorded)
        self._replays.keep(batch, per_unit)
        return found

    def rehearse(self, batch: Sequence[Any]) -> bool:
        """Clip synthetic rows; return whether the gradients of all of them are finite."""
        with same_draws(self._model):
            found = self._barred(lambda: self._clipper.sums(self._pass(batch, 1)), batch)
            return not isinstance(found, Tensor)

    def alone(self, batch: Sequence[Any]) -> dict[str, Tensor]:
        """Return the gradient of one synthetic row, by the reference that engines are compared with."""
        with same_draws(self._model), self._barrier.undoing():
            found = Functional(self._model, self._loss, vectorized=False).run(batch)
            return {name: found.per_unit(name)[0] for name in self._parameters}

    def try_zeros(self, batch: Sequence[Any]) -> None:
        """Run rows of zeros in the shape of a batch's: an error on these quotes no private row."""
        zeros = rows.padded(rows.take(batch, slice(0, 0)), _ZEROS)
        with same_draws(self._model), self._barrier.undoing():
            Functional(self._model, self._loss, vectorized=False).run(zeros)

    def check(self, batch: Sequence[Any], *, among: Tensor | None = None) -> None:
        """Check on the first rows whether an engine is wrong for this model; raise if so.

        `among`: the numbers of the rows that may be looked at; None: all.
        """
        if self._may_mix:
            batch_norm.refuse_mixing(self._model)  # its mode may have changed
        if not self._unchecked:
            return
        batch = _without_padding(batch if among is None else rows.take(batch, among), 1)
        if not rows.count(batch):
            return
        if list(parameter_values.find(self._model).parameters) != list(self._parameters):
            raise InvalidParameterError(
                "the trainable parameters of the model have changed since training was set up: some were "
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
        """Raise if no synthetic row has a finite gradient: no row of the data would have one either, "
        "alone."""
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
            except Exception:  # such rows are not inputs of this model, so they show nothing
                return True
            if not isinstance(found, Tensor):
                return True
        return False

    # --- one piece ---------------------------------------------------------------------------------------

    def _piece(self, batch: Sequence[Any], per_unit: int) -> ClippedSums:
        return self._replays.replay(batch, per_unit, record=True) or self._clipped(batch, per_unit)

    def _barred(
        self, work: Callable[[], T], batch: Sequence[Any], again: Callable[[], T | None] | None = None
    ) -> T:
        """Do work that runs rows of a batch through the model, which may keep nothing of them."""
        slow = isinstance(self._engine, Functional) and not self._engine.vectorized
        settle = partial(self._settle, batch)
        return self._barrier.run(work, settle, replay=again, thorough=slow or None)

    def _settle(self, batch: Sequence[Any]) -> None:
        """Let the model fill its caches with synthetic rows, in the way in which the engine shows it rows."""
        together = isinstance(self._engine, Projections)  # all other engines show one row at a time
        count = _ZEROS + (rows.count(batch) == _ZEROS) if together else 1
        made_up = rows.made_up(rows.padded(rows.take(batch, slice(0, 0)), count))
        with same_draws(self._model), parameter_values.as_written():
            fill_caches(lambda made: self._loss(self._model, *made), made_up)

    def _units_at_once(self, batch: Sequence[Any], per_unit: int) -> int:
        if self.microbatch_size is not None:
            return self.microbatch_size
        if self._fitting is None:
            whole = isinstance(self._engine, Functional)  # it keeps a gradient for each row
            more = sum(p.numel() * p.element_size() for p in self._parameters.values()) if whole else 0
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
            f"a piece did not fit in memory; going on with microbatch_size={self.microbatch_size}. Pass it "
            "from the start to avoid the failed attempt.",
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
            found = engine.run(batch, per_unit=per_unit)  # raises again if the engine was not the reason
        if self._kind is not Engines.AUTO:
            raise reason
        self._kind, self._engine = Engines.FUNCTIONAL, engine
        self._replays.stop()
        how = "which is slower" if engine.vectorized else "row by row, which is slow"
        warnings.warn(f"{reason} Going on with the functional engine, {how}.", stacklevel=9)
        return found

    def _make_engine(self, projections: int | None, generator: Generator) -> Engine:
        if projections is not None:
            return Projections(self._model, self._loss, projections=projections, generator=generator)
        if self._kind is Engines.FUNCTIONAL:
            return Functional(self._model, self._loss)
        return BookKeeping(self._model, self._loss)


def _without_padding(batch: Sequence[Any], per_unit: int) -> Sequence[Any]:
    real = real_units(batch, per_unit)
    return batch if bool(real.all()) else rows.take(batch, real.repeat_interleave(per_unit))


def open_passes(
    model: nn.Module,
    loss: Loss,
    clipper: Clipper,
    *,
    settings: PassSettings,
    projections: int | None,
    generator: Generator,
    expected_batch_size: float,
    step: Callable[[], int],
) -> Passes | ContributionPasses | NoisySumPasses:
    """Return the passes of a model, or those of what takes its place: a contributor or a noisy sum."""
    if isinstance(settings.engine, NoisySummer):
        return NoisySumPasses(model, settings.engine, step=step)
    if isinstance(settings.engine, Contributor):
        return ContributionPasses(
            model, clipper, settings.engine, microbatch_size=settings.microbatch_size, step=step
        )
    return Passes(
        model,
        loss,
        clipper,
        settings=settings,
        projections=projections,
        generator=generator,
        expected_batch_size=expected_batch_size,
    )
