# SPDX-License-Identifier: Apache-2.0
"""A value that left the private side, with what it promises and how far it may be off.

Promise    A release carries its guarantee (epsilon, delta, relation and unit) and the event that was charged.
Interval   What it covers is said, never implied: the noise; the sampling, if the rows are a sample of a
           larger population; the clipping to bounds. What cannot be known without spending more is
           left out, and so is not in `covers`.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee
from sfumato.errors import InvalidParameterError

__all__ = ["Covers", "Interval", "Release"]

Value = TypeVar("Value")


class Covers(Enum):
    """What may move a released number away from the truth."""

    NOISE = "noise"
    SAMPLING = "sampling"
    CLIPPING = "clipping"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Numbers between which the truth lies with probability `level`, as far as `covers` says.

    >>> print(Interval(lower=35.2, upper=35.6, level=0.95, covers=(Covers.NOISE,)))
    35.2 to 35.6 (95%, noise)
    """

    lower: float
    upper: float
    level: float
    covers: tuple[Covers, ...]

    def __post_init__(self) -> None:
        _check.probability(level=self.level)
        if not self.lower <= self.upper:
            raise InvalidParameterError("an interval's lower end must not be above its upper end.")

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def __str__(self) -> str:
        covered = ", ".join(part.value for part in self.covers)
        return f"{self.lower:g} to {self.upper:g} ({100 * self.level:g}%, {covered})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Release(Generic[Value]):
    """One output, what it cost, and how sure it is; `interval` is one, one for each number, or None.

    `value` is None where the mechanism answered that it failed: that answer is private, too, and paid for.
    """

    name: str
    value: Value
    interval: Interval | tuple[Interval, ...] | None = None
    guarantee: Guarantee
    event: DpEvent = field(repr=False)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.name}: {_shown(self.value)}"]
        if isinstance(self.interval, Interval):
            lines.append(f"  interval: {self.interval}")
        lines += [f"  {self.guarantee}", *(f"  {note}" for note in self.notes)]
        return "\n".join(lines)


def _shown(value: object) -> str:
    if value is None:
        return "failed"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
