# SPDX-License-Identifier: Apache-2.0
"""The rows of a Lightning data loader, and whether validation data are other rows.

Guarantee  A row is what the loader makes of one example alone (`readable_rows`): `collate_fn` is called with
           one example at a time, so it cannot put one example into the row of another. The loader's order,
           its sampler and its batches are not used.
Failure    A loader that decides by itself which rows come together is refused, as it is by `make_private`.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, default_collate

from sfumato.errors import InvalidParameterError
from sfumato.training.adapters.data_loader import refuse_other_batches
from sfumato.training.data.readable_rows import BATCH, ReadableRows

__all__ = ["PrivateBatch", "StepTokens", "refuse_shared_rows", "rows_of"]


def rows_of(loader: Any) -> Any:
    """Return the data of a loader, each row in the form in which `training_step` gets a batch.

    Args:
        loader: A `DataLoader` with a batch size and without a sampler of its own.

    Returns:
        Tensors or a data set, for `sfumato.training`.

    Raises:
        InvalidParameterError: If the loader forms its batches in a way of its own.

    >>> import torch
    >>> data = TensorDataset(torch.zeros(6, 2), torch.zeros(6))
    >>> [part.shape[0] for part in rows_of(DataLoader(data, batch_size=3))["batch"]]
    [6, 6]
    """
    if not isinstance(loader, DataLoader):
        raise InvalidParameterError(
            f"the training data comes from a {type(loader).__name__}. Give one torch.utils.data.DataLoader: "
            "its data set is sampled by row."
        )
    refuse_other_batches(loader)  # pyright: ignore[reportUnknownArgumentType] - of any data set
    data: Any = loader.dataset  # pyright: ignore[reportUnknownMemberType]
    plain = loader.collate_fn is default_collate
    if plain and type(data) is TensorDataset:
        return {BATCH: list(data.tensors)}
    return ReadableRows(data, None if plain else loader.collate_fn)


# --- what Lightning sees ----------------------------------------------------------------------------------


class PrivateBatch:
    """What hooks get in place of a batch: it holds nothing, and whatever is asked of it raises."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<a private batch>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by Python or torch, to find out what kind of object this is
            raise AttributeError(name)
        raise self._refusal()

    def __getitem__(self, key: Any) -> Any:
        raise self._refusal()

    def __iter__(self) -> Iterator[Any]:
        raise self._refusal()

    def __len__(self) -> int:
        raise self._refusal()

    @staticmethod
    def _refusal() -> InvalidParameterError:
        return InvalidParameterError(
            "a hook reads the batch, but the rows of a batch are private, and so is how many they are. Hooks "
            "such as on_train_batch_end get an object without content. Compute what you need in "
            "training_step."
        )


class StepTokens:
    """An epoch for Lightning's loop: one `PrivateBatch` for each step. `begin` is where it goes on."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.begin = 0

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[PrivateBatch]:
        begin, self.begin = self.begin, 0
        for _ in range(begin, self._steps):
            yield PrivateBatch()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the steps that a run has taken are counted elsewhere."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


# --- validation -------------------------------------------------------------------------------------------


def refuse_shared_rows(private: Any, shown: Any) -> None:
    """Raise if a data set that is evaluated has rows of the private one, as far as that can be found out.

    Args:
        private: The data set that is trained on.
        shown: A data set whose loss is shown exactly.

    Raises:
        InvalidParameterError: If they are one object, subsets with a row in common, or share tensors.
    """
    if _share_rows(private, shown):
        raise InvalidParameterError(
            "the validation data has rows of the private training data. What is measured on them is shown "
            "exactly, so it would be a release without noise. Validate on rows that need no protection."
        )


def _share_rows(private: Any, shown: Any) -> bool:
    return any(_meet(one, other) for one in _parts(private) for other in _parts(shown))


def _meet(private: tuple[Any, set[int] | None], shown: tuple[Any, set[int] | None]) -> bool:
    (data, its), (other, others) = private, shown
    if data is other:
        return its is None or others is None or bool(its & others)
    if isinstance(data, TensorDataset) and isinstance(other, TensorDataset):
        return any(_overlap(a, b) for a in data.tensors for b in other.tensors)
    return False


def _parts(data: Any, numbers: list[int] | None = None) -> list[tuple[Any, set[int] | None]]:
    """Return the data sets that subsets and chains were made of, and which of their rows; None for all."""
    if isinstance(data, Subset):
        own = [int(i) for i in data.indices]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return _parts(data.dataset, own if numbers is None else [own[i] for i in numbers])  # pyright: ignore[reportUnknownMemberType]
    if isinstance(data, ConcatDataset):
        return _chained(data, numbers)  # pyright: ignore[reportUnknownArgumentType] - of any data sets
    return [(data, None if numbers is None else set(numbers))]


def _chained(data: ConcatDataset[Any], numbers: list[int] | None) -> list[tuple[Any, set[int] | None]]:
    found: list[tuple[Any, set[int] | None]] = []
    begin = 0
    for part, end in zip(data.datasets, data.cumulative_sizes, strict=True):
        own = None if numbers is None else [i - begin for i in numbers if begin <= i < end]
        found += _parts(part, own)
        begin = end
    return found


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share memory; rows that lie one after the other do not."""
    if (
        not one.numel()
        or not other.numel()
        or one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
    ):
        return False
    begin, end = _range(one)
    its_begin, its_end = _range(other)
    return begin < its_end and its_begin < end


def _range(tensor: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
