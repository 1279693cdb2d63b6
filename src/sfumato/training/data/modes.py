# SPDX-License-Identifier: Apache-2.0
"""Global modes of torch, put back after code has run on a private row.

Guarantee  After `kept_modes` the modes below are what they were before, so code that reads or runs one row
           cannot change how other rows, or later steps, are computed.
Edge cases The modes are those of gradients, inference, autocast (CPU and CUDA), the default type of numbers,
           deterministic algorithms, anomaly detection, the number of threads and the precision of products.
Not here   A default device, settings of cuDNN, and whatever code may change in Python, numpy or the system.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from operator import call
from typing import Any, Final

import torch

__all__ = ["Modes", "kept_modes"]

_DEVICES: Final = ("cpu", "cuda")
_MODES: Final[list[tuple[Callable[[], Any], Callable[[Any], object]]]] = [
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    *[(partial(torch.is_autocast_enabled, d), partial(torch.set_autocast_enabled, d)) for d in _DEVICES],
    *[(partial(torch.get_autocast_dtype, d), partial(torch.set_autocast_dtype, d)) for d in _DEVICES],
]
_READ: Final = tuple(read for read, _ in _MODES)
_call: Callable[..., Any] = call


@contextmanager
def kept_modes() -> Generator[None]:
    """Return a context after which torch's modes are as before.

    >>> with kept_modes():
    ...     _ = torch.set_grad_enabled(False)
    >>> torch.is_grad_enabled()
    True
    """
    modes = Modes()
    try:
        yield
    finally:
        modes.put_back()


class Modes:
    """What the modes are now. One of them serves many rows, with `put_back` after each."""

    def __init__(self) -> None:
        self._values, self._nesting = list(map(_call, _READ)), _autocast_nesting()
        self._inference = torch.is_inference_mode_enabled()

    def put_back(self) -> None:
        """Set every mode that is another one now."""
        if torch.is_inference_mode_enabled() is not self._inference:
            _set_inference(self._inference)
        if list(map(_call, _READ)) != self._values:
            for (read, write), value in zip(_MODES, self._values, strict=True):
                if read() != value:
                    write(value)
        _set_autocast_nesting(self._nesting)


_entered: Final[list[Any]] = []  # contexts that are never left: leaving one would set the mode once more


def _set_inference(enabled: bool) -> None:
    """Set the mode of inference, which has no setter: a context of it is entered."""
    context = torch.inference_mode(enabled)
    context.__enter__()
    _entered.append(context)


def _autocast_nesting() -> int:
    """Return how many contexts of autocast are open: the last one drops the casts of weights."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _set_autocast_nesting(wanted: int) -> None:
    """Close what a row left open; otherwise casts of weights would outlive the weights."""
    now = _autocast_nesting()
    for _ in range(now - wanted):
        torch.autocast_decrement_nesting()
    for _ in range(wanted - now):
        torch.autocast_increment_nesting()
    if now != wanted:
        torch.clear_autocast_cache()
