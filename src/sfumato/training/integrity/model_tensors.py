# SPDX-License-Identifier: Apache-2.0
"""The contents of a model's tensors: record them, compare them bit by bit with later ones, put them back.

Guarantee  Any change of a storage is found, by whatever view, alias or `.data` it was made: storages are
           compared as bytes, also those parts of them that no tensor shows.
Edge cases NaN is NaN, and -0.0 is not 0.0. Storages are copied, the smallest first, up to a limit. Of larger
           ones a fingerprint is kept: sums of their words times secret odd numbers, modulo 2^64. It always
           shows a change of one word, and of several words with a chance of about 1 - 2^-63; such a change
           cannot be put back.
Failure    A tensor whose content cannot be read is refused.
"""

import secrets
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from sfumato.errors import UnsupportedModelError

__all__ = ["Stored", "Values", "is_batched", "is_wrapped", "same_bits"]

_CHUNK: Final = 1 << 22  # words that are multiplied at once: 32 MiB
_functorch: Any = torch._C._functorch  # type: ignore[attr-defined]  # finds what vmap left; there is no public way


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor belongs to a function transform of torch.func, at work or over."""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor))


def is_batched(tensor: Tensor) -> bool:
    """Whether a tensor stands for one row of a batch, inside of vmap or left over from it."""
    while is_wrapped(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


@torch.no_grad()
def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have the same type, shape and bits. One of rows that vmap left is like no other."""
    if is_batched(first) or is_batched(second) or is_lazy(first) or is_lazy(second):
        return False
    first, second = _unwrapped(first), _unwrapped(second)
    if _shape(first) != _shape(second):
        return False
    pairs = zip(_parts(first), _parts(second), strict=True)
    return all(_shape(a) == _shape(b) and torch.equal(_bytes(a), _bytes(b)) for a, b in pairs)


def _unwrapped(tensor: Tensor) -> Tensor:
    while is_wrapped(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def _shape(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout


def _bytes(tensor: Tensor) -> Tensor:
    if tensor.is_meta:
        return torch.empty(0, dtype=torch.uint8)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return _words(tensor.clone(memory_format=torch.contiguous_format).untyped_storage())


def _parts(tensor: Tensor) -> list[Tensor]:
    """Return the dense tensors that a tensor is made of: itself, if it is dense."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        return [part for name in flatten()[0] for part in _parts(getattr(tensor, name))]
    if tensor.layout is torch.strided and not tensor.is_nested:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]  # type: ignore[operator]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_nested:
        return [tensor.values()]
    raise UnsupportedModelError(
        f"a tensor of the model has the layout {tensor.layout}, whose content cannot be compared before and "
        "after a private pass. Convert it with .to_dense()."
    )


def _words(storage: torch.UntypedStorage) -> Tensor:
    """Return all bytes of a storage, as large integers if that fits."""
    size = 1 if storage.nbytes() % 8 or storage.data_ptr() % 8 else 8
    dtype = torch.int64 if size == 8 else torch.uint8
    words = torch.empty(0, dtype=dtype, device=storage.device)
    return words.set_(storage, 0, (storage.nbytes() // size,), (1,))  # type: ignore[call-overload]


class Stored:
    """One storage, with a copy or a fingerprint of what it contains."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.place = (storage.data_ptr(), storage.nbytes())
        self.copy: Tensor | None = None
        self._fingerprint: Tensor | None = None
        self._secret: _Secret | None = None

    def keep(self, secret: "_Secret | None") -> None:
        """Remember the content: as a copy, or, if a secret is given, as a fingerprint."""
        if secret is None:
            self.copy = _words(self.storage).clone()
        else:
            self._secret = secret
            self._fingerprint = self._marked()

    @property
    def changed(self) -> bool:
        """Whether the content, or its place, is not what it was."""
        if (self.storage.data_ptr(), self.storage.nbytes()) != self.place:
            return True
        if self.copy is not None:
            return not torch.equal(_words(self.storage), self.copy)
        return self._fingerprint is not None and not torch.equal(self._marked(), self._fingerprint)

    def put_back(self) -> bool:
        """Write the copy back; return whether the content is now what it was."""
        if self.copy is not None:
            if self.storage.nbytes() != self.place[1]:
                self.storage.resize_(self.place[1])
            words = _words(self.storage)
            words.view(torch.uint8).copy_(self.copy.view(torch.uint8))
            self.place = (self.storage.data_ptr(), self.storage.nbytes())  # it may have moved
            return True
        return not self.changed

    def _marked(self) -> Tensor:
        assert self._secret is not None
        chunks = _words(self.storage).split(_CHUNK)
        odd = self._secret.numbers(self.storage.device)
        return torch.stack([(chunk.long() * odd[: len(chunk)]).sum() for chunk in chunks])


class _Secret:
    """Secret odd numbers, shared by the fingerprints of one comparison."""

    def __init__(self) -> None:
        self._seed = secrets.randbits(63)
        self._drawn: dict[torch.device, Tensor] = {}

    def numbers(self, device: torch.device) -> Tensor:
        """Return a number for each word of a chunk, on a device."""
        if device not in self._drawn:
            generator = torch.Generator().manual_seed(self._seed)
            drawn = torch.randint(-(1 << 62), 1 << 62, (_CHUNK,), dtype=torch.int64, generator=generator)
            self._drawn[device] = (2 * drawn + 1).to(device)
        return self._drawn[device]


class _Place:
    """A tensor as an object: which storage it shows, how, and its `.grad`."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name, self.tensor = name, tensor
        self.alias = None if is_lazy(tensor) else tensor.detach()
        self._kind = _kind(tensor)
        self._views = _views(tensor)
        self._before = self._grad()

    def _grad(self) -> tuple[Tensor | None, int]:
        if not self.tensor.is_leaf or self.tensor.is_inference():
            return None, 0
        grad = self.tensor.grad
        return grad, 0 if grad is None else grad._version

    @property
    def changed(self) -> bool:
        """Whether the tensor shows something else, or has another gradient."""
        grad, version = self._grad()
        same_grad = grad is self._before[0] and version == self._before[1]
        return not (same_grad and _kind(self.tensor) == self._kind and _views(self.tensor) == self._views)

    def put_back(self) -> bool:
        """Let the tensor show what it showed; return whether it does. Its storage may have moved."""
        self._drop_grad()
        if self.alias is None:
            return not self.changed
        if _views(self.tensor) != _views(self.alias):
            self.tensor.data = self.alias
        if self.tensor.is_leaf and self.tensor.requires_grad != self._kind[1]:
            self.tensor.requires_grad_(self._kind[1])
        self._put_grad_back()
        if _kind(self.tensor) != self._kind or _views(self.tensor) != _views(self.alias):
            return False
        self._views = _views(self.tensor)
        return True

    def _drop_grad(self) -> None:
        """Take a gradient away that is not what it was: it may not fit the tensor that is put back."""
        grad, version = self._grad()
        if grad is not None and (grad is not self._before[0] or version != self._before[1]):
            self.tensor.grad = None

    def _put_grad_back(self) -> None:
        """Give the tensor its gradient, or none if what it was is not known: the next step sets it."""
        before, version = self._before
        if before is None or self.tensor.grad is before:
            return
        if before._version == version and _kind(before)[2:] == _kind(self.tensor)[2:]:
            self.tensor.grad = before
        else:
            self._before = None, 0


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.requires_grad, tensor.dtype, tensor.device


def _views(tensor: Tensor) -> list[Any]:
    """Return which parts of which storages a tensor shows."""
    if is_lazy(tensor):
        return []
    parts = [
        (p.shape, p.stride(), p.storage_offset(), p.untyped_storage().data_ptr()) for p in _parts(tensor)
    ]
    return [tensor.shape, *parts]


class Values:
    """What named tensors and arrays contain, kept for a comparison."""

    @torch.no_grad()
    def __init__(
        self,
        tensors: Sequence[tuple[str, Tensor]],
        arrays: Sequence[tuple[str, np.ndarray[Any, Any] | bytearray]] = (),
        *,
        keep_bytes: int,
    ) -> None:
        self._places = {id(tensor): _Place(name, tensor) for name, tensor in tensors}
        self._arrays = [(name, array, _bytes_of(array)) for name, array in arrays]
        self._stored: dict[tuple[int, int], tuple[Stored, dict[int, str]]] = {}
        for place in self._places.values():
            for storage in _storages(place):
                key = (storage.data_ptr(), storage.nbytes())
                self._stored.setdefault(key, (Stored(storage), {}))[1][id(place.tensor)] = place.name
        left, secret = keep_bytes, _Secret()
        for (_, size), (stored, _) in sorted(self._stored.items(), key=lambda item: item[0][1]):
            stored.keep(None if size <= left else secret)
            left -= size

    @torch.no_grad()
    def changes(self) -> list[str]:
        """Return the names of tensors and arrays that are not what they were."""
        found = [place.name for place in self._places.values() if place.changed]
        found += [
            name for stored, names in self._stored.values() if stored.changed for name in names.values()
        ]
        found += [name for name, array, before in self._arrays if _bytes_of(array) != before]
        return list(dict.fromkeys(found))

    @torch.no_grad()
    def put_back(self) -> list[str]:
        """Put everything back that can be; return the names of what cannot."""
        changed = [(stored, names) for stored, names in self._stored.values() if stored.changed]
        lost = [name for stored, names in changed if not stored.put_back() for name in names.values()]
        lost += [place.name for place in self._places.values() if not place.put_back()]
        lost += [name for name, array, before in self._arrays if not _refilled(array, before)]
        return list(dict.fromkeys(lost))

    def only(self, tensors: Collection[int]) -> "Values":
        """Return what is kept of tensors with these ids."""
        part = Values((), keep_bytes=0)
        part._places = {i: place for i, place in self._places.items() if i in tensors}
        part._stored = {
            key: (stored, names)
            for key, (stored, names) in self._stored.items()
            if not names.keys().isdisjoint(tensors)
        }
        return part


def _storages(place: _Place) -> Iterator[torch.UntypedStorage]:
    if place.alias is None:
        return
    for part in _parts(place.alias):
        storage = part.untyped_storage()
        if not part.is_meta and storage.nbytes():
            yield storage


def _bytes_of(array: np.ndarray[Any, Any] | bytearray) -> bytes:
    return bytes(array) if isinstance(array, bytearray) else array.tobytes()


def _refilled(array: np.ndarray[Any, Any] | bytearray, before: bytes) -> bool:
    if _bytes_of(array) == before:
        return True
    if isinstance(array, bytearray):
        array[:] = before
    elif not array.dtype.hasobject and array.flags.writeable:
        array[...] = np.frombuffer(before, dtype=array.dtype).reshape(array.shape)
    return _bytes_of(array) == before
