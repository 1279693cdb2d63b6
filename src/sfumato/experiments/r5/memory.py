# SPDX-License-Identifier: Apache-2.0
"""The peak of memory that tensors take while something is computed, on a GPU or a CPU."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_bytes"]


def peak_bytes(work: Callable[[], object], device: str) -> int:
    """Return by how many bytes tensors grow at most during a call, after a first one that is not counted.

    Args:
        work: What is computed, twice.
        device: Where.

    Returns:
        Bytes.

    >>> peak_bytes(lambda: torch.zeros(1000).sum(), "cpu") >= 4000
    True
    """
    work()
    gc.collect()
    return _on_gpu(work, device) if device.startswith("cuda") else _on_cpu(work)


def _on_gpu(work: Callable[[], object], device: str) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _on_cpu(work: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    inner = seen.profiler
    assert inner is not None and inner.kineto_results is not None  # the profile has ended
    found: list[Any] = inner.kineto_results.events()  # what stubs know of an event is not all it has
    changes = [event for event in found if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
