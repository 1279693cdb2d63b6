# SPDX-License-Identifier: Apache-2.0
"""The state of torch's random generators, on the CPU and on CUDA devices: keep it, compare it, return to it.

These generators drive dropout and initial weights. Noise never comes from them (`mechanisms.random`).
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager

import torch

__all__ = ["RandomState", "cuda_devices", "same_draws"]


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
