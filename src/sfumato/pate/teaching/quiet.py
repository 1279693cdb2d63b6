# SPDX-License-Identifier: Apache-2.0
"""A section in which code that learns from private rows can neither say nor disturb anything.

Guarantee  Inside, warnings, log records and everything printed are dropped, also what compiled code writes to
           the file descriptors 1 and 2: each could tell something about the rows. Random draws that
           `seeded_draws` covers do not depend on what was drawn before, and leave no trace: otherwise the
           rows of one teacher would reach the next one through a global generator.
Edge cases Numerical libraries and torch use one thread inside, so that results do not depend on the number
           of processors. The section belongs to the process: with several threads it lasts from the first
           one that enters to the last one that leaves.
"""

import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import lru_cache
from typing import Any, Final

import numpy as np
from threadpoolctl import ThreadpoolController

__all__ = ["quiet", "seeded_draws"]

_STREAMS: Final = (1, 2)  # the descriptors of stdout and stderr


class _Section:
    """What all threads of this process share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.stack = ExitStack()


_section = _Section()


@contextmanager
def quiet() -> Generator[None]:
    """Return a context in which nothing is shown, and libraries use one thread.

    >>> with quiet():
    ...     print("a private value")
    """
    with _section.lock:
        if _section.inside == 0:
            _section.stack = _entered()
        _section.inside += 1
    try:
        yield
    finally:
        with _section.lock:
            _section.inside -= 1
            if _section.inside == 0:
                _section.stack.close()


def _entered() -> ExitStack:
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("ignore")
        nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        for part in (
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
            _silent_descriptors(),
            _silent_log(),
        ):
            stack.enter_context(part)
        stack.enter_context(_controller(len(sys.modules)).limit(limits=1))
        stack.enter_context(_one_torch_thread())
        return stack.pop_all()


@lru_cache(maxsize=1)
def _controller(modules: int) -> ThreadpoolController:
    """Return what limits threads; libraries are looked for again when more modules are loaded."""
    return ThreadpoolController()


@contextmanager
def _silent_descriptors() -> Generator[None]:
    """Let compiled code write to nowhere; a descriptor that is closed stays closed."""
    kept: list[tuple[int, int]] = []
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and not stream.closed:
            stream.flush()  # what is waiting was written before
    for number in _STREAMS:
        try:
            kept.append((number, os.dup(number)))
        except OSError:
            continue
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number, _ in kept:
            os.dup2(nowhere, number)
        yield
    finally:
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)


@contextmanager
def _silent_log() -> Generator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _one_torch_thread() -> Generator[None]:
    torch: Any = sys.modules.get("torch")  # a process that has not imported it has no threads of it
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded_draws(seed: int) -> Generator[None]:
    """Return a context in which Python's, numpy's and torch's global generators start from a seed.

    Args:
        seed: The seed, below 2^32.

    >>> with seeded_draws(3):
    ...     first = random.random()
    >>> with seeded_draws(3):
    ...     first == random.random()
    True
    """
    with ExitStack() as stack:
        for restore in (_python_state(), _numpy_state(), *_torch_state()):
            stack.callback(restore)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - estimators without a random_state draw from it
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.default_generator.manual_seed(seed)
            if torch.cuda.is_available():
                torch.cuda.manual_seed_all(seed)  # also where CUDA is first used inside
        yield


def _python_state() -> Callable[[], object]:
    state = random.getstate()
    return lambda: random.setstate(state)


def _numpy_state() -> Callable[[], object]:
    state = np.random.get_state()  # noqa: NPY002 - it is only put back
    return lambda: np.random.set_state(state)  # noqa: NPY002


def _torch_state() -> list[Callable[[], object]]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return []
    state = torch.get_rng_state()
    put_back: Callable[[], object] = lambda: torch.set_rng_state(state)  # noqa: E731
    return [put_back, _cuda_state(torch)] if torch.cuda.is_available() else [put_back]


def _cuda_state(torch: Any) -> Callable[[], object]:
    if not torch.cuda.is_initialized():
        return torch.cuda.seed_all  # there is nothing to put back, and nothing may stay
    states = torch.cuda.get_rng_state_all()
    return lambda: torch.cuda.set_rng_state_all(states)
