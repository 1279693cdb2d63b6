# SPDX-License-Identifier: Apache-2.0
"""What a trainer of transformers holds, while `compute_loss` sees private rows.

Guarantee  `Own`: lists, meters and other objects of a subclass. `Others`: those of transformers, such as
           arguments, callbacks, collator, tokenizer and accelerator, which are written to files. What
           `compute_loss` changes in attributes, lists, sets, dicts, tensors and arrays of either is put back
           after each row, silently. `copied` is a state of the trainer whose lists and dicts are copies.
Failure    A change of `Own` by synthetic rows is refused, so before the charge. Of tensors with more than
           128 MiB together, a write to the largest cannot be put back: it is refused, and tells of the row.
Not here   Model and optimizer (`training.integrity`), data sets, and what is further away than some 16,000
           entries, such as large vocabularies.
"""

import copy
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, cast

from torch import nn
from transformers import TrainerState

from sfumato.errors import NotPrivateError
from sfumato.training.integrity.comparison import Undone, Watch
from sfumato.training.integrity.release_barrier import Barrier

__all__ = ["Others", "Own", "copied"]

_FIXED: Final = frozenset({type(None), bool, int, float, str})


class Own:
    """Objects that a subclass holds: lists that a loss may fill, meters that it may update."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        held = {name: part for name, part in objects.items() if part is not None}
        self._holder = _holder(held) if held else None
        self._watch: Watch | None = None
        self.rehearsing = True

    def kept(self) -> AbstractContextManager[None]:
        """Return a context after which they hold what they held."""
        if self._holder is None:
            return nullcontext()
        return _refused(self._holder) if self.rehearsing else _undone(self._watched(self._holder))

    def _watched(self, holder: nn.Module) -> Watch:
        if self._watch is None or not self._watch.unchanged():
            self._watch = Watch(holder)
        return self._watch


class Others:
    """Objects that transformers gave a trainer. Nothing that stands `apart` is looked into."""

    def __init__(self, objects: Mapping[str, Any], *, apart: Iterable[Any]) -> None:
        self._holder, self._apart = _holder(objects), list(apart)
        self._watch: Watch | None = None

    def kept(self) -> AbstractContextManager[None]:
        """Return a context after which they hold what they held."""
        if self._watch is None or not self._watch.unchanged():
            self._watch = Watch(self._holder, apart=self._apart)
        return _undone(self._watch)


@contextmanager
def _undone(watch: Watch) -> Generator[None]:
    """Put back what a private row changes, and tell nobody."""
    before = Undone(watch)
    try:
        yield
    finally:
        _refuse(before.put_back())


@contextmanager
def _refused(holder: nn.Module) -> Generator[None]:
    """Refuse what a synthetic row changes."""
    before = Barrier(holder).begin(thorough=True)
    try:
        yield
    finally:
        changes = before.changes()
        lost = before.put_back() if changes else []
        _refuse(lost or changes)


def _holder(objects: Mapping[str, Any]) -> nn.Module:
    """Return a module that holds objects, to be watched like any other."""
    holder = nn.Module()
    vars(holder).update({name: part for name, part in objects.items() if name not in vars(holder)})
    return holder


def _refuse(names: Collection[str]) -> None:
    if names:
        raise NotPrivateError(
            f"compute_loss changes {list(names)} of the trainer, which would hold something of private rows. "
            "Keep nothing of a loss: there is no noise in it."
        )


def copied(state: TrainerState) -> TrainerState:
    """Return a copy of a state, without what was logged.

    >>> state = TrainerState(log_history=[{"step": 1}], stateful_callbacks={"a": {}})
    >>> made = copied(state)
    >>> made.stateful_callbacks["a"]["leak"] = 1
    >>> made.log_history, state.stateful_callbacks
    ([], {'a': {}})
    """
    made = copy.copy(state)
    own = vars(made)
    for name, value in vars(state).items():
        if isinstance(value, dict | list):
            own[name] = [] if name == "log_history" else _copied(value)
    return made


def _copied(value: Any) -> Any:
    """Return a deep copy; of plain dicts and lists, the usual case, in a tenth of the time."""
    if type(value) is dict:
        return {name: _copied(part) for name, part in cast("dict[Any, Any]", value).items()}
    if type(value) is list:
        return [_copied(part) for part in cast("list[Any]", value)]
    return value if type(value) in _FIXED else copy.deepcopy(value)
