# SPDX-License-Identifier: Apache-2.0
"""The nearest point of a simplex.

`onto_simplex` returns, for each row, the point of {w >= 0, sum w = total} that is nearest in Euclidean
distance. It is exact up to rounding, by sorting.

Edge cases Minus infinity gets weight 0; infinite entries share `total` equally. A row of minus infinity
           alone, a NaN and a row without entries have no nearest point and raise InvalidParameterError.
Source     Wang, Carreira-Perpinan 2013, arXiv:1309.1541, Algorithm 1.
"""

import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["onto_simplex"]


def onto_simplex(values: Tensor, *, total: float = 1.0) -> Tensor:
    """Project each row (last axis) on the simplex {w >= 0, sum w = total}.

    Args:
        values: The rows, float32 or float64.
        total: The sum of each projected row, above 0.

    Returns:
        The projected rows, of the same shape.

    Raises:
        InvalidParameterError: If a row has no nearest point, or `values` has another type.

    >>> onto_simplex(torch.tensor([[0.5, 0.25, 0.25], [3.0, 1.0, 2.5]]))
    tensor([[0.5000, 0.2500, 0.2500],
            [0.7500, 0.0000, 0.2500]])
    """
    _check.positive(total=total)
    _refuse(values)
    highest = values.amax(-1, keepdim=True) if values.numel() else values
    # A shift does not change the projection. It keeps the differences of huge entries from rounding away.
    shifted = torch.where(values == highest, 0.0, values - highest).clamp(min=-2 * total)
    ordered = shifted.sort(-1, descending=True).values
    ranks = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    cuts = (ordered.cumsum(-1) - total) / ranks  # the threshold if just the first entries were kept
    kept = (ordered > cuts).sum(-1, keepdim=True).clamp(min=1)
    return (shifted - cuts.gather(-1, kept - 1)).clamp(min=0)


def _refuse(values: Tensor) -> None:
    if not (values.dim() and values.shape[-1] and values.dtype in (torch.float32, torch.float64)):
        raise InvalidParameterError(
            f"values must be a float32 or float64 tensor with at least one entry in its last axis, but they "
            f"are {values.dtype} of shape {list(values.shape)}."
        )
    if values.numel() and not bool((values.amax(-1) > -torch.inf).all()):  # amax passes NaN on
        raise InvalidParameterError(
            "values contain a NaN, or a row of minus infinity alone: there is no nearest point."
        )
