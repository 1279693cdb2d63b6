# SPDX-License-Identifier: Apache-2.0
"""The pieces of a step that were computed by recorded passes.

Guarantee  A recorded pass cannot look at its own norms, so its sums may hold values that are not finite. The
           pieces of a step are kept until `finite` was read. If it is false, all of them are run again
           without a recording.
Edge cases Ranks must agree on the sums that they add up, so with several ranks each replay is checked at
           once.
Not here   How a pass is recorded (`fast`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.errors import UnsupportedUseError
from sfumato.training import distributed
from sfumato.training.data import rows
from sfumato.training.fast.compilation import Compiling
from sfumato.training.fast.cuda_graphs import CudaGraphs
from sfumato.training.fast.pass_cache import Recorder, Recordings, Replay
from sfumato.training.fast.sizes import Sizes
from sfumato.training.privacy.clipping import ClippedSums, Clipper
from sfumato.training.privacy.gradient_pass import Engine

__all__ = ["Piece", "RecordedPieces", "real_units", "recorder"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a step that were added to its sums, and the replays that may have computed their sums."""

    replays: tuple[Replay, ...]
    batch: Sequence[Any]
    per_unit: int


class RecordedPieces:
    """The recorded passes of one style of clipping, and the pieces of the step that used them."""

    def __init__(self, clipper: Clipper) -> None:
        self._clipper = clipper
        self._recordings: Recordings | None = None
        self._pieces: list[Piece] = []  # one for each addition to the sums of this step
        self._tried: list[Replay] = []  # since the last addition: attempts that failed or were repeated, too
        self._active = False  # whether anything was ever recorded

    @property
    def active(self) -> bool:
        """Whether passes are recorded now."""
        return self._recordings is not None

    @property
    def made(self) -> int:
        """How many recordings were made, which is private."""
        return 0 if self._recordings is None else self._recordings.made

    def record(self, recorder: Recorder, engine: Engine, model: nn.Module, *, sizes: Sizes) -> None:
        """Keep faster versions of an engine's passes from now on, because that was asked for."""
        self.use(Recordings(engine, self._clipper, model, recorder, sizes=sizes))

    def use(self, recordings: Recordings | None) -> None:
        """Use recordings from now on; None for none. No step may have begun."""
        self._recordings = recordings
        self._active = self._active or recordings is not None

    def stop(self) -> None:
        """Record and replay nothing from now on: the engine has changed."""
        self._recordings = None

    @property
    def finite(self) -> bool:
        """Whether the sums of all pieces are finite. It waits for the device."""
        return all(replay.finite() for piece in self._pieces for replay in piece.replays)

    @property
    def first(self) -> Sequence[Any]:
        """The rows of the first piece."""
        return self._pieces[0].batch

    def __len__(self) -> int:
        return len(self._pieces)

    def keep(self, batch: Sequence[Any], per_unit: int) -> None:
        """Note rows whose sums are added now. Call it once for each addition, however they were computed."""
        if self._active:
            self._pieces.append(Piece(tuple(self._tried), batch, per_unit))
        self._tried.clear()

    def take_all(self) -> list[Piece]:
        """Return all pieces, and forget them."""
        pieces, self._pieces = self._pieces, []
        self._tried.clear()
        return pieces

    def replay(
        self, batch: Sequence[Any], per_unit: int, *, record: Callable[[int], Sequence[Any]] | None = None
    ) -> ClippedSums | None:
        """Return the sums of a recorded pass, or None: then the rows must be run as they are.

        With `record`, a pass that was not recorded yet is recorded first, with so many synthetic rows as
        `record` is asked for: private rows must not decide whether a recording is used.
        """
        if self._recordings is None:
            return None
        if not self._recordings.takes(batch):
            return None
        try:
            replay = self._recordings.replay(batch, per_unit, record=record)
        except UnsupportedUseError:
            return None  # the pass that follows settles which engine can run it
        if replay is None:
            return None
        sums = replay.sums
        if self._clipper.adaptive is not None:
            sums = sums.without(replay.padding + float((~real_units(batch, per_unit)).sum()))
        if distributed.size() > 1:
            return sums if replay.finite() else None
        self._tried.append(replay)
        return sums


def recorder(*, cuda_graphs: bool, compile: bool, tell: Callable[[str], None] | None = None) -> Recorder:
    """Return what records passes as CUDA graphs, compiled, or both; `tell` gets the reason if it cannot."""
    told = {} if tell is None else {"tell": tell}
    inside = Compiling(**told) if compile else None
    if not cuda_graphs and inside is not None:
        return inside
    return CudaGraphs(inside, **told)


def real_units(batch: Sequence[Any], per_unit: int) -> Tensor:
    """Return which units are not padding: [units] of bool. All rows of padding have a weight of 0."""
    weights, *rest = batch
    if weights is None:
        found = next(iter(rows.tensors(rest)))
        return torch.ones(found.shape[0] // per_unit, dtype=torch.bool, device=found.device)
    return (weights.reshape(-1, per_unit) != 0).any(1)
