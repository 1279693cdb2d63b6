# SPDX-License-Identifier: Apache-2.0
"""The release barrier: only noised values leave with a model.

Guarantee  A pass over private rows (forward, backward, any engine) changes no parameter, no buffer, no extra
           state and no attribute of any module, and leaves no tensor of its rows in them. Otherwise it is
           refused with `NotPrivateError`, and the model is put back to what it was. So a model changes by
           noisy updates alone; neither rows, nor their number, nor the number of passes are in it.
Edge cases Caches that are filled at first use and depend on public shapes alone (rotary tables, masks) are
           filled by a pass over rows of zeros, which holds nothing private. Then the rows run again.
           A pass that fails may have changed something too: it is put back before the error is raised.
           Where private rows run one by one, their values may decide what the code keeps, and a refusal
           would tell of a row: attributes, lists, sets, dicts, and the contents of tensors and arrays are
           put back after each row, silently (`forgetting`). Code that keeps something of synthetic rows is
           refused before. Contents that are not copied cannot be put back: of the largest tensors, where
           all together, with the parameters, have more than 128 MiB. A write to these is refused.
Failure    An error names modules, parameters, buffers and attributes that existed before, and no value.
Not here   Globals, attributes of classes and files: they do not leave with the model. Mixing of rows
           (`engine.self_check`). The state of random generators, which reveals how many numbers were drawn
           (`random_state`).

Every pass is checked quickly, except replays of a recording, in which none of the model's code runs. The
first passes, those whose number is a power of two, and others at random are checked thoroughly (`comparison`
has both).
"""

import secrets
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from sfumato.errors import NotPrivateError, UnsupportedModelError
from sfumato.training.integrity.comparison import KEEP, Kept, Quick, Thorough, Watch
from sfumato.training.models import batch_norm

__all__ = ["Barrier", "fill_caches", "refuse_rewriting", "refuse_unsafe"]

T = TypeVar("T")

_FIRST: Final = 3  # passes that are checked thoroughly
_RARELY: Final = 512  # one pass in so many, on average, is checked thoroughly at random


def refuse_unsafe(model: nn.Module) -> None:
    """Raise if a layer is known to mix rows, or to keep something of them, before any row is read."""
    batch_norm.refuse_mixing(model)
    refuse_rewriting(model)


def refuse_rewriting(model: nn.Module) -> None:
    """Raise if a layer is known to change its own parameters or buffers in a forward pass.

    >>> refuse_rewriting(nn.Embedding(10, 3))
    >>> refuse_rewriting(nn.Embedding(10, 3, max_norm=1.0))
    Traceback (most recent call last):
    sfumato.errors.NotPrivateError: the model (Embedding) has max_norm=1: each look-up rewrites ...
    """
    for path, module in model.named_modules():
        called = f"{path or 'the model'} ({type(module).__name__})"
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise NotPrivateError(
                f"{called} has max_norm={module.max_norm:g}: each look-up rewrites the rows of the table "
                "that it reads, so the table shows which tokens the examples have. Set max_norm=None; to "
                "bound norms, normalize the table before training, or the vectors after they were looked up."
            )
        older = _older(module)
        if older is not None:
            raise UnsupportedModelError(
                f"{called} writes its weight anew at each pass, by torch.nn.utils.{older}. Use "
                f"torch.nn.utils.parametrizations.{older}, which computes the weight where it is used."
            )
        if module.training and type(module).__name__ == "_SpectralNorm" and hasattr(module, "_u"):
            raise NotPrivateError(
                f"{called} estimates a spectral norm by a power iteration in each forward pass and keeps "
                "the result in a buffer, which shows how many passes were made. Call .eval() on it after "
                "model.train(), or take spectral normalization out."
            )


def _older(module: nn.Module) -> str | None:
    """Return which of torch's older functions that write a weight at each pass was applied, if any."""
    hooks = list(module._forward_pre_hooks.values())  # pyright: ignore[reportPrivateUsage]
    kinds = {"spectral_norm": SpectralNorm, "weight_norm": WeightNorm}
    return next((name for name, kind in kinds.items() for hook in hooks if isinstance(hook, kind)), None)


def fill_caches(run: Callable[[Any], object], made_up: Iterable[Any]) -> None:
    """Run the first synthetic batch that a model accepts: some refuse zeros, such as a length of 0.

    >>> fill_caches(lambda length: 1 / length, [0, 1])
    """
    *attempts, last = made_up
    with torch.no_grad():
        for batch in attempts:
            with suppress(Exception):  # of a synthetic batch, so it reveals nothing
                run(batch)
                return
        run(last)


class Barrier:
    """Watches what a model holds while private rows go through it.

    >>> import torch
    >>> model = nn.Linear(3, 2)
    >>> barrier = Barrier(model)
    >>> with barrier.guarding():
    ...     losses = model(torch.ones(4, 3)).sum(1)
    >>> with barrier.guarding():
    ...     model.seen = 4
    Traceback (most recent call last):
    sfumato.errors.NotPrivateError: a pass over private rows changed ['the model (something new)'], ...
    >>> hasattr(model, "seen")
    False
    """

    def __init__(self, model: nn.Module, *, keep_bytes: int = KEEP) -> None:
        self._model, self._keep_bytes = model, keep_bytes
        self._watch: Watch | None = None
        self._kept: Kept | None = None  # of what is not trained, from the last thorough check
        self._passes = 0
        self._open: Quick | Thorough | None = None  # the state before the pass at hand
        self._compares_rows = False  # whether `forgetting` looks for writes that leave no mark
        self._row_wrote = False

    @contextmanager
    def undoing(self) -> Generator[None]:
        """Return a context after which the model is what it was, for passes that only measure something.

        It raises only if something cannot be put back.
        """
        outer, before = self._open, self.begin(thorough=True)
        try:
            yield
        finally:
            self._open = outer
            _put_back_all(before)

    def rewind(self) -> None:
        """Put back what the pass at hand changed so far: it failed, and is run in another way."""
        if self._open is not None:
            self._open.put_back()

    @contextmanager
    def forgetting(self) -> Generator[None]:
        """Return a context in a pass after which attributes, containers and contents are what they were.

        It is for one row that runs alone, so its values may decide what the code keeps. What this cannot put
        back is found at the end of the pass. Once that was a write which left no mark, the pass is run again,
        and from then on contents are compared after each row.
        """
        watch = self._watch
        try:
            yield
        finally:
            if watch is not None and not watch.unchanged():
                watch.snapshot.put_back(watch.watched)
            if isinstance(self._open, Thorough):
                self._row_wrote |= self._open.undo_row(compare=self._compares_rows)

    def row_wrote(self) -> bool:
        """Return whether `forgetting` has put contents back since this was last asked."""
        wrote, self._row_wrote = self._row_wrote, False
        return wrote

    @contextmanager
    def guarding(self, *, thorough: bool | None = None) -> Generator[None]:
        """Return a context in which nothing of the model may change. Without `thorough` a schedule decides.

        If the context ends by an error, changes are undone, and the error is raised.
        """
        before = self.begin(thorough=thorough)
        with _undoing(before):
            yield
        self.end(before)

    def run(
        self,
        work: Callable[[], T],
        settle: Callable[[], object] | None = None,
        *,
        replay: Callable[[], T | None] | None = None,
        thorough: bool | None = None,
    ) -> T:
        """Return what `work` returns, which runs private rows, if nothing of the model changed.

        `replay` returns the same, or None, from a recording of a pass that was watched: none of the model's
        own code runs in it, so a quick look could see nothing. It takes the place of `work` unless a
        thorough look is due.

        If something did, it is put back, and `settle` runs rows of zeros, of the same shapes but another
        number, in the way that the model sees rows in `work`. The model keeps what that leaves, and `work`
        runs again from its beginning; now nothing may change.
        """
        outer = self._open
        try:
            return self._run(work, settle, replay=replay, thorough=thorough)
        finally:
            self._open = outer  # a rehearsal in the middle of a pass is a pass of its own

    def _run(
        self,
        work: Callable[[], T],
        settle: Callable[[], object] | None,
        *,
        replay: Callable[[], T | None] | None,
        thorough: bool | None,
    ) -> T:
        if settle is not None and not self._passes and self._is_lazy():
            settle()  # what a lazy layer makes of itself cannot be put back
        thorough = self._is_due() if thorough is None else thorough
        if replay is not None and not thorough:
            replayed = replay()
            if replayed is not None:
                self._passes += 1
                return replayed
        before = self.begin(thorough=thorough)
        try:
            found = work()
        except BaseException:
            _put_back_all(before)
            raise
        changes = before.changes()
        if not changes:
            self._keep(before)
            return found
        del found
        lost = self._undo(before)
        if lost or settle is None:
            raise _refusal(changes, lost)
        settle()
        self._compares_rows = True
        try:
            with self.guarding(thorough=True):
                return work()
        except NotPrivateError:
            self._undo(before)  # what rows of zeros left
            raise

    def _is_lazy(self) -> bool:
        return any(map(is_lazy, chain(self._model.parameters(), self._model.buffers())))

    def begin(self, *, thorough: bool | None = None) -> Quick | Thorough:
        """Return the state before a pass, for `end`, if a pass is not one block of code."""
        thorough = self._is_due() if thorough is None else thorough
        self._passes += 1
        if thorough or self._watch is None or not self._watch.unchanged():
            self._watch = Watch(self._model)
        if thorough:
            everywhere = self._passes > 1 and _is_power(self._passes, 16)  # takes a tenth of a second
            self._open = Thorough(self._watch, keep_bytes=self._keep_bytes, everywhere=everywhere)
        else:
            self._open = Quick(self._watch, self._kept)
        return self._open

    def _is_due(self) -> bool:
        """Whether the next pass is one to look at thoroughly."""
        place = self._passes + 1
        return place <= _FIRST or _is_power(place, 2) or not secrets.randbelow(_RARELY)

    def end(self, before: Quick | Thorough, *, failed: bool = False) -> None:
        """Raise if something changed since `begin`; only put it back, if the pass failed."""
        if failed:
            _put_back_all(before)
            return
        changes = before.changes()
        if changes:
            raise _refusal(changes, self._undo(before))
        self._keep(before)

    def _undo(self, before: Quick | Thorough) -> list[str]:
        self._passes = 0  # the passes that follow are checked thoroughly again
        return before.put_back()

    def _keep(self, before: Quick | Thorough) -> None:
        self._open = None
        if isinstance(before, Thorough):
            self._kept = before.kept()


@contextmanager
def _undoing(before: Quick | Thorough) -> Generator[None]:
    """Return a context that puts back what changed, if it ends by an error."""
    try:
        yield
    except BaseException:
        _put_back_all(before)
        raise


def _put_back_all(before: Quick | Thorough) -> None:
    lost = before.put_back() if before.changes() else []
    if lost:
        raise _refusal(lost, lost) from None  # what was raised may quote a row


def _refusal(changes: Sequence[str], lost: Sequence[str]) -> NotPrivateError:
    after = (
        f"It could not be put back in {list(lost)}: do not release this model, and load it again from before."
        if lost
        else "The model was put back to what it was."
    )
    return NotPrivateError(
        f"a pass over private rows changed {list(changes)}, which no noise protects: it may hold something "
        f"of the rows, or of how many there are. {after} Keep nothing of rows or passes in a model: no "
        "running averages, counters or stored activations, and no change of a parameter or a buffer in a "
        "forward pass. Call .eval() on the modules that do so, or take them out."
    )


def _is_power(number: int, base: int) -> bool:
    while number > 1 and number % base == 0:
        number //= base
    return number == 1
