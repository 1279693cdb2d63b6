# SPDX-License-Identifier: Apache-2.0
"""Draws of a secure generator that are made before they are needed: many at once take less time.

Guarantee  Each draw is handed out once: draws are out of the list while some of them are taken, and those are
           then NaN here. Draws of another generator, or of the process that this one was forked from, are
           dropped. Each thread has draws of its own.
"""

import math
import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from sfumato.mechanisms.random import Generator, process_token

__all__ = ["DrawsAhead"]


class DrawsAhead(threading.local):
    """Draws of one thread; `make` returns so many that a call is worth it."""

    def __init__(self, make: Callable[[Generator], Tensor]) -> None:
        self._make = make
        self._left: list[tuple[Generator, tuple[int, int], Tensor]] = []

    def taken(self, count: int, generator: Generator) -> Iterator[Tensor]:
        """Yield `count` draws, at most as many as are made at once. They are the caller's own."""
        process = process_token()
        owner, maker, left = self._left.pop() if self._left else (None, None, None)
        if left is None or owner is not generator or maker != process or len(left) < count:
            with torch.inference_mode(False):  # a tensor made in inference mode could not be used outside it
                # Copied by numpy: torch would use threads, and in a forked process wait for them for good.
                left = torch.from_numpy(self._make(generator).numpy().copy())
        drawn = left[:count].clone()
        left[:count].fill_(math.nan)
        self._left[:] = [(generator, process, left[count:])]
        yield drawn
