# SPDX-License-Identifier: Apache-2.0
"""Passes over private rows: which engine runs them, in which pieces, and which checks are made.

Guarantee  The clipped sums that `run` adds are those of all units of a batch, each counted once: a piece that
           fails is run again as a whole, and a unit whose gradient is not finite is left out. Every pass goes
           through the release barrier (`integrity.release_barrier`). No row decides which engine runs, or
           whether a check or a pass fails: synthetic rows of the same shape do (`rehearsal`).
Edge cases If rows cannot be isolated, the functional engine is used, unless an engine was chosen by name. It
           must be able to run synthetic rows, or its own error is raised. A unit on whose rows the model or
           the loss fails, though it does not fail on synthetic rows, contributes nothing; the other units of
           its piece are run one by one. Modes of torch that a row changes are put back (`data.modes`). Where
           rows run one by one, what their code prints, logs or warns of is not shown (`data.silence`).
Failure    A model that is not private, or whose gradients are not those of a loop, is refused before the
           first private row is run. So is one that keeps something of rows, whenever that is seen.
Not here   Noise, and the record of steps (`gradients`). Recordings (`recorded_pieces`, `faster_passes`).
"""

import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from sfumato._failures import ordinary
from sfumato.errors import InvalidParameterError, NotPrivateError, UnsupportedUseError
from sfumato.mechanisms.random import Generator as Randomness
from sfumato.training.data import rows
from sfumato.training.data.modes import kept_modes
from sfumato.training.data.silence import silent
from sfumato.training.distributed import OtherRankError
from sfumato.training.engine import parameter_values
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.functional import Functional
from sfumato.training.engine.losses import Loss
from sfumato.training.engine.microbatches import halved, rows_that_fit
from sfumato.training.engine.projections import Projections
from sfumato.training.engine.recording.faster_passes import FasterPasses
from sfumato.training.engine.recording.recorded_pieces import RecordedPieces, real_units
from sfumato.training.engine.rehearsal import Rehearsed, rehearse_any, synthetic
from sfumato.training.engine.self_check import refuse_other_routes, same_draws, self_check
from sfumato.training.engine.step.settings import Engines, PassSettings
from sfumato.training.fast.pass_cache import Recorder
from sfumato.training.fast.sizes import Sizes
from sfumato.training.integrity.release_barrier import Barrier, fill_caches, refuse_unsafe
from sfumato.training.models import batch_norm
from sfumato.training.privacy.clipping import ClippedSums, Clipper
from sfumato.training.privacy.gradient_pass import Engine, GradientPass

__all__ = ["Passes"]

T = TypeVar("T")

_ZEROS: Final = 2  # rows that caches are filled with: one would not show a batch axis
_ALWAYS: Final = (torch.OutOfMemoryError, MemoryError, NotPrivateError, OtherRankError)  # whatever rows


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
        generator: Randomness,
        expected_batch_size: float,
        step: Callable[[], int],
    ) -> None:
        refuse_unsafe(model)
        self.microbatch_size = settings.microbatch_size  # units at once; None: as many as fit
        self._model, self._loss, self._clipper = model, loss, clipper
        self._parameters = parameter_values.find(model).parameters
        self._may_mix = any(hasattr(module, "running_mean") for module in model.modules())
        assert isinstance(settings.engine, Engines)  # `PassSettings` made it one
        self._kind, self._unchecked = settings.engine, settings.check
        self._rehearsed, self._rehearsing = Rehearsed(model), False
        self._barrier = Barrier(model)
        self._engine = self._make_engine(projections, generator)
        self._replays = RecordedPieces(clipper)
        self._fitting: int | None = None  # rows at once, once measured
        self._step = step
        self._faster = FasterPasses(
            model,
            loss,
            clipper,
            self._replays,
            settings=settings,
            projected=projections is not None,
            expected_batch_size=expected_batch_size,
        )
        asked_for = self._faster.asked_for(settings)
        if asked_for is not None:
            self.record(
                asked_for, self._faster.sizes(settings.microbatch_size, coarse=bool(settings.compile))
            )

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

    @property
    def way(self) -> str:
        """How passes run, and why, in one line."""
        return self._faster.line

    def record(self, recorder: Recorder, sizes: Sizes) -> None:
        """Keep faster versions of passes from now on, for batches that are padded to some sizes."""
        self._replays.record(recorder, self._engine, self._model, sizes=sizes)

    def step_taken(self, per_unit: int | None) -> None:
        """End a step that was counted. After fixed ones, whatever their rows, other ways are tried.

        `per_unit`: how many rows a unit has, if that is public; else None.
        """
        if not self._faster.due():
            return
        with same_draws(self._model), self._barrier.undoing():
            self._faster.choose(
                self._engine,
                self._clipped,
                units_at_once=self._units_at_once,
                per_unit=per_unit,
                shapes=len(self._rehearsed),
                steps=self._step(),
            )

    def run(self, batch: Sequence[Any], per_unit: int, add: Callable[[ClippedSums], None]) -> None:
        """Clip a batch in pieces that fit in memory, and `add` the sums of each."""
        self.settle(batch)
        with self._faster.replaying():
            self._run_in_pieces(batch, per_unit, add)

    def _run_in_pieces(self, batch: Sequence[Any], per_unit: int, add: Callable[[ClippedSums], None]) -> None:
        units = rows.count(batch) // per_unit
        begin = 0
        while begin < units:
            size = min(self._units_at_once(batch, per_unit), units - begin)
            part = slice(begin * per_unit, (begin + size) * per_unit)
            piece = batch if size == units else rows.take(batch, part)
            try:
                found = self._barred(
                    partial(self._piece, piece, per_unit), piece, partial(self._replayed, piece, per_unit)
                )
                self._replays.keep(piece, per_unit)
                add(found)
                begin += size
            except (torch.OutOfMemoryError, MemoryError) as error:
                if not self._faster.gave_up():
                    self.microbatch_size = halved(size, error)

    def noisy_sum(self, noise_multiplier: float) -> None:
        """Return None: noise must be added to the sums."""
        return None

    def again(self, add: Callable[[ClippedSums], None]) -> None:
        """Compute the sums since `clear` anew, without recordings: a unit's gradient is not finite."""
        for piece in self._replays.take_all():
            run = partial(self._clipped, piece.batch, piece.per_unit)
            add(self._barred(partial(self._unfailing, run, piece.batch, piece.per_unit), piece.batch))

    def taken(self, batch: Sequence[Any], per_unit: int, recorded: GradientPass) -> ClippedSums:
        """Return the clipped sums of a pass that was made already."""
        run = partial(self._clipped, batch, per_unit, recorded)
        self._faster.stay("the loop runs the model itself, and a recording would run it once more")
        with self._barrier.guarding():
            found = self._unfailing(run, batch, per_unit)
        self._replays.keep(batch, per_unit)
        return found

    def settle(self, batch: Sequence[Any], made_up: Iterable[Sequence[Any]] | None = None) -> None:
        """Rehearse with synthetic rows shaped like a batch's, unless that was done; raise what cannot work.

        `made_up`: batches of such rows, to be tried in turn; None makes some. No row of the batch is used.
        """
        if self._may_mix:
            batch_norm.refuse_mixing(self._model)  # its mode may have changed
        if batch in self._rehearsed and not self._unchecked:
            return
        made = synthetic(tuple(batch[1:])) if made_up is None else made_up
        candidates = [(None, *own) for own in made]
        try:
            rehearse_any(candidates, self.rehearse, done=lambda: not self._unchecked)
        except (torch.OutOfMemoryError, MemoryError):  # one row may fit where a few do not
            single = (rows.take(made, slice(0, 1)) for made in candidates)
            rehearse_any(single, self.rehearse, done=lambda: not self._unchecked)

    def rehearse(self, batch: Sequence[Any]) -> bool:
        """Run and check synthetic rows, which settles the engine; return whether all gradients are finite."""
        self._rehearsing = True
        try:
            with same_draws(self._model):
                if self._unchecked:
                    self._refuse_other_parameters()
                found = self._barred(lambda: self._sums_of(self._pass(batch, 1)), batch)
                finite = not isinstance(found, Tensor)
                if self._unchecked:
                    self._check(batch, shows=finite or bool(found.any()))
        finally:
            self._rehearsing = False
        self._rehearsed.add(batch)
        self._faster.saw(batch, shapes=len(self._rehearsed))
        return finite

    def _refuse_other_parameters(self) -> None:
        if list(parameter_values.find(self._model).parameters) != list(self._parameters):
            raise InvalidParameterError(
                "the trainable parameters of the model have changed since training was set up: some were "
                "frozen or unfrozen. Set training up again after it."
            )

    def _check(self, batch: Sequence[Any], *, shows: bool) -> None:
        """Check on synthetic rows whether an engine is wrong for this model; raise if so.

        `shows`: the reference itself could be checked with these rows, for one of them has a finite gradient.
        """
        with self._barrier.undoing():
            refuse_other_routes(self._model, self._loss, batch)
        if not isinstance(self._engine, Functional):  # which is the reference
            shows = self._barred(partial(self_check, self._engine, self._model, self._loss, batch), batch)
        self._unchecked = not shows

    def alone(self, batch: Sequence[Any]) -> dict[str, Tensor]:
        """Return the gradient of one synthetic row, by the reference that engines are compared with."""
        with same_draws(self._model), self._barrier.undoing():
            found = Functional(self._model, self._loss, vectorized=False).run(batch)
            return {name: found.per_unit(name)[0] for name in self._parameters}

    def try_synthetic(self, batch: Sequence[Any]) -> None:
        """Run synthetic rows in the shape of a batch's: an error on these quotes no private row."""
        with same_draws(self._model), self._barrier.undoing():
            Functional(self._model, self._loss, vectorized=False).run(self._rehearsed.example(batch))

    # --- one piece ---------------------------------------------------------------------------------------

    def _piece(self, batch: Sequence[Any], per_unit: int) -> ClippedSums:
        def run() -> ClippedSums:
            made = partial(self._rehearsed.example, batch)
            return self._replays.replay(batch, per_unit, record=made) or self._clipped(batch, per_unit)

        return self._unfailing(run, batch, per_unit)

    def _replayed(self, batch: Sequence[Any], per_unit: int) -> ClippedSums | None:
        """Return the sums of a recorded pass; None without one, or if it fails."""
        try:
            return ordinary(lambda: self._replays.replay(batch, per_unit))
        except _ALWAYS:
            raise
        except Exception:  # the pass that follows finds the unit that it fails on
            return None

    def _unfailing(self, run: Callable[[], ClippedSums], batch: Sequence[Any], per_unit: int) -> ClippedSums:
        """Return what a pass over units returns. If it fails, the units on which it fails add nothing."""
        try:
            with kept_modes():  # a row on which the model fails may leave others behind
                return ordinary(run)
        except _ALWAYS:
            raise
        except Exception:
            self._barrier.rewind()
        # Outside the handler: the message may quote a row, and must not be chained.
        # A model that was changed since may fail on any row: then this raises, or settles another engine.
        self.rehearse(self._rehearsed.example(batch))
        starts = range(0, rows.count(batch), per_unit)
        each = (rows.take(batch, slice(start, start + per_unit)) for start in starts)
        return sum((self._alone(unit, per_unit) for unit in each), start=ClippedSums({}))

    def _alone(self, unit: Sequence[Any], per_unit: int) -> ClippedSums:
        """Return the clipped sums of one unit: nothing, if the model or the loss fails on its rows."""
        try:
            with kept_modes():
                return ordinary(lambda: self._clipped(unit, per_unit))
        except _ALWAYS:
            raise
        except Exception:
            self._barrier.rewind()
            return ClippedSums({}, torch.full((len(self._clipper.groups),), -0.5))

    def _barred(
        self, work: Callable[[], T], batch: Sequence[Any], again: Callable[[], T | None] | None = None
    ) -> T:
        """Do work that runs rows of a batch through the model, which may keep nothing of them."""
        slow = isinstance(self._engine, Functional) and not self._engine.vectorized
        settle = partial(self._settle, batch)
        found = self._barrier.run(work, settle, replay=again, thorough=slow or None)
        if self._barrier.row_wrote():  # that was undone; a model that writes for synthetic rows is refused
            self.rehearse(self._rehearsed.example(batch))
        return found

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
                    made = self._rehearsed.example(batch)
                    self._fitting = rows_that_fit(self._model, self._loss, made, more=more)
            except NotPrivateError:
                raise
            except Exception:
                self._fitting = 1  # the synthetic rows that it is measured on do not run at once
        return max(1, self._fitting // per_unit)

    def _clipped(
        self, batch: Sequence[Any], per_unit: int, recorded: GradientPass | None = None
    ) -> ClippedSums:
        """Clip one piece and add up; units whose gradient is not finite are left out."""
        if self._clipper.adaptive is not None:
            batch = _without_padding(batch, per_unit)
        units = rows.count(batch) // per_unit
        if not units:
            return ClippedSums({})
        found = self._sums_of(recorded or self._pass(batch, per_unit))
        while isinstance(found, Tensor):  # which units are finite
            batch = rows.take(batch, found.repeat_interleave(per_unit))
            if not rows.count(batch):
                return ClippedSums({}, torch.full((len(self._clipper.groups),), -0.5 * units))
            found = self._sums_of(self._pass(batch, per_unit))
        return found.without(units - rows.count(batch) // per_unit)

    def _sums_of(self, run: GradientPass) -> ClippedSums | Tensor:
        """Return the clipped sums of a pass, or which of its units have a finite gradient."""
        return self._clipper.sums(run)

    def _pass(self, batch: Sequence[Any], per_unit: int) -> GradientPass:
        try:
            if isinstance(self._engine, Functional):
                return self._engine.run(batch, per_unit=per_unit, settle=self._rehearsing)
            return self._engine.run(batch, per_unit=per_unit)
        except UnsupportedUseError as error:
            if not self._rehearsing or not isinstance(self._engine, BookKeeping):
                raise
            reason = error
        self._barrier.rewind()
        engine = self._functional()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.func.vmap cannot run")  # one warning is enough
            found = engine.run(batch, per_unit=per_unit)  # raises again if the engine was not the reason
        if self._kind is not Engines.AUTO:
            raise reason
        self._kind, self._engine = Engines.FUNCTIONAL, engine
        self._replays.stop()
        self._faster.stay("the functional engine is at work")
        how = "which is slower" if engine.vectorized else "row by row, which is slow"
        warnings.warn(f"{reason} Going on with the functional engine, {how}.", stacklevel=9)
        return found

    def _functional(self) -> Functional:
        """Return the functional engine, which keeps nothing of a private row that runs alone."""
        engine = Functional(self._model, self._loss)
        engine.around = lambda: nullcontext() if self._rehearsing else self._forgetting()
        return engine

    @contextmanager
    def _forgetting(self) -> Generator[None]:
        """Return a context for one private row: what it says is not shown, and what it sets is put back."""
        with silent(), kept_modes(), self._barrier.forgetting():
            yield

    def _make_engine(self, projections: int | None, generator: Randomness) -> Engine:
        if projections is not None:
            return Projections(self._model, self._loss, projections=projections, generator=generator)
        if self._kind is Engines.FUNCTIONAL:
            return self._functional()
        return BookKeeping(self._model, self._loss)


def _without_padding(batch: Sequence[Any], per_unit: int) -> Sequence[Any]:
    real = real_units(batch, per_unit)
    return batch if bool(real.all()) else rows.take(batch, real.repeat_interleave(per_unit))
