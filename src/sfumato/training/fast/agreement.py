# SPDX-License-Identifier: Apache-2.0
"""Whether a recorded pass computes what the pass computes that it was made of, on the same synthetic rows.

Guarantee  `agrees` is false if totals or sums differ by more than rounding does. A pass that draws (dropout)
           may draw other numbers once compiled, so only the size of its norms can agree.
"""

import math
from typing import Final

import torch
from torch import Tensor

from sfumato.training.privacy.clipping import ClippedSums

__all__ = ["Computed", "agrees", "are_alike", "on_the_side"]

Computed = tuple[Tensor, ClippedSums]  # the total of squared norms, and the sums

_AGREE: Final = {False: 1e-3, True: 3e-2}  # relative difference of sums; True: in bfloat16
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
    scale = max(float(part.double().norm()) for part in sums.values())
    apart = [
        float((got[1].sums[name].to(part).double() - part.double()).norm()) for name, part in sums.items()
    ]
    return all(each <= tolerance * scale for each in apart)  # `max` may overlook NaN


def on_the_side(found: Computed) -> Computed:
    """Return what was computed in the memory of the CPU, so that a GPU need not hold it twice."""
    total, sums = found
    moved = {name: part.cpu() for name, part in sums.sums.items()}
    return total.cpu(), ClippedSums(moved, None if sums.below is None else sums.below.cpu())
