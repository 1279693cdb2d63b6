# SPDX-License-Identifier: Apache-2.0
import multiprocessing
import os

import pytest
import torch

from sfumato.mechanisms import draws_ahead, tensors
from sfumato.mechanisms.random import SecureGenerator


def few(generator):
    return tensors.gaussian((700,), stddev=1.0, generator=generator)


def test_draws_made_ahead_are_those_of_one_generator_and_one_process(monkeypatch):
    generator, filled = SecureGenerator(), []
    own = generator.fill
    monkeypatch.setattr(generator, "fill", lambda out: (filled.append(len(out)), own(out)))
    few(generator)
    few(generator)
    assert len(filled) == 1  # the second draws were ready
    few(SecureGenerator())
    few(generator)
    assert len(filled) == 2  # another generator came in between
    monkeypatch.setattr(draws_ahead, "process_token", lambda: (0, 0))
    few(generator)
    assert len(filled) == 3  # as in a forked child, which has a copy of what was ready


def test_draws_that_were_given_are_not_kept():
    few(None)
    ((_, _, left),) = tensors._ahead._left
    whole = torch.empty(0).set_(left.untyped_storage())
    assert whole[:700].isnan().all() and whole[700:].isfinite().all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_of_a_process_with_threads_of_torch_draws_without_waiting_for_them():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1 << 20).add_(1)  # starts the threads, which a child does not have
        child = multiprocessing.get_context("fork").Process(target=few, args=(None,))
        child.start()
        child.join(timeout=60)
        waits = child.is_alive()
        child.kill()
        child.join()
    finally:
        torch.set_num_threads(before)
    assert not waits
