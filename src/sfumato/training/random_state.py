# SPDX-License-Identifier: Apache-2.0
"""The state of global random generators, on the CPU and on CUDA devices: keep it, compare it, return to it.

These generators drive dropout, initial weights and most augmentations. Noise never comes from them
(`mechanisms.random`).

Guarantee  Work on private rows draws as often as its batch has rows, and that number is secret. Work inside
           of `private_draws` leaves no trace of it: afterwards the global generators of torch (CPU and CUDA),
           numpy and Python are where they were before, whatever was drawn inside, also if the work failed.
           Draws inside start from a fresh number of the run's generator. It is secret unless that generator
           is seeded: with a known one, a row's draw would depend on how many rows come before it.
Edge cases A context inside of another one goes on with its draws. The context belongs to the process: with
           several threads it lasts from the first one that enters to the last one that leaves. Where CUDA
           is first used inside, its generators begin afterwards as torch would have let them begin.
           Numpy drops a normal draw that it has in store, each time.
Not here   Generators that the caller made, and those of other devices (MPS, XPU). Other processes: workers of
           a loader draw from a number of their own. Torch's generators are not cryptographic, and on the CPU
           they use 32 bits of a seed.
"""

import random
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from sfumato.mechanisms.random import Generator as Randomness
from sfumato.mechanisms.random import words
from sfumato.training import distributed

__all__ = ["RandomState", "StepDraws", "cuda_devices", "private_draws", "same_draws"]


def cuda_devices(devices: Iterable[torch.device]) -> list[torch.device]:
    """Return the CUDA devices among some devices, each once, in order."""
    return sorted({device for device in devices if device.type == "cuda"}, key=str)


@contextmanager
def same_draws(devices: Iterable[torch.device] = (), *, seed: int | None = None) -> Generator[None]:
    """Return a context after which torch draws what it would have drawn without it.

    This holds for the CPU and for the CUDA devices among `devices`; other generators are left alone. With a
    `seed`, draws inside of the context start from it.

    >>> state = torch.get_rng_state()
    >>> with same_draws(seed=3):
    ...     drawn = torch.rand(3)
    >>> torch.equal(torch.get_rng_state(), state)
    True
    """
    cuda = cuda_devices(devices)
    with torch.random.fork_rng(cuda):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            for device in cuda:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
        yield


class RandomState:
    """The state that the generators of the CPU and of some CUDA devices have now."""

    def __init__(self, devices: Iterable[torch.device] = ()) -> None:
        self._devices = cuda_devices(devices)
        self._states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in self._devices)]

    def same_as(self, other: "RandomState") -> bool:
        """Whether another state of the same devices is equal to this one: nothing was drawn in between."""
        return all(torch.equal(a, b) for a, b in zip(self._states, other._states, strict=True))

    @contextmanager
    def again(self) -> Generator[None]:
        """Return a context that draws from this state, and leaves the generators as they were before it."""
        with torch.random.fork_rng(self._devices):
            torch.set_rng_state(self._states[0])
            for device, state in zip(self._devices, self._states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


# --- work on private rows --------------------------------------------------------------------------------


class _Section:
    """What all threads of this process share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # an interrupt may end a section while its thread begins or ends one
        self.inside = 0
        self.put_back: Callable[[], None] = lambda: None


_section: Final = _Section()
_numpy_inside: Final = np.random.MT19937(0)  # what numpy draws from inside: its own is set aside, not copied


@contextmanager
def private_draws(generator: Randomness, purpose: str, index: int) -> Generator[None]:
    """Return a context for work on private rows, whose draws leave no trace in global generators.

    A seeded `generator` lets the draws of one purpose, one index and one rank be repeated.

    >>> from sfumato.mechanisms.random import resolve
    >>> state = torch.get_rng_state()
    >>> with private_draws(resolve(None), "step", 0):
    ...     drawn = torch.rand(3)
    >>> torch.equal(torch.get_rng_state(), state)
    True
    """
    entered = False
    try:
        with _section.lock:
            if not _section.inside:
                _section.put_back = _begun(_seeds(generator, purpose, index))
            _section.inside += 1
            entered = True
        yield
    finally:
        with _section.lock:
            _section.inside -= entered
            if entered and not _section.inside:
                _section.put_back()


def _seeds(generator: Randomness, purpose: str, index: int) -> list[int]:
    """Return a number for torch, one for numpy and one for Python: equal ones would draw alike."""
    if not generator.seeded:
        return words(3).tolist()
    return words(3, generator.fork(f"draws: {purpose}, rank {distributed.rank()}", index)).tolist()


def _begun(seeds: list[int]) -> Callable[[], None]:
    """Seed all global generators, and return what puts them back."""
    cpu, own, python = torch.default_generator.get_state(), get_bit_generator(), random.getstate()
    cuda = [generator.get_state() for generator in _cuda_generators()]  # seed and offset: nothing waits

    def put_back() -> None:
        torch.default_generator.set_state(cpu)
        set_bit_generator(own)
        random.setstate(python)
        kept = iter(cuda)
        for generator in _cuda_generators():
            if (state := next(kept, None)) is not None:
                generator.set_state(state)  # in place, as graphs that were recorded inside need it
            else:
                generator.manual_seed(torch.initial_seed())

    torch.default_generator.manual_seed(seeds[0])
    for generator in _cuda_generators():
        generator.manual_seed(seeds[0])
    set_bit_generator(_numpy_inside)
    np.random.seed(seeds[1] % 2**32)  # noqa: NPY002 - code of the caller draws from it
    random.seed(seeds[2])
    return put_back


def _cuda_generators() -> tuple[torch.Generator, ...]:
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()


class StepDraws:
    """The draws of the steps of one loop. A step may consist of several parts, each with draws of its own."""

    def __init__(self) -> None:
        self._step, self._part = -1, 0

    def part(self, generator: Randomness, step: int) -> AbstractContextManager[None]:
        """Return a context for the next part of a step."""
        self._part = self._part + 1 if step == self._step else 0
        self._step = step
        return private_draws(generator, f"part {self._part} of a step", step)
