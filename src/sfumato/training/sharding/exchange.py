# SPDX-License-Identifier: Apache-2.0
"""How ranks lend each other their shards while each of them works on rows of its own.

A rank that needs the whole values of a unit, or has clipped sums of one to give away, wishes for it; a rank
that is done with its rows wishes for nothing. In each round all ranks tell their wishes, and all of them take
part in each wish: they give their shards to a unit that somebody gathers, and zeros to a sum to which they
have nothing to add. The rounds end when every rank is done.

Guarantee  Ranks need not run the same passes. One of them may have more rows than another, or none, may run a
           unit again because its gradient was not finite, or row by row because the model failed on it: the
           others serve it meanwhile. So rows decide neither whether a step ends, nor what it adds up: each
           sum that a rank gives away is added once, to the shards of all ranks.
Failure    A rank that fails in a step tells the others, and all of them raise. If a rank dies, the others
           raise when their connection breaks or the timeout is over. A sum that was given away in part, for
           example because memory ran out, ends the run: it could not be taken back. So does an interrupt
           (Ctrl-C) in a step: the others may hold a part of its sums, which would be added to the next ones.
Not here   Secrets: ranks trust each other (`distributed`). When a rank asks shows what it works on.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sfumato.training.distributed import OtherRankError
from sfumato.training.sharding.layout import Shard, added_up, gathered, whole

__all__ = ["Exchange", "PartialSumError"]

_HELD: Final = 2  # units whose whole values are kept: the one at work, and one around it
_DONE, _FAILED, _FIRST = 0, 1, 2  # a wish for unit u is 2 u + 2 to gather it, 2 u + 3 to add it up

Take = Callable[[Mapping[str, Tensor]], None]
Result = TypeVar("Result")


class PartialSumError(OtherRankError):
    """Raised if a sum was given to the other ranks in part only, so that the step cannot be computed."""


class Exchange:
    """This rank's side of the rounds.

    Args:
        shards: The sharded parameters, those of a unit one after the other.
        take: Adds this rank's shards of a sum to those of the step.
    """

    def __init__(self, shards: Sequence[Shard], take: Take) -> None:
        units = groupby(sorted(shards, key=lambda shard: shard.unit), key=lambda shard: shard.unit)
        self.units = [list(unit) for _, unit in units]
        self._unit_of = {shard.name: shard.unit for shard in shards}
        self._take = take
        self._held: OrderedDict[int, dict[str, Tensor]] = OrderedDict()
        self._broken: str | None = None
        first = shards[0].parameter
        self._group = first.device_mesh.get_group()
        backends = dist.get_backend_config(self._group)
        # Wishes are read at once: on the CPU, where the group can carry them, nobody waits for the device.
        self._device = torch.device("cpu") if "cpu:" in backends else first.to_local().device

    def value(self, name: str) -> Tensor:
        """Return a whole parameter as it is now."""
        unit = self._unit_of[name]
        if unit not in self._held:
            self._until(_FIRST + 2 * unit)
        self._held.move_to_end(unit)
        return self._held[unit][name]

    def add(self, names: Sequence[str], totals: Mapping[str, Tensor]) -> None:
        """Give away the sums of a unit's trainable parameters, which are named, each of them whole."""
        self._until(_FIRST + 2 * self._unit_of[names[0]] + 1, totals)

    def serve(self) -> None:
        """Answer the other ranks until all are done."""
        self.drop()
        self._until(_DONE)

    def drop(self) -> None:
        """Forget whole values: they are about to change, or their memory is needed."""
        self._held.clear()

    def fail(self) -> None:
        """Tell the other ranks that this one cannot go on, once; they raise."""
        self.drop()
        if self._broken is None:
            with suppress(OtherRankError):
                self._announced(_FAILED)
            self._broken = "a step failed on this rank"

    def interrupt(self) -> None:
        """Refuse what this rank wants from now on. Others are not told: they may wait for something else."""
        self.drop()
        self._broken = self._broken or "a step was interrupted on this rank"

    def _until(self, wish: int, totals: Mapping[str, Tensor] | None = None) -> None:
        """Take part in the wishes of all ranks until this rank's own is fulfilled."""
        while True:
            wishes = self._announced(wish)
            if _FAILED in wishes:
                self._broken = f"rank {wishes.index(_FAILED)} failed in a step"
                raise OtherRankError(f"{self._broken}, so no rank can go on. Its own error has the reason.")
            for each in sorted({other for other in wishes if other >= _FIRST}):
                self._fulfil(each, mine=each == wish, totals=totals)
            if wish != _DONE or set(wishes) == {_DONE}:
                return

    def _announced(self, wish: int) -> list[int]:
        """Tell this rank's wish, and return those of all ranks."""
        if self._broken is not None:
            raise OtherRankError(f"{self._broken}: set training up anew.")
        own = torch.tensor([wish], dtype=torch.int64, device=self._device)
        told: Tensor = self._together(lambda: gathered(own, self._group))
        return [int(wish) for wish in told.tolist()]

    def _together(self, work: Callable[[], Result]) -> Result:
        """Return what work of all ranks returns. If it fails on one of them, it fails on all."""
        try:
            return work()
        except RuntimeError as error:  # torch has no other for a connection; of memory it is one, too
            self._broken = f"what all ranks do together failed on this rank ({type(error).__name__})"
            raise OtherRankError(f"{self._broken}: another one has died, or memory ran out.") from None

    def _fulfil(self, wish: int, *, mine: bool, totals: Mapping[str, Tensor] | None) -> None:
        unit, adds = divmod(wish - _FIRST, 2)
        if adds:
            given = totals if mine and totals is not None else {}
            self._together(lambda: self._take(self._added_up(unit, given)))
            return
        while mine and len(self._held) >= _HELD:  # before another one takes memory
            self._held.popitem(last=False)
        found = self._together(lambda: {s.name: whole(s.parameter) for s in self.units[unit]})
        if mine:
            self._held[unit] = found

    def _added_up(self, unit: int, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        trainable = [shard for shard in self.units[unit] if shard.trainable]
        return {shard.name: added_up(shard, given.get(shard.name)) for shard in trainable}
