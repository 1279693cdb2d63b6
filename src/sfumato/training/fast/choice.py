# SPDX-License-Identifier: Apache-2.0
"""Which way passes run if nobody says: eagerly, as CUDA graphs, compiled, or both.

A run begins eagerly. After a few steps the ways that are possible are tried, first the one that is quickly
made, each on synthetic rows, and the fastest stays. Compiling takes long, so it is tried only if the steps to
come are expected to repay it.

Guarantee  The choice reads the kind of device and what is installed there, the settings of the run, how many
           steps are planned and were taken, how many operations a pass over synthetic rows has, and how long
           such passes take. So it reveals nothing: no row decides which way is chosen, when, or whether a
           way fails. All ways compute the same sums up to rounding, each is compared with the pass that it
           was made of, and noise is drawn in none of them. So a run that is resumed may choose another way.
Edge cases A run too short to repay anything runs eagerly. If the length of a run is unknown, compiling waits
           until the steps so far would have repaid it, and for `_LATER` steps at least.
Failure    A way that cannot be made, does not agree or has too little memory is left out; the line says why.
"""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

__all__ = ["Choice", "Facts", "Trial", "Unusable", "Way", "ways"]

_FEW: Final = 50  # steps: a run of fewer runs eagerly
_FIRST: Final = 3  # eager steps before the first trial
_SOME: Final = 10  # the same, if the length of the run is unknown
_LATER: Final = 1000  # steps before anything is compiled, if the length of the run is unknown
_GAIN: Final = 0.25  # the share of a step that compiling is expected to save
_SECONDS: Final = 0.03  # that compiling takes for each operation of a pass
_SIZES: Final = 3  # of batches that a pass is compiled for, one after the other
_BETTER: Final = 0.95  # of the time of another way, or less: what is hardly faster is not worth its memory


class Way(Enum):
    """Ways to run passes. They agree up to rounding."""

    EAGER = "eagerly"
    GRAPHS = "as CUDA graphs"
    COMPILED = "compiled"
    BOTH = "compiled, as CUDA graphs"

    @property
    def compiles(self) -> bool:
        """Whether it takes a compiler, and a while."""
        return self in (Way.COMPILED, Way.BOTH)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known before anything is measured; all of it is public.

    Args:
        device: The type of the device.
        cuda_graphs: False: never as CUDA graphs.
        compile: False: never compiled.
        refusal: Why passes of this run cannot be recorded at all; None if they can.
        no_compiler: Why nothing can be compiled here; None if it can.
        planned_steps: How long the run is; None if that is unknown.
    """

    device: str
    cuda_graphs: bool | None = None
    compile: bool | None = None
    refusal: str | None = None
    no_compiler: str | None = None
    planned_steps: int | None = None


def ways(facts: Facts) -> tuple[tuple[Way, ...], str]:
    """Return the ways to try, quickly made ones first, and why there are no others.

    >>> ways(Facts(device="cuda", no_compiler="Triton is not installed"))
    ((<Way.GRAPHS: 'as CUDA graphs'>,), 'Triton is not installed')
    """
    if facts.refusal is not None:
        return (), facts.refusal
    if facts.device != "cuda":
        return (), "this is the fastest way for most models on this device"
    graphs, compiled = facts.cuda_graphs is not False, facts.compile is not False
    found = (Way.GRAPHS,) * graphs
    if not compiled:
        return found, "compile=False" if graphs else "cuda_graphs=False and compile=False"
    if facts.no_compiler is not None:
        return found, facts.no_compiler
    return (*found, Way.BOTH if graphs else Way.COMPILED), ""


class Unusable(Exception):
    """Why a way cannot be used, in a few words that quote no value."""


class Trial(Protocol):
    """Passes over synthetic rows, and how long they take."""

    @property
    def refusal(self) -> str | None:
        """Why recordings would not pay, as the steps so far have shown; None if they may."""
        ...

    def draws(self) -> bool:
        """Whether a pass draws random numbers."""
        ...

    def operations(self) -> int:
        """How many operations a pass consists of."""
        ...

    def seconds(self, way: Way) -> float:
        """Return how long a pass takes; raise `Unusable` if it cannot be run in this way."""
        ...

    def keep(self, way: Way) -> None:
        """Run passes in this way from now on."""
        ...


class Choice:
    """The choice of one run.

    >>> choice = Choice(Facts(device="cpu"))
    >>> choice.line
    'Passes run eagerly: this is the fastest way for most models on this device.'
    """

    def __init__(self, facts: Facts) -> None:
        self.way = Way.EAGER
        self._planned = facts.planned_steps
        self._left, self._why = ways(facts)
        self._due: float = _SOME if self._planned is None else _FIRST  # steps until the next trial
        self._times: dict[Way, float] = {}
        self._failed: list[str] = []
        if not self._left:
            self._due = math.inf

    @property
    def line(self) -> str:
        """How passes run, and why, in one line."""
        why = "; ".join(part for part in (*self._failed, self._why) if part)
        if self._left and not self._times:
            return "Passes run eagerly: other ways are tried after the first steps."
        if self.way is Way.EAGER:
            return f"Passes run eagerly: {why or 'no other way is faster on synthetic rows'}."
        times = self._times[Way.EAGER] / self._times[self.way]
        line = f"Passes run {self.way.value}: {times:.1f} times faster than eagerly, on synthetic rows"
        return f"{line} ({why})." if why else f"{line}."

    @property
    def open(self) -> bool:
        """Whether passes run in another way than eagerly, or may yet."""
        return self.way is not Way.EAGER or bool(self._left)

    def due(self, taken: int) -> bool:
        """Whether a trial is due after so many steps of this process."""
        return taken >= self._due

    def stay(self, why: str) -> None:
        """Run eagerly from now on."""
        self.way, self._why, self._failed, self._left, self._due = Way.EAGER, why, [], (), math.inf

    def choose(self, trial: Trial, *, taken: int, remaining: int | None) -> None:
        """Try what is possible and may pay, and keep the fastest.

        Args:
            trial: Measures the ways.
            taken: How many steps this process has taken.
            remaining: How many are planned from here on; None if that is unknown.
        """
        if trial.refusal is not None and self.way is Way.EAGER:
            return self.stay(trial.refusal)
        if remaining is not None and remaining < _FEW:
            return self.stay("the run is too short for anything else to pay")
        best, self._due = self.way, math.inf
        for candidate in self._candidates(trial):
            way = candidate
            if way.compiles and not self._pays(trial, taken, remaining):
                break
            self._left = tuple(other for other in self._left if other is not candidate)
            if way is Way.BOTH and Way.GRAPHS not in self._times:
                way = Way.COMPILED  # what is compiled could not be recorded either
            if self._measured(trial, way) and self._times[way] < self._times[best] * _BETTER:
                best = way
        if best is not self.way:
            self.way = best
            trial.keep(best)

    def _candidates(self, trial: Trial) -> tuple[Way, ...]:
        """Return what may be tried now; how long an eager pass takes is measured first."""
        if not self._measured(trial, Way.EAGER):
            self._left, self._why = (), ""
        elif trial.draws() and any(way.compiles for way in self._left):
            self._left = tuple(way for way in self._left if not way.compiles)
            self._why = "not compiled, because the model draws random numbers, and would draw others"
        return self._left

    def _measured(self, trial: Trial, way: Way) -> bool:
        if way in self._times:
            return True
        try:
            self._times[way] = trial.seconds(way)
        except Unusable as error:
            self._failed.append(f"{way.value}: {error}")
        return way in self._times

    def _pays(self, trial: Trial, taken: int, remaining: int | None) -> bool:
        """Whether compiling is expected to be repaid; where that is unknown, it is put off."""
        cost = trial.operations() * _SECONDS * _SIZES
        needed = math.ceil(cost / (_GAIN * self._times[self._fastest()]))
        if remaining is not None:
            if needed > remaining:
                self._left = ()
                self._why = f"not compiled, because about {needed} steps would have to follow to repay it"
            return needed <= remaining
        needed = max(needed, _LATER)
        if taken < needed:
            self._due, self._why = needed, f"not compiled before step {needed}, when it may pay"
            return False
        self._why = ""
        return True

    def _fastest(self) -> Way:
        return min(self._times, key=lambda way: self._times[way])
