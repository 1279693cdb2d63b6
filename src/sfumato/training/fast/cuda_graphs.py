# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: record the kernels of one pass, and launch them all at once for every batch of the same shape.

Only the launches are saved, which limit the speed of small networks. All graphs share one pool of memory:
they never run at the same time, and what one of them returns is read before the next one starts.

Guarantee  A graph is used only if it agrees with its pass on synthetic rows.
Failure    A pass that waits for the GPU (a model that reads a value), that cannot be recorded, or whose graph
           does not agree, runs as it is, and the reason is told in one line.
"""

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from sfumato.errors import SfumatoError
from sfumato.training.data import rows
from sfumato.training.fast import agreement
from sfumato.training.fast.pass_cache import Pass, Recorder
from sfumato.training.privacy.clipping import ClippedSums
from sfumato.training.random_state import RandomState, same_draws

__all__ = ["CudaGraphs"]

_WARM_UP: Final = 2  # passes before recording: kernels are chosen and workspaces allocated in them


def _warn(what: str) -> None:
    warnings.warn(f"{what}; going on without cuda_graphs=True, which is slower.", stacklevel=8)


class CudaGraphs:
    """Records passes as CUDA graphs; what `inside` makes of them, if it is given."""

    def __init__(self, inside: Recorder | None = None, tell: Callable[[str], None] = _warn) -> None:
        self._inside, self._tell = inside, tell
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def takes(self, batch: Sequence[Any]) -> bool:
        """Whether a batch is on a CUDA device."""
        return next(rows.tensors(batch)).is_cuda

    def record(self, run: Pass, batch: Sequence[Any]) -> Pass:
        """Return a pass that copies its batch to the graph's own place, and launches it."""
        run = run if self._inside is None else self._inside.record(run, batch)
        static, devices = rows.cloned(batch), [next(rows.tensors(batch)).device]
        before = torch.cuda.current_stream() if torch.cuda.is_available() else None
        try:
            with same_draws(devices):
                state = RandomState(devices)
                wanted = agreement.on_the_side(run(batch))
                draws = not state.same_as(RandomState(devices))
            with same_draws(devices):  # replays draw as if nothing had been recorded
                graph, found = self._captured(run, static)
        except (torch.OutOfMemoryError, MemoryError, SfumatoError):
            raise
        except Exception as error:  # whatever the driver raises
            if before is not None:
                torch.cuda.set_stream(before)
            self._stream, self._pool = None, None
            self._tell(f"the pass could not be recorded ({type(error).__name__}: a model may read no value)")
            return run

        def replay(given: Sequence[Any]) -> tuple[Tensor, ClippedSums]:
            for place, tensor in zip(rows.tensors(static), rows.tensors(given), strict=True):
                place.copy_(tensor, non_blocking=True)
            graph.replay()
            return found

        with same_draws(devices):
            agrees = (agreement.are_alike if draws else agreement.agrees)(replay(batch), wanted)
        if not agrees:
            self._tell("the pass was recorded to something that does not agree with it")
            return run
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
            with _without_waiting():
                run(batch)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            found = run(batch)
        return graph, found


@contextmanager
def _without_waiting() -> Generator[None]:
    """Return a context in which waiting for the GPU raises: a recording that does so breaks the process."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
