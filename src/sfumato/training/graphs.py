# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: record the kernels of one clipped sum, and replay them for every batch of the same shape.

Promise    A replay computes what the engine computes, in the same order, from the batch it is given and the
           parameters as they are now. Only launching is saved: a small network is otherwise limited by it.
Noise      None is drawn in a graph: a replayed draw would be the same noise again (`noise` draws outside).
Finite     A replay cannot look at its own norms, so the caller must (`Replay.finite`) before it uses the
           sums; where a norm is not finite, it throws them away and runs the units again without a graph.
Shapes     Each shape is recorded once. Pad batches to one shape (`TruncatedPoissonSampling`), or use pieces.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from sfumato.training import rows
from sfumato.training.checking import Engine
from sfumato.training.clipping import ClippedSums, Clipper

__all__ = ["Graphs", "Replay"]

_WARM_UP: Final = 3  # passes before recording: kernels are chosen and workspaces allocated in them
_MOST: Final = 4  # shapes that are kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """Sums that the device is still computing."""

    sums: ClippedSums
    total: Tensor  # of all squared norms

    def finite(self) -> bool:
        """Wait, and return whether all norms (and their total) are finite."""
        return math.isfinite(float(self.total))


@dataclass(frozen=True, slots=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    batch: Any
    total: Tensor
    sums: ClippedSums
    pointers: tuple[int, ...]


class Graphs:
    """The recorded passes of one engine and one style of clipping."""

    def __init__(self, engine: Engine, clipper: Clipper, model: nn.Module) -> None:
        self._engine, self._clipper, self._model = engine, clipper, model
        self._recorded: dict[Any, _Recorded] = {}
        self._stream: torch.cuda.Stream | None = None

    def takes(self, batch: Sequence[Any]) -> bool:
        """Whether a batch is where graphs are."""
        return next(iter(rows.tensors(batch))).is_cuda

    def replay(self, batch: Sequence[Any], per_unit: int) -> "Replay":
        """Start computing the clipped sums of a batch. The next replay overwrites them."""
        key = self._key(batch, per_unit)
        found = self._recorded.get(key)
        if found is None or found.pointers != self._pointers():
            found = self._recorded[key] = self._record(batch, per_unit)
            while len(self._recorded) > _MOST:
                del self._recorded[next(iter(self._recorded))]
        for static, given in zip(rows.tensors(found.batch), rows.tensors(batch), strict=True):
            static.copy_(given, non_blocking=True)
        found.graph.replay()
        return Replay(sums=found.sums, total=found.total.clone())

    def _record(self, batch: Sequence[Any], per_unit: int) -> _Recorded:
        static = rows.cloned(batch)
        self._stream = stream = self._stream or torch.cuda.Stream()  # each has workspaces of its own
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._pass(static, per_unit)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            total, sums = self._pass(static, per_unit)
        return _Recorded(graph, static, total, sums, self._pointers())

    def _pass(self, batch: Sequence[Any], per_unit: int) -> tuple[Tensor, ClippedSums]:
        # Autocast keeps the weights that it has cast: a graph would go on reading casts made before it, and
        # whatever comes after would read those made in it.
        torch.clear_autocast_cache()
        try:
            run = self._engine.run(batch, per_unit=per_unit)
            squared = run.squared_norms(self._clipper.groups)
            return squared.sum(), self._clipper.weighed(run, squared)
        finally:
            torch.clear_autocast_cache()

    def _key(self, batch: Sequence[Any], per_unit: int) -> Any:
        shapes = tuple((t.shape, t.dtype, t.device) for t in rows.tensors(batch))
        cast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        modes = tuple(module.training for module in self._model.modules())  # dropout is on, or it is not
        return per_unit, shapes, cast, modes, _structure(batch)

    def _pointers(self) -> tuple[int, ...]:
        return tuple(p.data_ptr() for p in self._model.parameters())


def _structure(batch: Any) -> Any:
    """Return how the tensors of a batch are nested, and under which names: they are copied in that order."""
    if isinstance(batch, dict):
        return tuple((key, _structure(part)) for key, part in batch.items())
    if isinstance(batch, tuple | list):
        return tuple(_structure(part) for part in batch)
    return batch is None
