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
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
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
        self._states: dict[int, _State] = {}  # of the last step, by the id of the optimizer's attributes

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
        states = self._states_of(before.optimizers)
        before.hide()
        try:
            yield
        finally:
            before.put_back()
            for state in states:
                state.put_back()
        if any([state.rewritten for state in states]):
            raise NotPrivateError(
                "a pass over private rows wrote to a tensor in the state of the optimizer, which no noise "
                "protects. It cannot be put back: do not go on with this optimizer, and load it again from "
                "before. Keep no tensor of optimizer.state where the model or the loss can reach it."
            )

    def _states_of(self, optimizers: Sequence[dict[str, Any]]) -> list["_State"]:
        """Return what the states hold now. Most steps of an optimizer put nothing new into its state."""
        held = {id(own): own["state"] for own in optimizers if isinstance(own.get("state"), dict)}
        known = self._states
        self._states = {
            key: known[key] if key in known and known[key].holds(state) else _State(state)
            for key, state in held.items()
        }
        for state in self._states.values():
            state.mark()
        return list(self._states.values())


class _State:
    """The `state` of an optimizer: nested containers of tensors, which may be as large as the model."""

    def __init__(self, state: dict[Any, Any]) -> None:
        self._state = state
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[Any, list[Any]]] = []
        self._tensors: list[Tensor] = []
        self._look_into(state)
        self._marked = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._containers: list[Any] = [own for own, _ in (*self._dicts, *self._lists)]
        self._before = self._lengths(), list(self._entries())
        self._versions: list[int] = []

    def _look_into(self, entries: Any) -> None:
        values: Any = entries
        if isinstance(entries, dict):
            self._dicts.append((entries, dict(entries)))  # pyright: ignore[reportUnknownArgumentType]
            values = entries.values()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        elif isinstance(entries, _LISTS):
            self._lists.append((entries, list(entries)))  # pyright: ignore[reportUnknownArgumentType]
        for value in values:
            if isinstance(value, Tensor):
                self._tensors.append(value)
            elif isinstance(value, _CONTAINERS):
                self._look_into(value)

    def _lengths(self) -> list[int]:
        return list(map(len, self._containers))

    def _entries(self) -> Iterator[Any]:
        """Yield all keys, values and entries, in order."""
        dicts, lists = self._containers[: len(self._dicts)], self._containers[len(self._dicts) :]
        return chain(
            chain.from_iterable(dicts),
            chain.from_iterable(map(dict.values, dicts)),
            chain.from_iterable(lists),
        )

    def _unchanged(self) -> bool:
        return self._lengths() == self._before[0] and all(map(is_, self._entries(), self._before[1]))

    def holds(self, state: dict[Any, Any]) -> bool:
        """Whether this is that state, with the very entries that it had."""
        return state is self._state and self._unchanged()

    def mark(self) -> None:
        """Note the version of each tensor: private rows are at work next."""
        self._versions = list(map(_version, self._marked))

    def put_back(self) -> None:
        """Put back every entry of every container."""
        if not self._unchanged():
            _put_back(self._dicts, self._lists)

    @property
    def rewritten(self) -> bool:
        """Whether a tensor was written to since `mark`."""
        return list(map(_version, self._marked)) != self._versions


class _Before:
    """The entries of all containers but those in states, and the tensors in them."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.optimizers: list[dict[str, Any]] = []  # their attributes
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[Any, list[Any]]] = []
        self._copied: list[tuple[Tensor, Tensor]] = []
        self._seen: set[int] = set()
        for part in parts:
            self._look_at_object(part)

    def _look_at_all(self, values: Collection[Any]) -> None:
        if not _PLAIN.issuperset(map(type, values)):  # the parameters of a group are many
            for value in values:
                self._look_at(value)

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
            self.optimizers.append(own)
            if "state" in own:
                self._seen.add(id(own["state"]))  # it is looked at in another way
        self._look_at_all(own.values())

    def _look_into(self, value: Any) -> None:
        if isinstance(value, dict):
            self._dicts.append((value, dict(value)))  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, _LISTS):
            self._lists.append((value, list(value)))  # pyright: ignore[reportUnknownArgumentType]
        self._look_at_all(value.values() if isinstance(value, dict) else value)  # pyright: ignore[reportUnknownArgumentType]

    def hide(self) -> None:
        """Take the states away, and the hooks: torch may be calling one of them just now."""
        for own in self.optimizers:
            if "state" in own:
                own["state"] = defaultdict(dict)
            for name in own:
                if name.endswith("_hooks"):
                    own[name] = OrderedDict()

    @torch.no_grad()
    def put_back(self) -> None:
        """Put back every entry, and the contents of tensors that were copied."""
        _put_back(self._dicts, self._lists)
        for tensor, content in self._copied:
            if (tensor.shape, tensor.dtype) == (content.shape, content.dtype):
                tensor.detach().copy_(content)  # where it is: recorded steps read it there
            else:
                tensor.data = content


def _put_back(dicts: Sequence[tuple[Any, dict[Any, Any]]], lists: Sequence[tuple[Any, list[Any]]]) -> None:
    """Give containers the entries that they had, where these are others now."""
    for own, entries in dicts:
        if not (_same(own, entries) and _same(own.values(), entries.values())):
            _write(own, entries)
    for values, entries in lists:
        if not _same(values, entries):
            values.clear()
            (values.update if isinstance(values, set) else values.extend)(entries)


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
