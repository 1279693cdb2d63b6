# SPDX-License-Identifier: Apache-2.0
"""Rehearsals: synthetic rows decide how a model is run, and whether it can be, before private rows are run.

Guarantee  The rows of a rehearsal hold nothing of the data but what counts as public: how a batch is nested,
           and the types, the devices and the shapes of its tensors, without the number of rows. So no private
           row decides which engine runs, whether a self-check fails, or whether a model is refused.
Edge cases Several kinds of rows are tried in turn, because some models refuse some values: numbers that may
           be negative, numbers in [0, 1), zeros and ones. Whole numbers are 0 or 1, which a table with two
           entries and a loss with two classes accept. Each shape of rows is rehearsed once, and again if a
           module is set to another mode.
Failure    If the model fails on all kinds, its first error is raised as it is: it cannot quote a row.
Not here   The passes themselves (`passes`), and the comparison with a loop (`self_check`).
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor, nn

from sfumato.errors import UnsupportedModelError
from sfumato.training.data import rows, tree
from sfumato.training.engine.step.failure_guard import QUOTES_NO_ROW, unchain

__all__ = ["Rehearsed", "rehearse_any", "synthetic"]

_ROWS: Final = 3  # different ones, so that a rule which mixes rows is seen

Fill = Callable[[Tensor], Tensor]


def synthetic(batch: Any) -> Iterator[Any]:
    """Yield batches of a few rows, nested and shaped like this one, that hold nothing of it.

    Args:
        batch: Rows, or none: only their nesting, types and shapes are used.

    Yields:
        Batches of different kinds of rows, the same ones each time.

    >>> [b.tolist() for b in synthetic(torch.tensor([7]))][:3]
    [[1, 0, 1], [1, 0, 1], [0, 0, 0]]
    """
    blank = rows.padded(rows.take(batch, slice(0, 0)), _ROWS)
    draws = torch.Generator().manual_seed(0)

    def normal(t: Tensor) -> Tensor:
        return torch.randn(t.shape, generator=draws).to(t)

    def uniform(t: Tensor) -> Tensor:
        return torch.rand(t.shape, generator=draws).to(t)

    def either(t: Tensor) -> Tensor:
        places = torch.arange(t.numel()).reshape(t.shape)
        return ((places + 1) % 2 if t.dim() == 1 else torch.rand(t.shape, generator=draws) < 0.5).to(t)

    kinds: list[tuple[Fill, Fill]] = [
        *((numbers, either) for numbers in (normal, uniform)),
        *product((normal, uniform), (torch.zeros_like, torch.ones_like)),
        (torch.zeros_like, torch.zeros_like),
        (torch.ones_like, torch.ones_like),
    ]
    for numbers, whole in kinds:
        yield rows.mapped(blank, lambda t, n=numbers, w=whole: n(t) if _is_real(t) else w(t))


def _is_real(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def rehearse_any(
    candidates: Iterable[Any], rehearse: Callable[[Any], object], *, done: Callable[[], bool]
) -> None:
    """Rehearse with one batch after the other, until one works and `done` is true.

    Args:
        candidates: Batches of synthetic rows.
        rehearse: Runs a batch, and raises what the model raises.
        done: Whether the rehearsals so far have shown enough.

    Raises:
        UnsupportedModelError: If some batches ran, and none had a finite gradient.

    >>> rehearse_any([0, 1], lambda length: 1 / length, done=lambda: True)
    """
    first: Exception | None = None
    ran = False
    for made in candidates:
        try:
            rehearse(made)
        except QUOTES_NO_ROW as error:
            unchain(error)
            raise
        except Exception as error:  # such rows are no inputs of this model: the next ones may be
            first = error if first is None else first
            continue
        ran = True
        if done():
            return
    if first is not None and not ran:
        raise first
    raise UnsupportedModelError(
        "the gradient of a single row is not finite, whatever the row is: it was tried on rows of zeros, "
        "of ones and of random numbers. Each row is learned from alone, so a model that divides by a "
        "deviation over the batch has no gradient. Normalize within a row (GroupNorm, LayerNorm). If the "
        "model only takes rows of another kind, pass some that are synthetic or public to `rehearse`."
    )


class Rehearsed:
    """The shapes of rows that were rehearsed, each with synthetic rows that the model can run."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._examples: dict[Hashable, Sequence[Any]] = {}

    def add(self, batch: Sequence[Any]) -> None:
        """Note synthetic rows that were run; the first part of a batch is the weights of rows."""
        self._examples[self._key(batch)] = rows.take(batch[1:], slice(0, _ROWS))

    def __len__(self) -> int:
        return len(self._examples)

    def __contains__(self, batch: Sequence[Any]) -> bool:
        return self._key(batch) in self._examples

    def example(self, batch: Sequence[Any], count: int = _ROWS) -> Sequence[Any]:
        """Return synthetic rows shaped like those of a batch. Their weights are 1, if the batch has weights.

        Args:
            batch: Rows of a shape that was rehearsed, or none, after their weights.
            count: How many rows to return.

        Returns:
            So many rows, nested as the batch is.
        """
        weights, *_ = batch
        found = rows.repeat_to(self._examples[self._key(batch)], count)
        return (None if weights is None else weights.new_ones(count), *found)

    def _key(self, batch: Sequence[Any]) -> Hashable:
        _, *own = batch
        parts = list(rows.tensors(own))
        kind = parts[0].device.type
        return (
            tuple((t.shape[1:], t.dtype, t.device) for t in parts),
            tuple(tree.structure(part) for part in own),
            tuple(module.training for module in self._model.modules()),
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
        )
