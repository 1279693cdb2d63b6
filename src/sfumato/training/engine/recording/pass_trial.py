# SPDX-License-Identifier: Apache-2.0
"""How long the passes of one engine take in each way, over synthetic rows of a public number.

Guarantee  Rows are those of a rehearsal, repeated to the expected size of a batch, or of a piece. A pass is
           timed after the device has done it. A recorded pass has agreed with its engine before it is timed,
           and gives finite sums where rows of zeros pad a batch.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sfumato.errors import NotPrivateError
from sfumato.training.data import rows
from sfumato.training.engine.recording.recorded_pieces import recorder
from sfumato.training.fast.choice import Unusable, Way
from sfumato.training.fast.pass_cache import Recordings
from sfumato.training.fast.sizes import Sizes
from sfumato.training.privacy.clipping import Clipper
from sfumato.training.privacy.gradient_pass import Engine
from sfumato.training.random_state import RandomState

__all__ = ["PassTrial"]

_TURNS: Final = 5  # of which the fastest counts: others were held up by something else

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class PassTrial:
    """Measures the passes of one engine.

    Args:
        engine: The engine.
        clipper: How its gradients are clipped.
        model: The model.
        eager: Runs a batch as it is run without recordings.
        shown: A few synthetic rows, after their weights.
        per_unit: How many rows a unit has.
        sizes: Return the sizes that batches are padded to; with True as few as possible.
        use: Takes recordings to be used from now on; None for none.
        refusal: Why recordings would not pay; None if they may.
        clock: Returns the time in seconds.
        kept: Compiled passes, which take long to make, until it is known whether they are used.
    """

    engine: Engine
    clipper: Clipper
    model: nn.Module
    eager: Callable[[Sequence[Any], int], object]
    shown: Sequence[Any]
    per_unit: int
    sizes: Callable[[bool], Sizes]
    use: Callable[[Recordings | None], None]
    refusal: str | None = None
    clock: Clock = time.perf_counter
    kept: dict[Way, Recordings] = field(default_factory=dict[Way, Recordings])

    def draws(self) -> bool:
        """Whether a pass draws random numbers."""
        batch = self._batch()
        devices = [t.device for t in rows.tensors(batch)]
        before = RandomState(devices)
        self.eager(batch, self.per_unit)
        return not before.same_as(RandomState(devices))

    def operations(self) -> int:
        """How many operations a pass consists of."""
        with _Counting() as counting:
            self.eager(self._batch(), self.per_unit)
        return counting.count

    def seconds(self, way: Way) -> float:
        """Return how long a pass takes.

        Raises:
            Unusable: If it cannot be run in this way.
        """
        try:
            batch = self._batch()
            if way is Way.EAGER:
                return self._fastest(lambda: self.eager(batch, self.per_unit))
            recordings = self._recorded(way, batch)
            seconds = self._fastest(lambda: recordings.replay(batch, self.per_unit))
        except (Unusable, NotPrivateError):
            raise
        except (torch.OutOfMemoryError, MemoryError):
            raise Unusable("there is not enough memory") from None
        except Exception as error:  # on synthetic rows; the message may still quote a weight
            raise Unusable(f"the pass failed ({type(error).__name__})") from None
        finally:
            _free(self._device)
        if way.compiles:
            self.kept[way] = recordings  # others are soon made anew, and hold memory until then
        return seconds

    def keep(self, way: Way) -> None:
        """Run passes in this way from now on."""
        if way is Way.EAGER:
            return self.use(None)
        self.use(self.kept.get(way) or self._recordings(way, lambda _: None))

    def _recorded(self, way: Way, batch: Sequence[Any]) -> Recordings:
        told: list[str] = []
        recordings = self._recordings(way, told.append)
        found = recordings.replay(batch, self.per_unit, record=lambda count: self._made(count))
        if told or found is None:
            raise Unusable(told[0] if told else "the pass failed, or there is not enough memory")
        blank = rows.mapped(batch, torch.clone)
        for tensor in rows.tensors(blank):
            tensor[-self.per_unit :] = 0
        padded = recordings.replay(blank, self.per_unit)
        if found.finite() and (padded is None or not padded.finite()):
            raise Unusable("a row of zeros, which would pad batches, has no finite gradient")
        return recordings

    def _recordings(self, way: Way, tell: Callable[[str], None]) -> Recordings:
        return Recordings(
            self.engine,
            self.clipper,
            self.model,
            recorder(cuda_graphs=way in (Way.GRAPHS, Way.BOTH), compile=way.compiles, tell=tell),
            sizes=self.sizes(way.compiles),
            if_possible=True,
        )

    def _batch(self) -> Sequence[Any]:
        return self._made(self.sizes(False).middle * self.per_unit)

    def _made(self, count: int) -> Sequence[Any]:
        _, *own = self.shown
        return (torch.ones(count, device=self._device), *rows.repeat_to(own, count))

    @property
    def _device(self) -> torch.device:
        return next(rows.tensors(self.shown)).device

    def _fastest(self, run: Callable[[], object]) -> float:
        run()  # its memory is allocated, and its kernels are chosen
        return min(self._turn(run) for _ in range(_TURNS))

    def _turn(self, run: Callable[[], object]) -> float:
        _wait(self._device)
        begin = self.clock()
        run()
        _wait(self._device)
        return self.clock() - begin


class _Counting(TorchDispatchMode):
    """Counts the operations that are called in it."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
