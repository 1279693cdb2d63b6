# SPDX-License-Identifier: Apache-2.0
"""Transfer learning: features of a frozen network, which are computed once and then used as training data.

Guarantee  Row i of the features depends on row i of the data and on public weights alone, so a model trained
           on them has the guarantee that it would have on the data itself, for the same units. The network
           sees one row at a time (`isolation`) and must keep nothing of it (`integrity.release_barrier`). A
           trainable one is refused.
Edge cases The weights must be public: not learned from the data that is to be protected. The features are as
           private as the data. A row that cannot be read has features of NaN, so that training on them leaves
           it out: its gradient is not finite. Features that are whole numbers are those of a row of zeros.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.errors import InvalidParameterError, SfumatoError, UnsupportedModelError, UnsupportedUseError
from sfumato.mechanisms.random import resolve
from sfumato.training.data import rows, tree
from sfumato.training.data.augmentation import quietly
from sfumato.training.data.units import RowSource, moved, open_rows, weighed
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.integrity.release_barrier import Barrier, refuse_unsafe
from sfumato.training.isolation.isolated_rows import Isolated
from sfumato.training.random_state import private_draws

__all__ = ["cached_features"]


@torch.no_grad()
def cached_features(backbone: nn.Module, data: Any, *, batch_size: int = 256) -> tuple[Any, ...]:
    """Return the data with its first part replaced by the outputs of a frozen network, in evaluation mode.

    Args:
        backbone: A network without trainable parameters. Its weights must be public.
        data: Tensors, or a data set, with one row an example.
        batch_size: How many rows are run at once.

    Returns:
        The features in main memory, and the other parts of the data. An example that cannot be read has
        features of NaN, which contribute nothing to training.

    Raises:
        UnsupportedModelError: If the network is trainable, mixes rows, or does not return one tensor.
        NotPrivateError: If the network keeps something of the rows.
        InvalidParameterError: If the data has no rows.
        QueryFailedError: If the network fails on the rows. No row is quoted.

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
    source = open_rows(data, private=True)
    barrier = Barrier(backbone)
    with evaluating(backbone), private_draws(resolve(None), "features", 0):  # a data set may draw
        refuse_unsafe(backbone)
        parts = [_part(backbone, barrier, source, i) for i in torch.arange(len(source)).split(batch_size)]
        return tree.zipped(parts, torch.cat)


def _part(backbone: nn.Module, barrier: Barrier, source: RowSource, index: Tensor) -> tuple[Any, ...]:
    if not len(index):
        raise InvalidParameterError("the data has no rows, so it has no features.")
    (first, *rest), readable = weighed(source, index)
    device = next((t.device for t in (*backbone.parameters(), *backbone.buffers())), torch.device("cpu"))
    x = moved(first, device)
    zeros = rows.padded(rows.take(x, slice(0, 0)), 1)
    found = barrier.run(lambda: _features(backbone, x), lambda: backbone(zeros))
    return (_known(found.cpu(), readable), *rest)


def _known(found: Tensor, readable: Tensor | None) -> Tensor:
    """Return features that are NaN for rows that cannot be read: no gradient of these is finite."""
    if readable is None or not (found.is_floating_point() or found.is_complex()):
        return found  # whole numbers have no NaN, and another type would tell of such a row
    return torch.where(readable.bool().reshape(-1, *[1] * (found.dim() - 1)), found, torch.nan)


def _features(backbone: nn.Module, x: Any) -> Tensor:
    """Return the features of each row alone: of all rows at once, or one after another if that fails."""
    isolated = Isolated(rows.count(x), own_tensors=True)
    try:
        with isolated:
            return isolated.join(_one(backbone(tree.mapped(x, isolated.split)))[0])
    except UnsupportedUseError:
        pass
    except (SfumatoError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception:
        pass  # out of the handler: what is raised there may quote a row, and would be chained
    return quietly(
        "the network",
        lambda: torch.cat([_one(backbone(rows.take(x, slice(i, i + 1)))) for i in range(rows.count(x))]),
    )


def _one(found: Any) -> Tensor:
    if not isinstance(found, Tensor) or found.dim() < 1 or found.shape[0] != 1:
        raise UnsupportedModelError(
            "the network must return one tensor, with one row for each row of the data. Take the part of it "
            "that does."
        )
    return found
