# SPDX-License-Identifier: Apache-2.0
"""Two ways to compare a model before and after a pass: a quick and a thorough one (`release_barrier`).

Quick compares references and marks: the objects that modules and their containers refer to, and the version
and the address of each tensor. In-place operations raise the version, and `.data = ...` changes the address.
Nothing is read from a device.

Thorough compares all references that `model_references` finds, all contents that `model_tensors` reads (which
also shows writes through `.data`, that leave no mark) and extra state. If requested, it also looks for
tensors of rows that vmap left anywhere in the process.
"""

import copy
import gc
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from typing import Any, Final

from torch import Tensor, nn

from sfumato.errors import NotPrivateError, UnsupportedModelError
from sfumato.training.integrity.model_references import Holder, Snapshot, same
from sfumato.training.integrity.model_tensors import Values, is_batched, is_wrapped

__all__ = ["KEEP", "Kept", "Quick", "Thorough", "Undone", "Watch"]

KEEP: Final = 128 << 20  # bytes of tensors that are copied
_ENTRIES: Final = 1 << 14  # that a quick comparison looks at, those nearest to the model first
_TORCH: Final = frozenset(vars(nn.Module())) - {"training", "_is_full_backward_hook"}  # what every module has
_versions = attrgetter("_version")
_call: Callable[..., Any] = call


class Watch:
    """What a model refers to, in lists that can be compared quickly."""

    def __init__(self, model: nn.Module, *, apart: Iterable[Any] = ()) -> None:
        self.snapshot = Snapshot(model, apart=apart)
        _refuse_left(self.snapshot)
        self.watched: list[int] = []
        self._modules: list[dict[str, Any]] = []
        self._getters: list[Callable[[dict[str, Any]], Any]] = []
        self._dicts: list[dict[Any, Any]] = []
        self._others: list[Any] = []
        self._empty: list[Any] = []
        left = _ENTRIES
        for place, holder in enumerate(self.snapshot.holders):
            if holder.quick and len(holder.thing) <= left:  # a large vocabulary leaves room for others
                left -= len(holder.thing)
                self.watched.append(place)
                self._add(holder)
        self._before = self._lengths(), list(self._entries())
        self.marked = [(name, t) for name, t in self.snapshot.tensors if _has_marks(t)]
        self._tensors = [tensor for _, tensor in self.marked]

    def _add(self, holder: Holder) -> None:
        if holder.is_module:  # the dicts that torch itself keeps there are holders of their own
            self._modules.append(holder.thing)
            self._getters.append(itemgetter("_modules", *(key for key in holder.thing if key not in _TORCH)))
        elif not holder.thing:
            self._empty.append(holder.thing)
        else:
            (self._dicts if isinstance(holder.thing, dict) else self._others).append(holder.thing)

    def _lengths(self) -> list[int]:
        return list(map(len, chain(self._modules, self._dicts, self._others, self._empty)))

    def _entries(self) -> Iterator[Any]:
        """Yield all entries in order, and the names of those in dicts: one may be renamed."""
        own = chain.from_iterable(map(_call, self._getters, self._modules))
        return chain(
            own,
            chain.from_iterable(self._dicts),
            chain.from_iterable(map(dict.values, self._dicts)),
            chain.from_iterable(self._others),
        )

    def unchanged(self) -> bool:
        """Whether all references are what they were when this was made: to the very same objects."""
        try:
            return self._lengths() == self._before[0] and all(map(is_, self._entries(), self._before[1]))
        except Exception:  # an attribute was removed
            return False

    def marks(self) -> tuple[list[int], list[int]]:
        """Return the version and the address of each tensor."""
        return list(map(_versions, self._tensors)), list(map(Tensor.data_ptr, self._tensors))


def _has_marks(tensor: Tensor) -> bool:
    try:
        return tensor._version >= 0 and tensor.data_ptr() >= 0
    except (RuntimeError, ValueError, NotImplementedError):  # made in inference mode, sparse, lazy
        return False


def _refuse_left(snapshot: Snapshot) -> None:
    left = [name for name, tensor in snapshot.tensors if is_wrapped(tensor)]
    if left:
        raise NotPrivateError(
            f"{left} hold tensors that were made inside of a private pass, where each example runs alone; "
            "they mean nothing after it. Make them when the model is built, or from shapes alone (with "
            "torch.ones, not x.new_ones)."
        )


class Quick:
    """The state before a pass, for a quick comparison."""

    def __init__(self, watch: Watch, kept: "Kept | None") -> None:
        self._watch, self._kept = watch, kept
        self._marks = watch.marks()

    def changes(self) -> list[str]:
        """Return the names of what is not what it was; what was replaced by its like is put back."""
        replaced: list[str] = []
        if not self._watch.unchanged():
            replaced = self._watch.snapshot.changes(self._watch.watched)
            if not replaced:
                self._watch.snapshot.put_back(self._watch.watched)
        if self._watch.marks() == self._marks:
            return replaced
        return list(dict.fromkeys(replaced + [self._watch.marked[i][0] for i in self._rewritten()]))

    def put_back(self) -> list[str]:
        """Put everything back that can be; return the names of what cannot."""
        self._watch.snapshot.put_back(self._watch.watched)
        lost: list[str] = []
        for i in self._rewritten():
            name, tensor = self._watch.marked[i]
            before = (self._marks[0][i], self._marks[1][i])
            if self._kept is None or not self._kept.put_back(tensor, before):
                lost.append(name)
        return lost

    def _rewritten(self) -> list[int]:
        versions, places = self._watch.marks()
        return [i for i, now in enumerate(zip(versions, places, strict=True)) if now != self._mark(i)]

    def _mark(self, i: int) -> tuple[int, int]:
        return self._marks[0][i], self._marks[1][i]


class Thorough:
    """The state before a pass, with all contents."""

    def __init__(self, watch: Watch, *, keep_bytes: int, everywhere: bool) -> None:
        self._watch, self._snapshot = watch, watch.snapshot
        self._marks = watch.marks()
        self._values = Values(self._snapshot.tensors, self._snapshot.arrays, keep_bytes=keep_bytes)
        self._extra = {name: _extra_state(name, module) for name, module in self._stateful()}
        self._closed = [_written(value) for _, value in self._snapshot.closed]
        self._alive = _rows_alive() if everywhere else None
        self._hooks = self._snapshot.without_hooks

    def _stateful(self) -> list[tuple[str, nn.Module]]:
        own = nn.Module.get_extra_state
        return [(name, m) for name, m in self._snapshot.modules if type(m).get_extra_state is not own]

    def changes(self) -> list[str]:
        """Return the names of what is not what it was; what was replaced by its like is put back."""
        found = [
            *self._snapshot.changes(),
            *self._values.changes(),
            *self._rewritten(),
            *self._extra_changes(),
            *self._closed_changes(),
        ]
        if not found:
            self._snapshot.put_back()
            found = self._left_elsewhere()
        return list(dict.fromkeys(found))

    def _rewritten(self) -> list[str]:
        """Return tensors that were written to, though with what they held: the next row may differ."""
        pairs = zip(self._marks[0], self._watch.marks()[0], self._watch.marked, strict=True)
        return [name for before, now, (name, _) in pairs if before != now]

    def _extra_changes(self) -> list[str]:
        return [
            f"{name or 'the model'} (extra state)"
            for name, module in self._stateful()
            if not _same_state(self._extra[name], module.get_extra_state())
        ]

    def _closed_changes(self) -> list[str]:
        pairs = zip(self._closed, self._snapshot.closed, strict=True)
        return [name for before, (name, value) in pairs if _written(value) != before]

    def _left_elsewhere(self) -> list[str]:
        if self._alive is None or not _rows_alive() - self._alive:
            return []
        gc.collect()  # what only waits to be freed is not kept
        kept = _rows_alive() - self._alive
        return ["something outside of the modules, such as a list that a hook fills"] if kept else []

    def undo_row(self, *, compare: bool) -> bool:
        """Put back what one row wrote into tensors and arrays; return whether it wrote anything.

        Hooks that it registered where there were none are taken away. A write that left no mark (by `.data`,
        or into an array of numpy) is found only with `compare`. What cannot be put back is found at the end
        of the pass.
        """
        for hooks in filter(None, self._hooks):
            hooks.clear()
        wrote = self._watch.marks() != self._marks or (compare and bool(self._values.changes()))
        if wrote and not self._values.put_back():
            self._marks = self._watch.marks()
        return wrote

    def put_back(self) -> list[str]:
        """Put everything back that can be; return the names of what cannot."""
        self._snapshot.put_back()
        lost = self._values.put_back()
        for name, module in self._stateful():
            if not _same_state(self._extra[name], module.get_extra_state()):
                module.set_extra_state(copy.deepcopy(self._extra[name]))
        return [*lost, *self._extra_changes(), *self._closed_changes()]

    def kept(self) -> "Kept":
        """Return copies of what no step changes, for quick comparisons to come."""
        marked = zip(self._watch.marked, *self._watch.marks(), strict=True)
        marks = {id(t): (version, place) for (_, t), version, place in marked if not t.requires_grad}
        return Kept(self._values.only(marks), marks)


class Undone:
    """What a watch found, to be put back after private rows without a word: entries and contents."""

    def __init__(self, watch: Watch) -> None:
        self._watch, found = watch, watch.snapshot
        held = found.tensors or found.arrays
        self._values = Values(found.tensors, found.arrays, keep_bytes=KEEP) if held else None

    def put_back(self) -> list[str]:
        """Put everything back that can be; return the names of what cannot."""
        if not self._watch.unchanged():
            self._watch.snapshot.put_back(self._watch.watched)
        return [] if self._values is None else self._values.put_back()


class Kept:
    """Contents of tensors that are not trained, with the marks they had."""

    def __init__(self, values: Values, marks: dict[int, tuple[int, int]]) -> None:
        self._values, self._marks = values, marks

    def put_back(self, tensor: Tensor, before: tuple[int, int]) -> bool:
        """Give a tensor the content it had, if that is known from when it had these marks."""
        return self._marks.get(id(tensor)) == before and not self._values.only({id(tensor)}).put_back()


def _extra_state(name: str, module: nn.Module) -> Any:
    try:
        return copy.deepcopy(module.get_extra_state())
    except Exception:
        raise UnsupportedModelError(
            f"the extra state of {name or 'the model'} cannot be copied, so it cannot be compared before and "
            "after a private pass. Let get_extra_state return tensors and plain values."
        ) from None


def _written(value: Any) -> bytes | None:
    """Return what an object would leave in a file with the model; None if it cannot be written."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pickle.dumps(value)
    except Exception:
        return None


def _same_state(before: Any, now: Any) -> bool:
    if same(before, now):
        return True
    try:
        return pickle.dumps(before) == pickle.dumps(now)
    except Exception:  # what cannot be written cannot be compared
        return False


def _rows_alive() -> set[int]:
    """Return the ids of all tensors in the process that stand for a row of a batch."""
    return {id(t) for t in gc.get_objects() if type(t) is Tensor and is_batched(t)}
