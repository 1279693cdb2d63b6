# SPDX-License-Identifier: Apache-2.0
"""Errors of code that runs on private rows.

Guarantee  What `ordinary` runs either returns or raises an `Exception`, so that `except Exception` catches
           whatever a row causes: it cannot end the program by `sys.exit`, nor by a panic of an extension
           written in Rust (such as polars), which is a `BaseException` of its own.
Edge cases `KeyboardInterrupt` and `GeneratorExit` are raised as they are: they come from outside of the rows.
           So is what a signal handler raises to end the program, without what it interrupted: a handler of
           SIGTERM that calls `sys.exit`. Its frame shows that it was called for a signal, as one of its
           arguments is the frame that it interrupted.
Not here   A handler that is compiled, which has no frame, and one that raises an `Exception`: what they raise
           counts as an error of the row. Code that sends signals to itself.
"""

from collections.abc import Callable
from inspect import CO_VARARGS
from itertools import pairwise
from types import FrameType, TracebackType
from typing import Any, TypeVar

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
        if _is_of_handler(error.__traceback__):
            error.__context__ = error.__cause__ = None  # an error that it interrupted may quote a row
            raise
        failure = type(error).__name__
    # Outside the handler: an error raised inside it would be chained to the one that may quote a row.
    raise RuntimeError(f"the code ends the program ({failure}).")


def _is_of_handler(trace: TracebackType | None) -> bool:
    """Whether an error was raised in a signal handler: one of its calls got a signal, and its own caller."""
    frames = list[FrameType]()
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return any(_handles_signal(frame, caller) for caller, frame in pairwise(frames))


def _handles_signal(frame: FrameType, caller: FrameType) -> bool:
    given = pairwise(_arguments(frame))
    return any(isinstance(number, int) and passed is caller for number, passed in given)


def _arguments(frame: FrameType) -> list[Any]:
    """Return the positional arguments of a call, as far as they still have their names."""
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount]
    found = [values.get(name) for name in names]
    if code.co_flags & CO_VARARGS:
        found += values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
    return found
