# SPDX-License-Identifier: Apache-2.0
"""The objects that a model refers to: record them, compare them with later ones, and put them back.

Guarantee  Every entry of every module's `__dict__` (parameters, buffers, submodules, hooks, attributes) is
           compared, and whatever these lead to: lists, dicts, sets, tuples, objects, bound methods, closures,
           and attributes that were set on tensors. The same is the same object, or an immutable value, a
           container or a tensor of the same type and content. Such a replacement is put back, too: the new
           object may hold a graph of private rows. Of what only a function leads to, such as a list that a
           hook fills, tensors count and nothing else: it does not leave with the model.
Failure    Names are those that existed before: a key or an attribute that is new may itself be private.
Not here   What tensors and arrays contain (`model_tensors`). Objects of torch, of sfumato, and of Python's
           logging and threading are not looked into, nor are globals and attributes of classes. The search
           stops after 200,000 objects; those nearest to the model come first.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import BuiltinMethodType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.training.integrity.model_tensors import same_bits

__all__ = ["Holder", "Snapshot", "same"]

_MOST: Final = 200_000  # objects that are looked at
_DEEP: Final = 8  # how far two replaced values are compared
_OPAQUE: Final = frozenset(
    {"_thread", "asyncio", "builtins", "concurrent", "logging", "multiprocessing", "numpy", "sfumato"}
    | {"threading", "torch", "weakref"}
)
_ATOMS: Final = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    Enum,
    np.generic,
    torch.dtype,
    torch.device,
)
_HOOKS: Final = frozenset(
    name for name in vars(nn.Module()) if name.endswith(("_hooks", "_kwargs", "_called"))
)
_FUNCTIONS: Final = (FunctionType, MethodType, BuiltinMethodType, partial)
_UNSET: Final = object()  # in place of a slot or a cell that is empty


@dataclass(slots=True, eq=False)
class Holder:
    """Something whose entries can be replaced: how to read them, and how to put them back."""

    name: str
    thing: Any
    read: Callable[[Any], dict[Any, Any]]
    write: Callable[[Any, dict[Any, Any]], None]
    by_key: bool = False  # whether entries have names of their own: those of modules do
    is_module: bool = False
    of_function: bool = False  # whether a function leads to it, such as a hook; then only tensors count

    def called(self, key: Any) -> str:
        """Return how an entry is called that was there before."""
        return _joined(self.name, str(key)) if self.by_key else self.name or "the model"

    @property
    def quick(self) -> bool:
        """Whether entries can be had quickly: of dicts, lists and sets. Empty dicts of hooks are left out."""
        if self.of_function or self.lacks_hooks:
            return False
        return self.write is _write_dict or isinstance(self.thing, list | deque | set)

    @property
    def lacks_hooks(self) -> bool:
        """Whether it is a dict for the hooks of a module, and empty."""
        return self.write is _write_dict and not self.thing and self.name.rpartition(".")[2] in _HOOKS


class Snapshot:
    """All that a model leads to, and the entries of each holder of it; nothing of what stands `apart`."""

    def __init__(self, model: nn.Module, *, apart: Iterable[Any] = ()) -> None:
        self.holders: list[Holder] = []
        self.tensors: list[tuple[str, Tensor]] = []
        self.arrays: list[tuple[str, np.ndarray[Any, Any] | bytearray]] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self.closed: list[tuple[str, Any]] = []  # objects that show nothing of what they hold
        self._seen: dict[int, Any] = {id(part): part for part in (model, *apart)}
        self._functions: list[tuple[str, Any]] = []
        self._waiting: deque[tuple[str, Any]] = deque([("", model)])
        self._search()
        own = len(self.holders)  # all that modules hold other than by a function
        while self._functions:
            self._look_at_function(*self._functions.pop())
            self._search()
        for holder in self.holders[own:]:
            holder.of_function = True
        self._contents = [holder.read(holder.thing) for holder in self.holders]
        self.without_hooks: list[dict[Any, Any]] = [own.thing for own in self.holders if own.lacks_hooks]

    def changes(self, which: Sequence[int] | None = None) -> list[str]:
        """Return the names of what is no longer the same: of all holders, or of those at some places."""
        found = (name for holder, before in self._at(which) for name in _changed(holder, before))
        return list(dict.fromkeys(found))

    def _at(self, which: Sequence[int] | None) -> list[tuple[Holder, dict[Any, Any]]]:
        places = range(len(self.holders)) if which is None else which
        return [(self.holders[i], self._contents[i]) for i in places]

    def put_back(self, which: Sequence[int] | None = None) -> None:
        """Put back every entry as it was; what the entries contain is not touched."""
        for holder, before in self._at(which):
            now = holder.read(holder.thing)
            if holder.of_function and not any(_changed(holder, before)):
                continue  # what a hook noted, other than tensors, is its own
            if list(now) != list(before) or any(now[key] is not before[key] for key in before):
                holder.write(holder.thing, before)

    # --- the search --------------------------------------------------------------------------------------

    def _search(self) -> None:
        while self._waiting and len(self._seen) < _MOST:
            self._look_at(*self._waiting.popleft())

    def _visit(self, name: str, value: Any) -> None:
        if not isinstance(value, _ATOMS) and id(value) not in self._seen:
            self._seen[id(value)] = value  # held, so that no other object gets this id
            self._waiting.append((name, value))

    def _look_at(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            self._look_at_module(name, value)
        elif isinstance(value, Tensor):
            self.tensors.append((name, value))
            self._hold(Holder(name, value.__dict__, dict, _write_dict))
        elif isinstance(value, np.ndarray | bytearray):
            self.arrays.append((name, value))
        elif isinstance(value, dict):
            self._hold(Holder(name, value, dict, _write_dict))
        elif isinstance(value, list | deque | set):
            self._hold(Holder(name, value, _read_list, _write_list))
        elif isinstance(value, tuple | frozenset):
            self._visit_all(name, value)
        elif isinstance(value, _FUNCTIONS):
            self._functions.append((name, value))
        elif not isinstance(value, type | ModuleType):
            self._look_at_object(name, value)

    def _look_at_module(self, name: str, module: nn.Module) -> None:
        self.modules.append((name, module))
        own = vars(module)
        self.holders.append(Holder(name, own, dict, _write_dict, by_key=True, is_module=True))
        for attribute, value in own.items():
            if attribute in ("_parameters", "_buffers", "_modules") and isinstance(value, dict):
                self.holders.append(Holder(name, value, dict, _write_dict, by_key=True))
                for key, part in value.items():
                    self._visit(_joined(name, key), part)
            else:
                self._visit(_joined(name, attribute), value)

    def _look_at_function(self, name: str, function: Any) -> None:
        if isinstance(function, MethodType | BuiltinMethodType):
            self._visit_all(name, (function.__self__, getattr(function, "__func__", None)))
        elif isinstance(function, partial):
            self._visit_all(name, (function.func, function.args, function.keywords))
        else:
            self._visit_all(name, (function.__defaults__, function.__kwdefaults__, vars(function)))
            for cell in function.__closure__ or ():
                self._hold(Holder(name, cell, _read_cell, _write_cell))

    def _look_at_object(self, name: str, value: Any) -> None:
        if type(value).__module__.partition(".")[0] in _OPAQUE:
            return
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            self._hold(Holder(name, own, dict, _write_dict))
        if _slots(value):
            self._hold(Holder(name, value, _read_slots, _write_slots))
        elif not isinstance(own, dict) or not own:
            self.closed.append((name, value))

    def _hold(self, holder: Holder) -> None:
        self.holders.append(holder)
        self._visit_all(holder.name, holder.read(holder.thing).values())

    def _visit_all(self, name: str, values: Iterable[Any]) -> None:
        for value in values:
            self._visit(name, value)


def _changed(holder: Holder, before: dict[Any, Any]) -> Iterator[str]:
    now = holder.read(holder.thing)
    if holder.of_function:
        new = (value for key, value in now.items() if key not in before or not same(before[key], value))
        if any(_holds_tensor(value, _DEEP) for value in new):
            yield holder.called(None)
        return
    for key, value in before.items():
        if key not in now or not same(value, now[key]):
            yield holder.called(key)
    if any(key not in before for key in now):
        yield f"{holder.name or 'the model'} (something new)" if holder.by_key else holder.name
    elif len(now) == len(before) and list(now) != list(before):
        yield holder.name or "the model"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# --- reading and writing ----------------------------------------------------------------------------------


def _write_dict(own: dict[Any, Any], entries: dict[Any, Any]) -> None:
    # A subclass may do something else when an entry is set.
    kind: Any = OrderedDict if isinstance(own, OrderedDict) else dict
    kind.clear(own)
    for key, value in entries.items():
        kind.__setitem__(own, key, value)


def _read_list(values: Iterable[Any]) -> dict[Any, Any]:
    return dict(enumerate(values))


def _write_list(values: Any, entries: dict[Any, Any]) -> None:
    values.clear()
    (values.update if isinstance(values, set) else values.extend)(entries.values())


def _read_cell(cell: CellType) -> dict[Any, Any]:
    try:
        return {0: cell.cell_contents}
    except ValueError:  # it is empty
        return {0: _UNSET}


def _write_cell(cell: CellType, entries: dict[Any, Any]) -> None:
    if entries[0] is _UNSET:
        del cell.cell_contents
    else:
        cell.cell_contents = entries[0]


def _slots(value: Any) -> list[str]:
    found: list[str] = []
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        found += [names] if isinstance(names, str) else list(names)
    return [name for name in found if name not in ("__dict__", "__weakref__") and not name.startswith("__")]


def _read_slots(value: Any) -> dict[Any, Any]:
    return {name: getattr(value, name, _UNSET) for name in _slots(value)}


def _write_slots(value: Any, entries: dict[Any, Any]) -> None:
    for name, entry in entries.items():
        if entry is not _UNSET:
            object.__setattr__(value, name, entry)
        elif hasattr(value, name):
            object.__delattr__(value, name)


def _holds_tensor(value: Any, deep: int) -> bool:
    if isinstance(value, Tensor | np.ndarray) or not deep:
        return True
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | deque | set | frozenset):
        return any(_holds_tensor(part, deep - 1) for part in value)
    if isinstance(value, (*_ATOMS, *_FUNCTIONS, type, ModuleType)):
        return False
    return _holds_tensor([*getattr(value, "__dict__", {}).values(), *_read_slots(value).values()], deep - 1)


# --- comparing --------------------------------------------------------------------------------------------


def same(before: Any, now: Any, deep: int = _DEEP) -> bool:
    """Whether a value is what it was: the same object, or one that is like it and reveals no more."""
    if before is now:
        return True
    if type(before) is not type(now) or not deep:
        return False
    if isinstance(before, float | complex):
        return repr(before) == repr(now)  # NaN is NaN, and -0.0 is not 0.0
    if isinstance(before, _ATOMS):
        return bool(before == now)
    if isinstance(before, Tensor):
        return same_bits(before, now)
    if isinstance(before, np.ndarray):
        return before.dtype == now.dtype and before.shape == now.shape and before.tobytes() == now.tobytes()
    return _same_entries(before, now, deep - 1)


def _same_entries(before: Any, now: Any, deep: int) -> bool:
    if isinstance(before, set | frozenset):
        return before == now and all(isinstance(entry, _ATOMS) for entry in before | now)
    if isinstance(before, list | tuple | deque):
        return len(before) == len(now) and all(map(same, before, now, [deep] * len(before)))
    if isinstance(before, dict):
        return list(before) == list(now) and all(same(before[key], now[key], deep) for key in before)
    if isinstance(before, nn.Module | FunctionType) or _slots(before) or not hasattr(before, "__dict__"):
        return False
    return _same_entries(vars(before), vars(now), deep)
