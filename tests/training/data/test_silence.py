# SPDX-License-Identifier: Apache-2.0
import io
import logging
import os
import subprocess
import sys
import threading
import warnings

import pytest

from sfumato.training.data.silence import often_silent, silent


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


def test_no_way_of_writing_to_a_stream_shows_anything(capfd):
    with silent():
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            assert isinstance(stream, io.TextIOBase) and stream.writable()
            stream.writelines(["a row\n"])
            stream.buffer.write(b"a row")
            os.write(stream.fileno(), b"a row")
            print("a row", file=stream, flush=True)
            stream.reconfigure(line_buffering=True)
            stream.close()
            stream.buffer.close()
            stream.buffer.write(b"a row")
            assert not hasattr(stream, "_stream_of_its_own")
        subprocess.run([sys.executable, "-c", "print('a row')"], stdout=sys.stdout, check=True)
    assert capfd.readouterr() == ("", "")


def test_a_handler_that_kept_the_stream_shows_what_is_said_afterwards(capsys):
    with silent():
        handler = logging.StreamHandler(sys.stderr)
        handler.emit(logging.LogRecord("", logging.ERROR, "", 0, "a row", (), None))
    handler.emit(logging.LogRecord("", logging.ERROR, "", 0, "public", (), None))
    assert capsys.readouterr().err == "public\n"


def test_filters_that_stay_at_handlers_are_off_between_and_gone_afterwards(capsys, caplog):
    log = logging.getLogger("its own")
    before = [list(handler.filters) for handler in _handlers()]
    with often_silent():
        for turn in range(3):
            with silent():
                log.critical("a row")
                sys.stdout.write("a row")
                with silent():
                    log.critical("a row")
                log.critical("a row")
            log.critical("public %d", turn)
            sys.stdout.write("public\n")
    assert [each.message for each in caplog.records] == [f"public {turn}" for turn in range(3)]
    assert capsys.readouterr().out == 3 * "public\n"
    assert [list(handler.filters) for handler in _handlers()] == before


def test_a_filter_that_a_row_took_away_is_there_for_the_next_row(caplog):
    log = logging.getLogger("its own")
    with often_silent():
        with silent():
            for handler in _handlers():
                handler.filters.clear()
        with silent():
            log.critical("a row")
        log.critical("public")
    assert [each.message for each in caplog.records] == ["public"]


def test_a_handler_that_a_row_made_is_filtered_for_the_next_row(capsys):
    log, stream = logging.getLogger("its own"), io.StringIO()
    with often_silent():
        with silent():
            log.addHandler(handler := logging.StreamHandler(stream))
        try:
            with silent():
                log.critical("a row")
            log.critical("public")
        finally:
            log.removeHandler(handler)
    assert stream.getvalue() == "public\n"


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_handler_that_logging_forgot_when_it_was_configured_shows_nothing(when, monkeypatch):
    monkeypatch.setattr(logging, "_handlerList", list(logging._handlerList))  # as `logging.config` empties it
    log, stream = logging.getLogger("its own"), io.StringIO()
    log.addHandler(handler := logging.StreamHandler(stream))
    try:
        if when == "before":
            logging._handlerList.clear()
        with often_silent():
            with silent():
                log.critical("a row")
            if when == "during":
                logging._handlerList.clear()
            with silent():
                log.critical("a row")
            log.critical("public")
        with silent():
            log.critical("a row")
    finally:
        log.removeHandler(handler)
    assert stream.getvalue() == "public\n" and not handler.filters


def test_a_stream_that_was_exchanged_between_is_the_one_that_is_kept_back(monkeypatch):
    with often_silent():
        with silent():
            pass
        monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
        with silent():
            sys.stdout.write("a row")
        assert sys.stdout is stream
        sys.stdout.write("public")
    assert stream.getvalue() == "public"


def _handlers():
    return [handler for one in logging._handlerList if (handler := one()) is not None]


def test_a_warning_that_torch_gives_once_is_not_used_up():
    """In another process, where torch has not warned of it yet."""
    code = """
import warnings, numpy as np, torch
from sfumato.training.data.silence import often_silent, silent
row = np.ones(3)
row.flags.writeable = False
with silent():
    torch.from_numpy(row)
assert not torch.is_warn_always_enabled()
with warnings.catch_warnings(record=True) as shown:
    warnings.simplefilter("always")
    torch.from_numpy(row)
print(len(shown))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "1"
