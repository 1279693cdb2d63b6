# SPDX-License-Identifier: Apache-2.0
"""Run work on private rows so that an error quotes none of them.

Guarantee  The message of a model, a loss or torch may quote a row ("Target 7 is out of bounds"). It is
           neither repeated nor chained. Only the type of the error is named.
Edge cases If the same work fails on rows of zeros as well, that second error is raised as it is: it cannot
           depend on the data. Errors of sfumato and errors about memory quote no row; they are raised as they
           are, without the errors that caused them.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import torch

from sfumato.errors import QueryFailedError, SfumatoError

__all__ = ["QUOTES_NO_ROW", "guarded", "unchain"]

T = TypeVar("T")

QUOTES_NO_ROW: Final = (SfumatoError, MemoryError, torch.OutOfMemoryError)


def _nothing() -> None:
    """Do nothing."""


def guarded(
    work: Callable[[], T],
    *,
    on_zeros: Callable[[], object],
    parts: str = "the model or the loss",
    clear: Callable[[], object] = _nothing,
) -> T:
    """Return what `work` returns; if it fails, call `clear` and raise an error that quotes no row.

    `on_zeros` does the same work on rows of zeros. `parts` names the code that may have failed.
    """
    try:
        return work()
    except Exception as error:
        clear()
        if isinstance(error, QUOTES_NO_ROW):
            unchain(error)
            raise
        failure = type(error).__name__
    except BaseException:
        clear()
        raise
    # Outside the handler: an error raised inside it would be chained to the one that may quote a row.
    on_zeros()
    raise QueryFailedError(
        f"{parts} failed on the rows of a batch ({failure}), and does not fail on rows of zeros. The "
        "original message is left out, as it may quote private values. Check the rows: they need "
        "whole-number labels in 0 ... classes - 1, token numbers below the size of the vocabulary, and "
        "inputs of the type and range that the model expects."
    )


def unchain(error: BaseException) -> None:
    """Remove the causes of an error that are not sfumato's own: they may quote a row."""
    waiting, seen = [error], list[BaseException]()
    while waiting:
        behind = waiting.pop()
        seen.append(behind)
        if not isinstance(behind.__cause__, QUOTES_NO_ROW):
            behind.__cause__ = None
        if not isinstance(behind.__context__, QUOTES_NO_ROW):
            behind.__context__ = None
        waiting += [e for e in (behind.__cause__, behind.__context__) if e is not None and e not in seen]
