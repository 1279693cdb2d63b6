# SPDX-License-Identifier: Apache-2.0
"""A generator that is paid for: it is saved before anything is drawn, and an error says where it is.

Failure    What fails once a generator is saved, such as memory or a disk, is told in a sentence that says
           where it is and how to draw from it. Draws that no machine holds are refused before the charge.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sfumato import _check
from sfumato.errors import InvalidParameterError, SfumatoError

__all__ = ["AfterPaymentError", "after_payment", "require_count"]

_MOST: Final = 10**8  # draws of one command


class AfterPaymentError(SfumatoError, RuntimeError):
    """Something failed once the generator was paid for."""


def require_count(count: int | None) -> None:
    """Raise for a number of draws that cannot be drawn at once."""
    if count is None:
        return
    _check.count(count=count)
    if count > _MOST:
        raise InvalidParameterError(
            f"count must be at most {_MOST:,}, but {count:,} was given. More can be drawn later, in parts, "
            "from the generator that is saved."
        )


@contextmanager
def after_payment(saved: Path, how: str) -> Generator[None]:
    """Let the block fail with a sentence that says where the generator is.

    Args:
        saved: The file that is there once the generator is saved. Before that, errors stay what they are.
        how: How to load it, in Python.
    """
    try:
        yield
    except Exception as error:
        if not saved.exists():
            raise
        raise AfterPaymentError(
            f"{_reason(error)} The generator is paid for and saved: `{how}.sample(1000)` draws from it in "
            "Python, and costs nothing more."
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory for what was to be drawn."
    if isinstance(error, OSError):
        return f"what was drawn cannot be written: {error.strerror or type(error).__name__}."
    if isinstance(error, SfumatoError):
        return str(error)
    return f"something failed after the generator was made ({type(error).__name__})."
