# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: record the kernels of one pass, and launch them all at once for every batch of the same shape.

Only the launches are saved, which limit the speed of small networks. All graphs share one pool of memory:
they never run at the same time, and what one of them returns is read before the next one starts.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sfumato.training.data import rows
from sfumato.training.fast.pass_cache import Pass, Recorder
from sfumato.training.privacy.clipping import ClippedSums
from sfumato.training.random_state import same_draws

__all__ = ["CudaGraphs"]

_WARM_UP: Final = 3  # passes before recording: kernels are chosen and workspaces allocated in them


class CudaGraphs:
    """Records passes as CUDA graphs; what `inside` makes of them, if it is given."""

    def __init__(self, inside: Recorder | None = None) -> None:
        self._inside = inside
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def takes(self, batch: Sequence[Any]) -> bool:
        """Whether a batch is on a CUDA device."""
        return next(rows.tensors(batch)).is_cuda

    def record(self, run: Pass, batch: Sequence[Any]) -> Pass:
        """Return a pass that copies its batch to the graph's own place, and launches it."""
        run = run if self._inside is None else self._inside.record(run, batch)
        static = rows.cloned(batch)
        with same_draws([next(rows.tensors(batch)).device]):  # replays draw as if nothing had been recorded
            graph, found = self._captured(run, static)

        def replay(given: Sequence[Any]) -> tuple[Tensor, ClippedSums]:
            for place, tensor in zip(rows.tensors(static), rows.tensors(given), strict=True):
                place.copy_(tensor, non_blocking=True)
            graph.replay()
            return found

        return replay

    def _captured(
        self, run: Pass, batch: Sequence[Any]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ClippedSums]]:
        self._stream = stream = self._stream or torch.cuda.Stream()  # each has workspaces of its own
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                run(batch)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            found = run(batch)
        return graph, found
