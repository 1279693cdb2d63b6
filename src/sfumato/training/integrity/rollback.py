# SPDX-License-Identifier: Apache-2.0
"""Undo a run that failed: what it leaves in memory is the state of its last checkpoint.

Guarantee  If a run stops before it is committed, by any exception or by an interrupt from the keyboard, then
           model, buffers, optimizer and denoiser return to the last published checkpoint (`run_ownership`),
           or to their state before the run if there is none, and no `.grad` is left. So the steps that a
           resumed run takes again were never seen. A note at the error says where the model is now.
Edge cases A second interrupt waits until this is done. Ranks other than the first return to the start.
Not here   Frames of the traceback, and a debugger that looks into them.
"""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from torch import Tensor

from sfumato.training.data import tree
from sfumato.training.integrity.standing import Standing

__all__ = ["undone_on_failure"]

Result = TypeVar("Result")


class _Revertible(Protocol):
    """A training loop, whose parts can be read and set."""

    def parts(self) -> Any:
        """Return the state of model, optimizer and denoiser."""
        ...

    def roll_back(self, state: Any) -> None:
        """Return to a state."""
        ...


def undone_on_failure(
    work: Callable[[], Result], loop: _Revertible, standing: Standing, *, published: Callable[[], Any]
) -> Result:
    """Return what `work` returns; if it fails, undo what a loop did, unless the run is settled.

    `published()` returns the state to go back to; None, or a failure of its own, means the start.
    """
    start = tree.mapped(loop.parts(), _held)
    try:
        return work()
    except BaseException as error:
        # Interrupts come at calls. There is none before the inner `try`, so the second one is caught too. (A
        # context manager would be called to leave its block, and an interrupt there would skip all of this.)
        while True:
            try:
                with _uninterrupted():
                    state = None if standing.settled else _go_back(loop, start, published)
                    _tell(error, standing.note(state))
                break
            except KeyboardInterrupt:
                continue
        raise


def _go_back(loop: _Revertible, start: Any, published: Callable[[], Any]) -> Any:
    """Put a loop back; return the state that was published, or None for the start."""
    try:
        state = published()
    except Exception:  # a checkpoint that cannot be read is no place to go back to
        state = None
    loop.roll_back(start if state is None else state)
    return state


def _tell(error: BaseException, note: str | None) -> None:
    if note is not None and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _held(tensor: Tensor) -> Tensor:
    """Return a copy in main memory, which later steps do not change."""
    return tensor.detach().to("cpu", copy=True)


@contextmanager
def _uninterrupted() -> Generator[None]:
    """Keep an interrupt from the keyboard out; only the main thread gets any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:  # None: set by something else than Python, which cannot be set again
            signal.signal(signal.SIGINT, before)
