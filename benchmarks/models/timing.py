# SPDX-License-Identifier: Apache-2.0
"""The clocks: interleaved rounds on the CPU, device events and peak memory on a GPU."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from models.modes import MODES, Step, Workload
from models.networks import Case

WARM_UP: Final = 5  # steps: kernels are compiled and chosen, graphs recorded
EVENTS: Final = 20  # timed steps on a GPU

Clock = Callable[[], float]


@dataclass(frozen=True)
class Seconds:
    """What the steps of one mode took, round by round; or why there is none."""

    rounds: tuple[float, ...] = ()
    error: str = ""
    peak: float = 0.0  # bytes, on a GPU
    way: str = ""  # in which our passes ran, if they chose it

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.rounds)


def first_line(error: BaseException) -> str:
    """Return what went wrong, in a line."""
    lines = str(error).strip().splitlines() or [""]
    return f"fails: {type(error).__name__}: {lines[0]}"


# --- CPU -------------------------------------------------------------------------------------------------


def interleaved(steps: Mapping[str, Step], *, rounds: int, turn: float, clock: Clock) -> dict[str, Seconds]:
    """Let all modes take turns of about `turn` seconds, so that whatever slows one slows all."""
    lengths, errors = _tried(steps, turn)
    times: dict[str, list[float]] = {name: [] for name in lengths}
    for _ in range(rounds):
        for name, length in lengths.items():
            times[name].append(_turn(steps[name], length, clock))
    found = {name: Seconds(tuple(values)) for name, values in times.items()}
    return {name: found.get(name) or Seconds(error=errors[name]) for name in steps}


def _tried(steps: Mapping[str, Step], turn: float) -> tuple[dict[str, int], dict[str, str]]:
    """Return how many steps make a turn, for each mode that works, and the errors of those that do not."""
    lengths: dict[str, int] = {}
    errors: dict[str, str] = {}
    for name, step in steps.items():
        try:
            step()  # checks and first allocations
            seconds = _turn(step, 1, time.process_time)
        except Exception as error:  # whatever a peer raises is its result
            errors[name] = first_line(error)
        else:
            lengths[name] = max(1, round(turn / seconds)) if seconds > 0 else 1
    return lengths, errors


def _turn(step: Step, length: int, clock: Clock) -> float:
    step()  # its memory is back in the caches before the clock starts
    start = clock()
    for _ in range(length):
        step()
    return (clock() - start) / length


def cpu_step(case: Case, mode: str) -> Step:
    """Return a step with a model of its own; a mode that cannot be built fails at its first step instead."""
    try:
        return MODES[mode](Workload.of(case, torch.device("cpu")))
    except Exception as error:
        failure = error

        def fail() -> None:
            raise failure

        return fail


# --- GPU -------------------------------------------------------------------------------------------------


def gpu_mode(case: Case, name: str) -> Seconds:
    """Return the seconds of a mode that is started clean, and the peak of memory from its first byte on."""
    _clean()
    try:
        return _events(MODES[name](Workload.of(case, torch.device("cuda"))))
    except Exception as error:
        return Seconds(error=first_line(error))
    finally:
        _clean()


def _clean() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # they stay allocated otherwise, and would be the next mode's
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def _events(step: Step) -> Seconds:
    for _ in range(WARM_UP):
        step()
    times = [_device_seconds(step) for _ in range(EVENTS)]
    peak = float(torch.cuda.max_memory_allocated())
    return Seconds(tuple(times), peak=peak, way=getattr(step, "way", ""))


def _device_seconds(step: Step) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3
