# SPDX-License-Identifier: Apache-2.0
"""Whether a recorded pass computes what the pass computes that it was made of, on the same synthetic rows.

Guarantee  `agrees` is false if totals or sums differ by more than rounding does. A pass that draws (dropout)
           may draw other numbers once compiled, so only the size of its norms can agree.
Edge cases Rounding is more than the last bit of a sum: a ReLU whose input is next to zero is on in one pass
           and off in the other. One such unit moved a sum of a residual network by 6e-4 in float32, and in
           bfloat16 there are many. So small sums are held to their own size, too: what is missing is seen.
"""

import math
from typing import Final

import torch
from torch import Tensor

from sfumato.training.privacy.clipping import ClippedSums

__all__ = ["Computed", "agrees", "are_alike", "on_the_side"]

Computed = tuple[Tensor, ClippedSums]  # the total of squared norms, and the sums

_AGREE: Final = {False: 5e-3, True: 1e-1}  # difference of sums over the largest sum; True: in bfloat16
_OWN: Final = 0.7  # difference of a sum over itself; of one that is missing it is 1
_SMALL: Final = 1e-2  # a sum of this share of the largest, or less, may be all rounding: it is not looked at
_SIZE: Final = 4.0  # times that the squared norms of two draws may differ by


def are_alike(got: Computed, wanted: Computed) -> bool:
    """Whether the total norms of two draws are of one size."""
    one, other = float(got[0]), float(wanted[0])
    return other / _SIZE <= one <= other * _SIZE or not (math.isfinite(one) or math.isfinite(other))


def agrees(got: Computed, wanted: Computed) -> bool:
    """Whether totals and sums are the same up to rounding, relative to the largest of the sums."""
    tolerance = _AGREE[torch.is_autocast_enabled(got[0].device.type)]
    total = got[0].to(wanted[0].device)
    if not bool(wanted[0].isfinite()):
        return not bool(total.isfinite())
    if not torch.allclose(total, wanted[0], rtol=tolerance):
        return False
    sums = wanted[1].sums
    sizes = {name: float(part.double().norm()) for name, part in sums.items()}
    scale = max(sizes.values())
    apart = {
        name: float((got[1].sums[name].to(part).double() - part.double()).norm())
        for name, part in sums.items()
    }  # NaN is below nothing
    return all(
        apart[name] <= tolerance * scale and (size <= _SMALL * scale or apart[name] <= _OWN * size)
        for name, size in sizes.items()
    )


def on_the_side(found: Computed) -> Computed:
    """Return what was computed in the memory of the CPU, so that a GPU need not hold it twice."""
    total, sums = found
    moved = {name: part.cpu() for name, part in sums.sums.items()}
    return total.cpu(), ClippedSums(moved, None if sums.below is None else sums.below.cpu())
