# SPDX-License-Identifier: Apache-2.0
"""Calls that take turns, so that whatever slows one slows all."""

import time
from collections.abc import Callable, Mapping

import numpy as np

Clock = Callable[[], float]
Times = dict[str, np.ndarray]


def taking_turns(
    calls: Mapping[str, Callable[[], object]], *, rounds: int, clock: Clock = time.perf_counter
) -> Times:
    """Return the seconds of each call, round by round; a first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start = clock()
            call()
            times[name].append(clock() - start)
    return {name: np.array(taken[1:]) for name, taken in times.items()}


def ms(taken: np.ndarray) -> float:
    """Return the middle one, in milliseconds."""
    return 1e3 * float(np.median(taken))
