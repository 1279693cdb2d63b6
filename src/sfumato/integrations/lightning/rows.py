# SPDX-License-Identifier: Apache-2.0
"""The rows of a Lightning data loader, and whether validation data are other rows.

Guarantee  A row is what the loader makes of one example alone: `collate_fn` is called with one example at a
           time, so it cannot put one example into the row of another. The loader's order, its sampler and
           its batches are not used.
Failure    A loader that decides by itself which rows come together is refused, as it is by `make_private`.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from sfumato.errors import InvalidParameterError
from sfumato.training.adapters.data_loader import refuse_other_batches
from sfumato.training.data import tree

__all__ = ["BATCH", "PrivateBatch", "StepTokens", "refuse_shared_rows", "rows_of"]

BATCH = "batch"  # the one key of a row: what `training_step` gets as its batch


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
    return _Rows(data, None if plain else loader.collate_fn)


class _Rows(Dataset[Any]):
    """Examples as rows. `collate` makes a batch of one example; without it torch's own does."""

    def __init__(self, data: Any, collate: Any) -> None:
        self._data, self._collate = data, collate
        for name in ("user_ids", "public_size"):  # what the data says of its units
            if hasattr(data, name):
                setattr(self, name, getattr(data, name))

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, number: int) -> dict[str, Any]:
        example = self._data[number]
        if self._collate is None:
            return {BATCH: example}
        return {BATCH: tree.mapped(self._collate([example]), _first)}


def _first(tensor: Tensor) -> Tensor:
    if not tensor.dim() or tensor.shape[0] != 1:
        raise InvalidParameterError(
            "collate_fn must return tensors with one row for each example on their first axis: a clipped "
            "gradient is one row's. Keep other tensors out of the batch."
        )
    return tensor[0]


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
    private, its = _base(private)
    shown, others = _base(shown)
    if private is shown:
        return its is None or others is None or bool(its & others)
    if type(private) is type(shown) is TensorDataset:
        return any(_overlap(a, b) for a in private.tensors for b in shown.tensors)
    return False


def _base(data: Any) -> tuple[Any, set[int] | None]:
    """Return the data set that subsets were taken of, and which of its rows are left; None for all."""
    numbers: list[int] | None = None
    while isinstance(data, Subset):
        own = [int(i) for i in data.indices]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        numbers = own if numbers is None else [own[i] for i in numbers]
        data = data.dataset  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return data, None if numbers is None else set(numbers)  # pyright: ignore[reportUnknownVariableType]


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
