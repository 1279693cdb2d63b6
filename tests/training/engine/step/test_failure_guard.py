# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import QueryFailedError, UnsupportedUseError
from sfumato.training.engine.step.failure_guard import guarded, unchain


def failing(error):
    def work():
        raise error

    return work


def chain(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def test_work_that_succeeds_returns_its_result_and_clears_nothing():
    assert guarded(lambda: 3, on_zeros=failing(KeyError()), clear=failing(KeyError())) == 3


def test_an_error_on_private_rows_is_neither_repeated_nor_chained():
    cleared = []
    with pytest.raises(QueryFailedError, match=r"the criterion failed on the rows.*\(IndexError\)") as caught:
        guarded(
            failing(IndexError("Target 77")),
            on_zeros=lambda: None,
            parts="the criterion",
            clear=lambda: cleared.append(True),
        )
    assert cleared == [True] and all("77" not in str(error) for error in chain(caught.value))


def test_an_error_that_rows_of_zeros_raise_as_well_is_raised_as_it_is():
    with pytest.raises(TypeError, match="on zeros") as caught:
        guarded(failing(TypeError("on row 77")), on_zeros=failing(TypeError("on zeros")))
    assert len(list(chain(caught.value))) == 1


@pytest.mark.parametrize("error", [UnsupportedUseError("ours"), MemoryError("ours")])
def test_an_error_that_quotes_no_row_is_raised_without_its_causes(error):
    error.__cause__, cleared = IndexError("row 77"), []
    with pytest.raises(type(error), match="ours") as caught:
        guarded(failing(error), on_zeros=failing(KeyError()), clear=lambda: cleared.append(True))
    assert list(chain(caught.value)) == [error] and cleared == [True]


def test_an_interruption_clears_and_is_raised():
    cleared = []
    with pytest.raises(KeyboardInterrupt):
        guarded(failing(KeyboardInterrupt()), on_zeros=lambda: None, clear=lambda: cleared.append(True))
    assert cleared == [True]


def test_no_link_of_an_error_leads_to_one_that_quotes_a_row():
    ours, behind, cause = (UnsupportedUseError(word) for word in ("ours", "behind", "cause"))
    ours.__cause__, ours.__context__ = cause, behind
    behind.__cause__, behind.__context__ = IndexError("row 7"), ours  # in circles, too
    unchain(ours)
    assert ours.__cause__ is cause and ours.__context__ is behind and behind.__cause__ is None
