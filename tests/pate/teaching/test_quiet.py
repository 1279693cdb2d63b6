# SPDX-License-Identifier: Apache-2.0
import logging
import os
import random
import sys
import threading
import warnings

import numpy as np
import pytest
import torch

from sfumato.pate.teaching.quiet import quiet, seeded_draws


def speak():
    sys.stdout.write("private")
    sys.stderr.write("private")
    os.write(1, b"private")
    os.write(2, b"private")
    warnings.warn("private", stacklevel=1)
    logging.getLogger("x").critical("private")


def test_nothing_is_shown_inside_and_everything_after(capfd, caplog):
    with quiet():
        speak()
    assert capfd.readouterr() == ("", "") and caplog.records == []
    with pytest.warns(UserWarning):
        speak()
    assert capfd.readouterr() == ("privateprivate", "privateprivate") and len(caplog.records) == 1


def test_an_error_ends_the_section(capfd):
    with pytest.raises(ValueError), quiet():
        raise ValueError
    os.write(1, b"heard")
    assert capfd.readouterr().out == "heard"


def test_threads_that_overlap_stay_silent_until_the_last_one_leaves(capfd):
    entered, leave = threading.Event(), threading.Event()

    def first():
        with quiet():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with quiet():
        leave.set()
        thread.join()  # the thread that entered first has left
        speak()
    os.write(1, b"heard")
    assert capfd.readouterr() == ("heard", "")
    with pytest.warns(UserWarning):
        warnings.warn("heard", stacklevel=1)


def test_torch_uses_one_thread_inside():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with quiet():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def draws():
    return random.random(), np.random.rand(), float(torch.rand(1))  # noqa: NPY002 - what is seeded


def test_global_draws_start_from_the_seed_and_leave_no_trace():
    states = random.getstate(), torch.get_rng_state()
    with seeded_draws(3):
        first = draws()
    with seeded_draws(3):
        assert draws() == first
    with seeded_draws(4):
        assert draws() != first
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
