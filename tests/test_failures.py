# SPDX-License-Identifier: Apache-2.0
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
