# SPDX-License-Identifier: Apache-2.0
import functools
import signal
import sys

import pytest

from sfumato._failures import ordinary


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`."""


def test_what_work_returns_and_ordinary_errors_are_handed_on():
    assert ordinary(lambda: 3) == 3
    with pytest.raises(IndexError):
        ordinary(lambda: [][1])


@pytest.mark.parametrize("error", [Panic("row 5"), SystemExit("row 5")])
def test_what_would_end_the_program_is_an_ordinary_error_that_quotes_nothing(error):
    def fails():
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__) as failed:
        ordinary(fails)
    assert "row 5" not in str(failed.value) and failed.value.__context__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_what_comes_from_outside_of_the_rows_goes_on(error):
    def fails():
        raise error

    with pytest.raises(error):
        ordinary(fails)


# --- signals ------------------------------------------------------------------------------------------------


def ends(number, frame):
    sys.exit(number)


def ends_only_once(number, frame):
    signal.signal(number, signal.SIG_IGN)
    raise Panic(number)


class Ending:
    def method(self, number, frame):
        self.__call__(number, frame)

    def __call__(self, number, frame):
        sys.exit(number)


@pytest.fixture
def handled_by():
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGTERM, before)


HANDLERS = [
    ends,
    ends_only_once,
    lambda *_: sys.exit(0),
    lambda first, *rest: ends(first, *rest),
    Ending().method,
    Ending(),
    functools.partial(lambda code, number, frame: sys.exit(code), 3),
]


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_signal_handler_that_ends_the_program_ends_it_and_quotes_no_row(handler, handled_by):
    def interrupted():
        try:
            raise ValueError("row 5")
        except ValueError:
            signal.raise_signal(signal.SIGTERM)

    handled_by(handler)
    with pytest.raises((SystemExit, Panic)) as ended:
        ordinary(interrupted)
    assert ended.value.__context__ is None and ended.value.__cause__ is None


def test_a_handler_that_a_row_calls_as_a_function_is_code_of_the_row(handled_by):
    handled_by(ends)
    with pytest.raises(RuntimeError, match="SystemExit"):
        ordinary(lambda: ends(signal.SIGTERM, None))
