# SPDX-License-Identifier: Apache-2.0
"""Recorded passes: the clipped sum over a batch, kept in a form that runs faster for later batches.

Guarantee  A replay computes what the engine computes, from its batch and the current parameters: as kernels
           launched in the same order (`cuda_graphs`), or as compiled ones (`compilation`). No noise is drawn
           in a recording: a replayed draw would be the same noise again.
Edge cases A replay cannot look at its own norms, so the caller must call `Replay.finite` before it uses the
           sums. If a norm is not finite, the caller discards them and runs the units again without a
           recording. Each shape is recorded once. Batches are padded to one of a few sizes (`sizes`) with
           rows of zeros, whose weight is 0: they add nothing, and `Replay.padding` counts them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from sfumato.training.data import rows, tree
from sfumato.training.data.silence import silent
from sfumato.training.fast.sizes import Sizes
from sfumato.training.privacy.clipping import ClippedSums, Clipper
from sfumato.training.privacy.gradient_pass import Engine

__all__ = ["Made", "Pass", "Recorder", "Recordings", "Replay"]

_MOST: Final = 6  # shapes that are kept
_ALL: Final = 64  # recordings that are ever made: where shapes go on changing, making them takes all the time

_AS_IT_IS: Final = Sizes()  # no batch is padded

Made = Callable[[int], Sequence[Any]]  # a number to so many synthetic rows, after their weights
Pass = Callable[
    [Sequence[Any]], tuple[Tensor, ClippedSums]
]  # a batch to the total of squared norms, and sums


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """Sums that the device may still be computing."""

    sums: ClippedSums
    total: Tensor  # of all squared norms
    padding: int = 0  # units that are padding

    def finite(self) -> bool:
        """Wait, and return whether all norms (and their total) are finite."""
        return math.isfinite(float(self.total))


class Recorder(Protocol):
    """A way to record a pass."""

    def takes(self, batch: Sequence[Any]) -> bool:
        """Whether batches like this one can be recorded."""
        ...

    def record(self, run: Pass, batch: Sequence[Any]) -> Pass:
        """Return a faster version of a pass, for batches of the shapes of this one; or the pass itself."""
        ...


@dataclass(frozen=True, slots=True)
class _Recorded:
    replay: Pass
    pointers: tuple[int, ...]
    is_code: bool  # of the model, run anew each time: a recorder could make nothing of it


class Recordings:
    """The recorded passes of one engine and one style of clipping.

    With `if_possible` nobody asked for recordings. What cannot be recorded, for want of memory or whatever
    reason, is not: batches of this shape are run as they are, without a word.
    """

    def __init__(
        self,
        engine: Engine,
        clipper: Clipper,
        model: nn.Module,
        recorder: Recorder,
        *,
        sizes: Sizes = _AS_IT_IS,
        if_possible: bool = False,
    ) -> None:
        self._engine, self._clipper, self._model = engine, clipper, model
        self._recorder, self._sizes, self._if_possible = recorder, sizes, if_possible
        self._recorded: dict[Any, _Recorded] = {}
        self._made = 0
        # Whether all batches get weights: padding needs them, and one shape should be one key.
        self._weighted = if_possible

    @property
    def made(self) -> int:
        """How many recordings were made."""
        return self._made

    def takes(self, batch: Sequence[Any]) -> bool:
        """Whether a batch can be recorded."""
        return self._recorder.takes(batch)

    def replay(self, batch: Sequence[Any], per_unit: int, *, record: Made | None = None) -> Replay | None:
        """Start computing the clipped sums of a batch. The next replay overwrites them.

        `record` returns synthetic rows shaped like the batch's, so many as it is asked for: recordings are
        made, and compared with the pass, on these. Without it, None if no recording fits: then none of the
        model's own code is run.
        """
        batch, padding = self._rounded(batch, per_unit)
        found = self._found(batch, per_unit, record=record)
        if found is None:
            return None
        total, sums = found.replay(batch)
        return Replay(sums=sums, total=total.clone(), padding=padding)

    def _found(self, batch: Sequence[Any], per_unit: int, *, record: Made | None) -> _Recorded | None:
        key = self._key(batch, per_unit)
        found = self._recorded.pop(key, None)
        if found is None or found.pointers != self._pointers():
            if record is None or self._made >= _ALL:
                return None
            found = self._new(batch, per_unit, record)
        self._recorded[key] = found  # last: the one that was used longest ago goes first
        while len(self._recorded) > _MOST:
            del self._recorded[next(iter(self._recorded))]
        unwanted = record is None or self._if_possible
        return None if unwanted and found.is_code else found

    def _new(self, batch: Sequence[Any], per_unit: int, record: Made) -> _Recorded:
        self._made += 1
        run = partial(self._pass, per_unit=per_unit)
        made = _filled(batch, record)
        if not self._if_possible:
            recorded = self._recorder.record(run, made)
        else:
            try:
                with silent():  # which sizes come is private, and so is what a compiler says of one
                    recorded = self._recorder.record(run, made)
            except Exception:
                recorded = run
                _free()
        return _Recorded(recorded, self._pointers(), is_code=recorded is run)

    def _rounded(self, batch: Sequence[Any], per_unit: int) -> tuple[Sequence[Any], int]:
        weights, *rest = batch
        count = next(rows.tensors(rest)).shape[0]
        units = count // per_unit
        padding = self._sizes.padding(units)
        self._weighted = self._weighted or padding > 0
        if not padding and (weights is not None or not self._weighted):
            return batch, 0
        if weights is None and self._weighted:
            weights = torch.ones(count, device=next(rows.tensors(rest)).device)
        return rows.padded((weights, *rest), (units + padding) * per_unit), padding

    def _pass(self, batch: Sequence[Any], per_unit: int) -> tuple[Tensor, ClippedSums]:
        # Autocast keeps the weights that it has cast: a recording would go on reading casts made before it,
        # and whatever comes after would read those made in it.
        torch.clear_autocast_cache()
        try:
            run = self._engine.run(batch, per_unit=per_unit)
            squared = run.squared_norms(self._clipper.groups)
            return squared.sum(), self._clipper.weighed(run, squared)
        finally:
            torch.clear_autocast_cache()

    def _key(self, batch: Sequence[Any], per_unit: int) -> Any:
        shapes = tuple((t.shape, t.dtype, t.device) for t in rows.tensors(batch))
        device = next(rows.tensors(batch)).device.type
        cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        modes = tuple(module.training for module in self._model.modules())  # dropout is on, or it is not
        return per_unit, shapes, cast, modes, tree.structure(batch)

    def _pointers(self) -> tuple[int, ...]:
        # At every step, and `parameters()` and `buffers()` take several times as long.
        modules = self._model.modules()
        held = (part for m in modules for part in (m._parameters, m._buffers))  # pyright: ignore[reportPrivateUsage] - of torch, as old as torch
        return tuple(t.data_ptr() for part in held for t in part.values() if t is not None)


def _free() -> None:
    """Return memory that was allocated for a recording which could not be made."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _filled(batch: Sequence[Any], made: Made) -> Sequence[Any]:
    """Return a batch of the same size and shape that holds synthetic rows."""
    weights, *own = batch
    _, *rest = made(count := rows.count(own))
    return (None if weights is None else weights.new_ones(count), *rest)
