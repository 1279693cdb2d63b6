# SPDX-License-Identifier: Apache-2.0
"""What a model and its loss hold besides parameters, which a recording takes for constant.

A recording replays operations and not Python code. A number that a model or a loss holds (a temperature, a
mask, the weight of a term) is in it with the value of the pass that was recorded.

Guarantee  `of_model` and `of_loss` tell whether these numbers are what they were when this was made: what
           attributes of modules lead to (`integrity.comparison`), and numbers, texts and tensors that a loss
           refers to by closures, defaults, `partial`, attributes and names of globals. So a pass is replayed
           only while it is the pass that would run.
Edge cases Modes of modules (`train`, `eval`) are no constants: recordings are made for each of them.
Not here   Attributes of classes, globals that a model reads, and objects of Lightning and transformers.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch import Tensor, nn

from sfumato.training.integrity.comparison import Watch

__all__ = ["HeldNumbers"]

_ATOMS: Final = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_DEEP: Final = 6  # how far a loss is followed
_MOST: Final = 2000  # numbers of a loss that are compared
_CLOSED: Final = frozenset({"torch", "numpy", "builtins"})  # packages whose functions are constants
# Packages whose objects are not looked into: some count steps, and no loss is computed from that.
_OPAQUE: Final = _CLOSED | {"sfumato", "lightning", "lightning_fabric", "pytorch_lightning", "transformers"}


class HeldNumbers:
    """What a model and a loss hold now.

    >>> model = nn.Linear(2, 1)
    >>> model.temperature = 1.0
    >>> held = HeldNumbers(model, lambda model, x: model(x) / model.temperature)
    >>> model.temperature = 0.5
    >>> held.of_model(), held.of_loss()
    (False, True)
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        self._watch, self._model, self._loss = Watch(model), model, loss
        self._numbers = self._read()

    def of_model(self) -> bool:
        """Whether what the model holds is the same. No private row decides it: passes change no model."""
        if self._watch.unchanged():
            return True
        changed = self._watch.snapshot.changes(self._watch.watched)
        return all(name.rpartition(".")[2] == "training" for name in changed)

    def of_loss(self) -> bool:
        """Whether what the loss holds is the same. Code of the loss may change it, so this may be private."""
        now = self._read()
        return len(now) == len(self._numbers) and all(map(_same, self._numbers, now))

    def _read(self) -> list[Any]:
        seen = {id(self._model)}  # which is watched
        return list(islice(_numbers(self._loss, _DEEP, seen), _MOST))


def _same(before: Any, now: Any) -> bool:
    plain = type(before) is type(now) and not isinstance(before, Tensor)
    return before is now or (plain and bool(before == now))


def _numbers(value: Any, deep: int, seen: set[int]) -> Iterator[Any]:
    """Yield the numbers, texts and tensors that a value leads to, in the same order each time."""
    if isinstance(value, (*_ATOMS, Tensor)):
        yield value
        return
    if not deep or id(value) in seen:
        return
    seen.add(id(value))
    for part in _parts(value):
        yield from _numbers(part, deep - 1, seen)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    elif isinstance(value, list | tuple):
        yield from value  # pyright: ignore[reportUnknownVariableType]
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)  # pyright: ignore[reportUnknownMemberType]
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif not isinstance(value, type) and type(value).__module__.partition(".")[0] not in _OPAQUE:
        yield type(value).__call__ if callable(value) else None
        yield getattr(value, "__dict__", None)


def _parts_of_function(function: FunctionType) -> Iterator[Any]:
    if (function.__module__ or "").partition(".")[0] in _CLOSED:
        return
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty
            yield None
    yield from (function.__defaults__, function.__kwdefaults__, vars(function))
    own = function.__globals__
    for name in function.__code__.co_names:
        found = own.get(name)
        if isinstance(found, (*_ATOMS, Tensor, FunctionType)):
            yield found
