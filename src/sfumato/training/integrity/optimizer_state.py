# SPDX-License-Identifier: Apache-2.0
"""What an optimizer and learning-rate schedules hold: the same after private rows were at work as before.

A learning rate multiplies each update, so a rate that a row sets is a private value in the weights.

Guarantee  After `kept`, attributes, `param_groups`, `defaults`, `state` and hooks of an optimizer, and the
           attributes of schedules, have the entries that they had, whatever was done inside and however it
           ended. Nothing of a row decides whether that is silent. Tensors among them, such as a learning
           rate, have their contents; those in `state` (momenta) are not copied, for they may be as large as
           the model. They are out of reach instead: inside, `optimizer.state` and lists of hooks are empty.
Edge cases Optimizers and schedules inside of others (`SequentialLR`) are looked into. Parameters are the
           model's (`release_barrier`).
Failure    Code that kept a tensor of `state` from before and writes to it in place is refused with
           `NotPrivateError`: it cannot be put back. That ends the run, and so tells of the row.
Not here   Such a write through `.data`, which leaves no mark. Other objects that an optimizer or a schedule
           holds, closures, globals, attributes of classes, and optimizers that nobody has named.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter, is_
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sfumato.errors import NotPrivateError

__all__ = ["OptimizerState"]

_LISTS: Final = (list, deque, set)
_version = attrgetter("_version")
_CONTAINERS: Final = (dict, tuple, *_LISTS)
# Types that hold nothing, and parameters, which are the model's: these are the most.
_PLAIN: Final = frozenset(
    {bool, int, float, str, type(None), FunctionType, MethodType, partial, nn.Parameter}
)


class OptimizerState:
    """Optimizers and schedules that private rows leave as they are.

    >>> weight = nn.Parameter(torch.zeros(2))
    >>> optimizer = torch.optim.SGD([weight], lr=0.1)
    >>> with OptimizerState(optimizer).kept():
    ...     optimizer.param_groups[0]["lr"] = 77.0
    >>> optimizer.param_groups[0]["lr"]
    0.1
    """

    def __init__(self, *parts: Any) -> None:
        self._parts: Sequence[Any] = [part for part in parts if part is not None]

    def include(self, *parts: Any) -> None:
        """Look after further optimizers or schedules."""
        self._parts = [*self._parts, *parts]

    @contextmanager
    def kept(self) -> Generator[None]:
        """Return a context after which all is what it was.

        Raises:
            NotPrivateError: If a tensor of an optimizer's state was written to.
        """
        before = _Before(self._parts)
        before.hide()
        try:
            yield
        finally:
            before.put_back()
        if before.rewritten:
            raise NotPrivateError(
                "a pass over private rows wrote to a tensor in the state of the optimizer, which no noise "
                "protects. It cannot be put back: do not go on with this optimizer, and load it again from "
                "before. Keep no tensor of optimizer.state where the model or the loss can reach it."
            )


class _Before:
    """The entries of all containers, and the tensors."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[Any, list[Any]]] = []
        self._copied: list[tuple[Tensor, Tensor]] = []
        self._optimizers: list[dict[str, Any]] = []  # their attributes
        self._seen: set[int] = set()
        for part in parts:
            self._look_at_object(part)
        self._states = [own["state"] for own in self._optimizers if isinstance(own.get("state"), dict)]
        tensors = [t for state in self._states for t in self._state_tensors(state)]
        self._marked = [t for t in tensors if not t.is_inference()]
        self._versions = list(map(_version, self._marked))

    def _look_at(self, value: Any) -> None:
        if type(value) in _PLAIN or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, _CONTAINERS):
            self._look_into(value)
        elif isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self._copied.append((value, value.detach().clone()))
        elif isinstance(value, Optimizer | LRScheduler):
            self._look_at_object(value)

    def _look_at_object(self, value: Any) -> None:
        self._seen.add(id(value))
        own: dict[str, Any] = getattr(value, "__dict__", {})
        self._dicts.append((own, dict(own)))
        if isinstance(value, Optimizer):
            self._optimizers.append(own)
            if "state" in own:
                self._seen.add(id(own["state"]))  # it is looked at in another way
        for entry in own.values():
            self._look_at(entry)

    def _look_into(self, value: Any) -> None:
        if isinstance(value, dict):
            self._dicts.append((value, dict(value)))  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, _LISTS):
            self._lists.append((value, list(value)))  # pyright: ignore[reportUnknownArgumentType]
        for entry in value.values() if isinstance(value, dict) else value:  # pyright: ignore[reportUnknownVariableType]
            self._look_at(entry)

    def _state_tensors(self, entries: Any) -> list[Tensor]:
        """Return the tensors in nested containers, whose entries are noted."""
        values: Any = entries
        if isinstance(entries, dict):
            self._dicts.append((entries, dict(entries)))  # pyright: ignore[reportUnknownArgumentType]
            values = entries.values()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        elif isinstance(entries, _LISTS):
            self._lists.append((entries, list(entries)))  # pyright: ignore[reportUnknownArgumentType]
        found: list[Tensor] = []
        for value in values:
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, _CONTAINERS):
                found += self._state_tensors(value)
        return found

    def hide(self) -> None:
        """Take the states away, and the hooks: torch may be calling one of them just now."""
        for own in self._optimizers:
            if "state" in own:
                own["state"] = defaultdict(dict)
            for name in own:
                if name.endswith("_hooks"):
                    own[name] = OrderedDict()

    @torch.no_grad()
    def put_back(self) -> None:
        """Put back every entry, and the contents of tensors that were copied."""
        for own, entries in self._dicts:
            if not (_same(own, entries) and _same(own.values(), entries.values())):
                _write(own, entries)
        for values, entries in self._lists:
            if not _same(values, entries):
                values.clear()
                (values.update if isinstance(values, set) else values.extend)(entries)
        for tensor, content in self._copied:
            if (tensor.shape, tensor.dtype) == (content.shape, content.dtype):
                tensor.detach().copy_(content)  # where it is: recorded steps read it there
            else:
                tensor.data = content

    @property
    def rewritten(self) -> bool:
        """Whether a tensor of a state was written to."""
        return list(map(_version, self._marked)) != self._versions


def _same(now: Collection[Any], before: Collection[Any]) -> bool:
    """Whether these are the same objects in the same order."""
    return len(now) == len(before) and all(map(is_, now, before))


def _write(own: dict[Any, Any], entries: dict[Any, Any]) -> None:
    if isinstance(own, OrderedDict):
        own.clear()
        own.update(entries)
    else:  # a subclass may do something else when it is updated
        dict.clear(own)
        dict.update(own, entries)
