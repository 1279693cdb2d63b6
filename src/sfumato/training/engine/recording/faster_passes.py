# SPDX-License-Identifier: Apache-2.0
"""When passes are tried in other ways, and with what, so that each model runs in the fastest one.

Guarantee  What decides is public (`fast.choice`). Trials are made between steps, on synthetic rows, and
           leave neither draws nor anything in the model. What is told holds nothing of rows or batches.
Edge cases If `compile` or `cuda_graphs` is True, nothing is chosen. Rows of more than `_SHAPES` shapes (texts
           of any length) are run eagerly: each shape would need recordings of its own. So are units whose
           number of rows depends on who is in a batch (owners, groups): that number is private.
"""

import logging
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.training import distributed
from sfumato.training.data import rows
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.losses import Loss
from sfumato.training.engine.recording.held_numbers import HeldNumbers
from sfumato.training.engine.recording.pass_trial import PassTrial
from sfumato.training.engine.recording.recorded_pieces import RecordedPieces, recorder
from sfumato.training.engine.step.settings import PassSettings
from sfumato.training.fast.choice import Choice, Facts
from sfumato.training.fast.compilation import no_compiler
from sfumato.training.fast.pass_cache import Recorder
from sfumato.training.fast.sizes import Sizes, sizes_for
from sfumato.training.privacy.clipping import Clipper, CoordinateClipping
from sfumato.training.privacy.gradient_pass import Engine

__all__ = ["FasterPasses"]

_SHAPES: Final = 8  # of rows; each is recorded for some sizes of batches
_CHANGING: Final = f"rows have had more than {_SHAPES} shapes, each of which would need a recording"
_CHANGING_NUMBERS: Final = "what the model holds besides parameters changes between steps"
_CHANGING_UNITS: Final = (
    "units have another number of rows at each step, each of which would need a recording"
)

_log = logging.getLogger(__name__)


class FasterPasses:
    """The choice for the passes of one model."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clipper: Clipper,
        replays: RecordedPieces,
        *,
        settings: PassSettings,
        projected: bool,
        expected_batch_size: float,
    ) -> None:
        self._model, self._loss, self._clipper, self._replays = model, loss, clipper, replays
        self._held: tuple[HeldNumbers, int] | None = (
            None  # when the last recording was made, and how many were
        )
        self._expected, self._planned = expected_batch_size, settings.planned_steps
        self._taken, self._ended = 0, False
        self._shown: tuple[Sequence[Any], torch.dtype | None] | None = None
        self._choice = None if settings.recorded else Choice(self._facts(settings, projected))

    def asked_for(self, settings: PassSettings) -> Recorder | None:
        """Return what records passes because that was asked for; None without."""
        if settings.recorded and isinstance(self._clipper.clipping, CoordinateClipping):
            raise InvalidParameterError(
                "clipping by coordinate keeps every unit's gradient, so passes cannot be recorded. Leave "
                "cuda_graphs and compile out."
            )
        graphs = bool(settings.cuda_graphs)
        if graphs and self._device.type != "cuda":
            warnings.warn("cuda_graphs=True has no effect: the model is not on a CUDA device.", stacklevel=6)
            graphs = False
        if not (graphs or settings.compile):
            return None
        return recorder(cuda_graphs=graphs, compile=bool(settings.compile))

    @property
    def _device(self) -> torch.device:
        return next((p.device for p in self._model.parameters()), torch.device("cpu"))

    def _facts(self, settings: PassSettings, projected: bool) -> Facts:
        return Facts(
            device=self._device.type,
            cuda_graphs=settings.cuda_graphs,
            compile=settings.compile,
            refusal=self._refusal(projected),
            no_compiler=no_compiler(self._device),
            planned_steps=settings.planned_steps,
        )

    def _refusal(self, projected: bool) -> str | None:
        if projected:
            return "projections are drawn anew at each step, and what is recorded is not"
        if isinstance(self._clipper.clipping, CoordinateClipping):
            return "clipping by coordinate keeps every unit's gradient"
        if any(hasattr(p, "device_mesh") for p in self._model.parameters()):
            return "parameters are spread over processes, which must meet in each pass"
        return None

    @property
    def line(self) -> str:
        """How passes run, and why, in one line."""
        return "Passes run as they were asked to." if self._choice is None else self._choice.line

    def saw(self, batch: Sequence[Any], *, shapes: int) -> None:
        """Note synthetic rows that were rehearsed, so many shapes of which there have been."""
        kind = next(rows.tensors(batch[1:])).device.type
        self._shown = batch, torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        if shapes <= _SHAPES or not self._replays.active:
            return
        self._end(_CHANGING)

    def _end(self, why: str) -> None:
        """Record and replay nothing from now on, and say why."""
        self._replays.stop()
        if self._choice is None:
            warnings.warn(f"{why}: going on without, which is slower.", stacklevel=8)
        else:
            self.stay(why)

    @contextmanager
    def replaying(self) -> Generator[None]:
        """Return a context for the passes of a batch.

        If a recording would compute something else by now, nothing is replayed from here on, without a word.
        """
        self._note()
        held = self._held
        if self._replays.active and held is not None and not (held[0].of_model() and held[0].of_loss()):
            self._replays.stop()
        try:
            yield
        finally:
            if self._replays.active and held is not None and held[1] != self._replays.made:
                self._held = None  # code that ran while recording may have changed numbers
                self._note()

    def _note(self) -> None:
        """Note what model and loss hold, and how many recordings were made so far."""
        if self._held is None and self._replays.active:
            self._held = HeldNumbers(self._model, self._loss), self._replays.made

    def stay(self, why: str) -> None:
        """Run eagerly from now on."""
        if self._choice is not None and self._choice.open:
            self._choice.stay(why)
            self._tell()

    def gave_up(self) -> bool:
        """Drop recordings that nobody asked for, if there are any: they hold memory that a piece may need.

        Which sizes were recorded is private, so this is not told.
        """
        if self._choice is None or not self._replays.active:
            return False
        self._replays.stop()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return True

    def due(self) -> bool:
        """Count a step, and return whether a trial is due after it.

        Recordings end, with a word, if the model holds other numbers than when they were made: rows cannot
        change these. What the loss holds they can, so that is never told.
        """
        if self._held is not None and not self._ended and not self._held[0].of_model():
            self._ended = True
            self._end(_CHANGING_NUMBERS)
        self._taken += 1
        return self._choice is not None and self._shown is not None and self._choice.due(self._taken)

    def choose(
        self,
        engine: Engine,
        eager: Callable[[Sequence[Any], int], object],
        *,
        units_at_once: Callable[[Sequence[Any], int], int],
        per_unit: int | None,
        shapes: int,
        steps: int,
    ) -> None:
        """Try what is possible and may pay, and keep the fastest; so many `steps` of the run are taken.

        `per_unit`: how many rows a unit has; None if the rows decide that.
        """
        assert self._choice is not None and self._shown is not None  # it is due
        shown, cast = self._shown
        kind = next(rows.tensors(shown)).device.type
        left = None if self._planned is None else self._planned - steps
        with torch.autocast(kind, dtype=cast, enabled=cast is not None):
            refusal = _CHANGING_UNITS if per_unit is None else self._no_trial(engine, shapes)
            most = units_at_once(shown, per_unit or 1)
            trial = self._trial(engine, eager, shown, per_unit or 1, most, refusal)
            self._choice.choose(trial, taken=self._taken, remaining=left)
        self._held = None
        self._note()
        self._tell()

    def _trial(
        self,
        engine: Engine,
        eager: Callable[[Sequence[Any], int], object],
        shown: Sequence[Any],
        per_unit: int,
        microbatch_size: int,
        refusal: str | None,
    ) -> PassTrial:
        return PassTrial(
            engine=engine,
            clipper=self._clipper,
            model=self._model,
            eager=eager,
            shown=shown,
            per_unit=per_unit,
            sizes=lambda coarse: self.sizes(microbatch_size, coarse=coarse),
            use=self._replays.use,
            refusal=refusal,
        )

    def sizes(self, microbatch_size: int | None, *, coarse: bool) -> Sizes:
        """Return the sizes that batches are padded to; few of them where each one takes long to record."""
        ranks = distributed.size()
        return sizes_for(self._expected, microbatch_size=microbatch_size, ranks=ranks, coarse=coarse)

    def _no_trial(self, engine: Engine, shapes: int) -> str | None:
        if not isinstance(engine, BookKeeping):
            return f"{type(engine).__name__.lower()} passes are not recorded"
        return "rows have another shape at most steps" if 2 * shapes > self._taken else None

    def _tell(self) -> None:
        if distributed.is_first():
            _log.info(self.line)
