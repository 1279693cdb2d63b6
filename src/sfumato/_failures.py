# SPDX-License-Identifier: Apache-2.0
"""Errors of code that runs on private rows.

Guarantee  What `ordinary` runs either returns or raises an `Exception`, so that `except Exception` catches
           whatever a row causes: it cannot end the program by `sys.exit`, nor by a panic of an extension
           written in Rust (such as polars), which is a `BaseException` of its own.
Edge cases `KeyboardInterrupt` and `GeneratorExit` are raised as they are: they come from outside of the rows.
"""

from collections.abc import Callable
from typing import TypeVar

__all__ = ["ordinary"]

T = TypeVar("T")


def ordinary(work: Callable[[], T]) -> T:
    """Return what `work` returns. An error that would end the program becomes a `RuntimeError`.

    >>> ordinary(lambda: exit("row 5"))
    Traceback (most recent call last):
    RuntimeError: the code ends the program (SystemExit).
    """
    try:
        return work()
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        failure = type(error).__name__
    # Outside the handler: an error raised inside it would be chained to the one that may quote a row.
    raise RuntimeError(f"the code ends the program ({failure}).")
