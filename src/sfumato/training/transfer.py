# SPDX-License-Identifier: Apache-2.0
"""Transfer learning: features of a frozen network, computed once and trained on as if they were the data.

Guarantee  Row i of the features depends on row i of the data and on public weights alone, so a model trained
           on them has the guarantee that it would have on the data itself, for the same units. A network that
           is trainable is refused, and so is one whose output for a row changes with the rows beside it.
Public     The weights must not come from the data that is to be protected.
Private    The features are as private as the data.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.training import rows, tree
from sfumato.training.data import RowSource, moved, open_rows
from sfumato.training.modes import evaluating

__all__ = ["cached_features"]

_TRIED: Final = 4  # rows that are run together and alone
_ROUNDING: Final = 1e-3  # relative; kernels round differently for other sizes of a batch


@torch.no_grad()
def cached_features(backbone: nn.Module, data: Any, *, batch_size: int = 256) -> tuple[Any, ...]:
    """Return the data with its first part replaced by what a frozen network makes of it, in evaluation mode.

    >>> backbone = nn.Linear(8, 3).requires_grad_(False)
    >>> features, labels = cached_features(backbone, (torch.zeros(5, 8), torch.arange(5)))
    >>> features.shape, labels.shape
    (torch.Size([5, 3]), torch.Size([5]))
    """
    _check.count(batch_size=batch_size)
    trainable = [name for name, p in backbone.named_parameters() if p.requires_grad]
    if trainable:
        raise UnsupportedModelError(
            f"features are kept only of a frozen network, but {trainable[:3]} are trainable. Freeze it with "
            "backbone.requires_grad_(False); its weights must be public, not learned from this data."
        )
    source = open_rows(data)
    with evaluating(backbone):
        parts = [_part(backbone, source, i) for i in torch.arange(len(source)).split(batch_size)]
        return tree.zipped(parts, torch.cat)


def _part(backbone: nn.Module, source: RowSource, index: Tensor) -> tuple[Any, ...]:
    if not len(index):
        raise InvalidParameterError("the data has no rows, so it has no features.")
    first, *rest = source.take(index)
    found = _run(backbone, first)
    if index[0] == 0:
        _refuse_mixing(backbone, first, found)
    return (found, *rest)


def _run(backbone: nn.Module, x: Any) -> Tensor:
    device = next((t.device for t in (*backbone.parameters(), *backbone.buffers())), torch.device("cpu"))
    found = backbone(moved(x, device))
    if not isinstance(found, Tensor) or found.dim() < 1 or found.shape[0] != rows.count(x):
        raise UnsupportedModelError(
            "the network must return one tensor, with one row for each row of the data. Take the part of it "
            "that does."
        )
    return found.cpu()


def _refuse_mixing(backbone: nn.Module, x: Any, found: Tensor) -> None:
    """Compare some rows with what they give alone; whatever mixes shows there."""
    for i in range(min(_TRIED, len(found))):
        alone = _run(backbone, rows.take(x, slice(i, i + 1)))[0].double().nan_to_num()
        beside = found[i].double().nan_to_num()
        if not (alone - beside).norm() <= _ROUNDING * beside.norm() + _ROUNDING:
            raise UnsupportedModelError(
                "the network gives a row other features when other rows are beside it, so one example would "
                "reach into the features of others. Use layers that keep rows apart; batch norm must have "
                "running statistics."
            )
