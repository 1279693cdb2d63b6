# SPDX-License-Identifier: Apache-2.0
"""A running sum of costs that is exact: adding and removing in any order leaves no rounding error.

Every float is a whole multiple of the smallest one, 2^-1074, and whole numbers add up exactly. Infinite costs
are counted separately.

Guarantee  `total` is the sum of all costs added and not taken away, correctly rounded once, at the end.
"""

import math
from dataclasses import dataclass, field, replace

from sfumato.ledger.filters import Cost

__all__ = ["Tally"]

_ONE = 1 << 1074  # 1.0, in multiples of the smallest positive float


@dataclass(slots=True)
class _Sum:
    finite: int = 0
    infinite: int = 0

    def change(self, value: float, sign: int) -> None:
        if value == math.inf:
            self.infinite += sign
        else:
            numerator, denominator = value.as_integer_ratio()
            self.finite += sign * numerator * (_ONE // denominator)

    def rounded(self) -> float:
        if self.infinite:
            return math.inf
        try:
            return self.finite / _ONE  # Python rounds the quotient of two whole numbers correctly
        except OverflowError:
            return math.inf


@dataclass(slots=True)
class Tally:
    """The sum of many costs.

    >>> tally = Tally()
    >>> for epsilon in (1e300, 1e-300, 0.25):
    ...     tally.add(Cost(renyi=math.inf, epsilon=epsilon, delta=0.0))
    >>> tally.remove(Cost(renyi=math.inf, epsilon=1e300, delta=0.0))
    >>> tally.total()
    Cost(renyi=inf, epsilon=0.25, delta=0.0, gaussian=inf)
    """

    _renyi: _Sum = field(default_factory=_Sum)
    _epsilon: _Sum = field(default_factory=_Sum)
    _delta: _Sum = field(default_factory=_Sum)
    _gaussian: _Sum = field(default_factory=_Sum)

    def add(self, cost: Cost) -> None:
        """Count one more cost."""
        self._change(cost, 1)

    def remove(self, cost: Cost) -> None:
        """Take a cost away that was added before."""
        self._change(cost, -1)

    def copy(self) -> "Tally":
        """Return the same sum, which later costs do not change."""
        return Tally(*(replace(part) for part in (self._renyi, self._epsilon, self._delta, self._gaussian)))

    def total(self) -> Cost:
        """Return the sum."""
        return Cost(
            renyi=self._renyi.rounded(),
            epsilon=self._epsilon.rounded(),
            delta=self._delta.rounded(),
            gaussian=self._gaussian.rounded(),
        )

    def _change(self, cost: Cost, sign: int) -> None:
        self._renyi.change(cost.renyi, sign)
        self._epsilon.change(cost.epsilon, sign)
        self._delta.change(cost.delta, sign)
        self._gaussian.change(cost.gaussian, sign)
