# SPDX-License-Identifier: Apache-2.0
"""The few sizes that batches are padded to, so that a few recordings serve all of them.

Guarantee  Sizes are computed from public numbers: how many units are expected, how many are run at once, and
           how many processes share them. The size of a batch is private; it decides which of the sizes is
           used, which changes no sum, and is reported nowhere.
Edge cases A batch of exactly the expected size, or of exactly the size of a piece, is not padded. Smaller
           batches than the smallest size are padded to it. Larger ones than nearly all batches have (three
           deviations above the mean) get further sizes, at the same distances.
"""

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["Sizes", "sizes_for"]

_BELOW: Final = 2  # sizes below the expected one: a smaller batch is rare, and padded to the smallest
_TAIL: Final = 3.0  # deviations above the mean that a batch hardly ever exceeds
_PIECES: Final = 4  # sizes of pieces, if a batch is run in several


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes at equal distances, one of which is `middle`, and none of which is below `least`.

    >>> sizes = Sizes(step=8, middle=64, least=48)
    >>> [units + sizes.padding(units) for units in (3, 48, 49, 64, 65, 100)]
    [48, 48, 56, 64, 72, 104]
    """

    step: int = 1
    middle: int = 0
    least: int = 0
    most: int | None = None  # what fits in memory

    def padding(self, units: int) -> int:
        """Return how many units a batch is padded with."""
        least = max(units, self.least)
        size = least + (self.middle - least) % self.step
        return (size if self.most is None else max(min(size, self.most), units)) - units


def sizes_for(expected: float, *, microbatch_size: int | None, ranks: int = 1, coarse: bool = False) -> Sizes:
    """Return the sizes for batches of which so many units are expected, whose number varies.

    The standard deviation of a Poisson sample's size is below the root of the expected one. With `coarse`
    the distances are twice as large: fewer recordings, for a way that takes long to make one.

    >>> sizes_for(2048, microbatch_size=None)
    Sizes(step=46, middle=2048, least=1956, most=None)
    >>> sizes_for(2048, microbatch_size=256)
    Sizes(step=64, middle=256, least=64, most=256)
    """
    mean = max(1, math.ceil(expected / ranks))
    deviation = math.sqrt(mean)
    if microbatch_size is not None and microbatch_size < mean + _TAIL * deviation:
        step = max(1, math.ceil(microbatch_size / (_PIECES // 2 if coarse else _PIECES)))
        least = microbatch_size - (microbatch_size - 1) // step * step
        return Sizes(step=step, middle=microbatch_size, least=least, most=microbatch_size)
    step = math.ceil(deviation * (2 if coarse else 1))
    below = 1 if coarse else _BELOW
    return Sizes(step=step, middle=mean, least=max(1, mean - below * step), most=microbatch_size)
