# SPDX-License-Identifier: Apache-2.0
import logging
import sys
import threading
import warnings

import pytest

from sfumato.training.data.silence import silent


def test_nothing_that_code_says_is_shown(capsys, caplog):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        with silent():
            sys.stdout.write("a row")
            sys.stderr.write("a row")
            logging.getLogger("its own").critical("a row")
            for _ in range(2):
                warnings.warn("a row", stacklevel=1)
    assert not shown and not caplog.records
    assert capsys.readouterr() == ("", "")


def test_everything_is_as_before_also_after_an_error(capsys, caplog):
    def warned():
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("default")
            warnings.warn("said", stacklevel=1)
        return len(shown)

    with pytest.raises(ValueError, match="wrong"), silent():
        warnings.warn("said", stacklevel=1)
        raise ValueError("wrong")
    sys.stdout.write("shown\n")
    logging.getLogger("its own").critical("logged")
    assert warned() == 1 and [each.message for each in caplog.records] == ["logged"]
    assert capsys.readouterr().out == "shown\n"


def test_what_another_thread_says_is_shown(capsys, caplog):
    def says():
        sys.stdout.write("from another thread")
        logging.getLogger("its own").critical("logged")

    with silent():
        other = threading.Thread(target=says)
        other.start()
        other.join()
        sys.stdout.write("hidden")
    assert capsys.readouterr().out == "from another thread"
    assert [each.message for each in caplog.records] == ["logged"]
