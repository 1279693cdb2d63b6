# SPDX-License-Identifier: Apache-2.0
"""The units of a run, extended with synthetic canary units at random places.

A canary's row is a row of zeros, the number of the canary, and the length that its gradient is given. The
rows of other units have the number 0 and the length 1.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.mechanisms.random import Generator
from sfumato.training.data import rows
from sfumato.training.data.units import Batch, Units

__all__ = ["UnitsWithCanaries"]


class UnitsWithCanaries(Units):
    """Units with canaries at random places among them: their rows are zeros and a number."""

    def __init__(self, inner: Units) -> None:
        self._inner = inner
        self.placed = False  # whether a canary had a row in a batch

    def seat(self, numbers: Tensor, pulls: Tensor, key: int) -> None:
        """Say which canaries take part, how long their gradients are, and by what their places are drawn."""
        self._seats, self._pulls, self._key = numbers, pulls, key
        self._drawn: tuple[int, Tensor] | None = None

    @property
    def _places(self) -> Tensor:
        """The numbers that canaries have among the units, in order."""
        others = self._inner.num_units  # known only once deferred rows were read
        if self._drawn is None or self._drawn[0] != others:
            everybody, draws = others + len(self._seats), np.random.default_rng(self._key)
            chosen = draws.choice(everybody, len(self._seats), replace=False)
            self._drawn = others, torch.from_numpy(np.sort(chosen))
        return self._drawn[1]

    def _split(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of some units are canaries, and for each the number of canaries before it."""
        places, units = self._places, units.cpu().contiguous()
        before = torch.searchsorted(places, units)
        if not len(places):
            return torch.zeros(len(units), dtype=torch.bool), before
        return places[before.clamp(max=len(places) - 1)] == units, before

    def canaries(self, units: Tensor) -> Tensor:
        """Return the canaries among some units, by number from 1."""
        mine, before = self._split(units)
        return self._seats[before[mine]]

    @property
    def deferred(self) -> bool:
        return self._inner.deferred

    def open(self) -> None:
        self._inner.open()

    @property
    def num_units(self) -> int:
        return self._inner.num_units + len(self._seats)

    @property
    def rows_per_unit(self) -> int | None:
        return self._inner.rows_per_unit

    @property
    def by_owner(self) -> bool:
        return self._inner.by_owner

    @property
    def plain(self) -> bool:
        return self._inner.plain

    def blank(self, units: int) -> tuple[Any, ...] | None:
        """Return rows of zeros, each that of a canary: in a rehearsal, their gradients must be finite."""
        found = self._inner.blank(units)
        return None if found is None else (*found, torch.arange(1, units + 1), torch.ones(units))

    def take(self, units: Tensor, generator: Generator | None = None) -> Batch:
        """Return the rows of units and canaries, in the order of their numbers.

        Where nobody knows what a row looks like, as of a data set without rows, canaries have none.
        """
        mine, before = self._split(units)
        others = self._inner.take((units - before)[~mine], generator)
        given = others.rows or self._inner.blank(0)
        if not len(units) or given is None:
            return Batch(())
        self.placed = self.placed or bool(mine.any())
        return self._joined(others, given, mine, before[mine])

    def _joined(self, others: Batch, given: tuple[Any, ...], mine: Tensor, seats: Tensor) -> Batch:
        width = others.rows_per_unit
        if width > 1:
            mine, seats = mine.repeat_interleave(width), seats.repeat_interleave(width)
        real, blank = (~mine).nonzero().flatten(), mine.nonzero().flatten()

        def spread(part: Tensor) -> Tensor:
            found = part.new_zeros((len(mine), *part.shape[1:]))
            return found.index_copy_(0, real, part)

        places, pulls = torch.zeros(len(mine), dtype=torch.int64), torch.ones(len(mine))
        places[blank], pulls[blank] = self._seats[seats], self._pulls[seats]
        weights = others.row_weights
        if weights is not None or width > 1:
            own = torch.full((len(mine),), 1 / width)  # averaged, as an owner's rows are
            own[real] = 1.0 if weights is None else weights
            weights = own
        return Batch((*rows.mapped(given, spread), places, pulls), width, weights, others.numbers)
