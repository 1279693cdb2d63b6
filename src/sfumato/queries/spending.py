# SPDX-License-Identifier: Apache-2.0
"""How far one unit reaches into a grouped table, and the noise that a share of a budget buys against it.

Guarantee  A unit has at most `rows` rows in each of at most `groups` groups. So it moves a vector of counts
           of rows, one number for each group, by at most rows * groups in L1 norm and rows * sqrt(groups) in
           L2 norm; a sum of values of size c by c times as much. `Noise` costs `event()` for a vector of
           whole numbers that moves by at most `l1` and `l2`.
           If only the number of rows in all is bounded, by k, then rows = k and groups = 1 bound the same
           norms: the largest is reached if all rows are in one group. Such a unit may still be in k groups
           (`most_groups`), once in each, which matters for counts of units.
Neighbors  Replacing a unit takes its rows away and adds others. Counts are not negative, so the two vectors
           have an angle of at most 90 degrees, and L2 norms grow by sqrt(2); those of sums by 2.
Source     As `statistics.noise` and `statistics.gaussian_vectors`, which draw the noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.mechanisms.random import Generator
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.gaussian_vectors import VectorGaussian
from sfumato.statistics.intervals import GaussianLaw, Law
from sfumato.statistics.noise import Kind, WholeNoise

__all__ = ["Noise", "Reach", "Spend"]

_LARGEST_FLOAT = 2**53  # up to which float64 holds every whole number


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """How many rows and groups of a table one unit can change.

    >>> Reach(relation=Relation.ADD_REMOVE, rows=3, groups=4, most_groups=4, unit="patient").l1
    12
    """

    relation: Relation
    rows: int
    groups: int
    most_groups: int
    unit: str | None

    @property
    def l1(self) -> int:
        """The L1 sensitivity of a vector of counts of rows."""
        return self.rows * self.groups * self.relation.diameter

    @property
    def l2_of_counts(self) -> float:
        """The L2 sensitivity of a vector of counts of rows."""
        return self.rows * math.sqrt(self.groups * self.relation.diameter)

    @property
    def l2_of_sums(self) -> float:
        """The L2 sensitivity of a vector of sums of values of size at most 1, of any sign."""
        return self.rows * math.sqrt(self.groups) * self.relation.diameter


@dataclass(frozen=True, kw_only=True, slots=True)
class Spend:
    """What one statistic may spend: an epsilon, or with `gaussian` a rho of zCDP.

    >>> Spend(amount=0.5, gaussian=True).epsilon
    2.0
    """

    amount: float
    gaussian: bool

    @property
    def epsilon(self) -> float:
        """The epsilon of an exponential mechanism that costs about this much; its own event is charged."""
        return math.sqrt(8 * self.amount) if self.gaussian else self.amount


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Noise for a vector of whole numbers that moves by at most `l1` and `l2` between neighbors.

    >>> spend = Spend(amount=0.5, gaussian=False)
    >>> Noise(spend=spend, relation=Relation.ADD_REMOVE, kind=Kind.COUNTS, l1=1, l2=1.0).event()
    DiscreteLaplaceDpEvent(noise_parameter=0.5, sensitivity=1)
    """

    spend: Spend
    relation: Relation
    kind: Kind
    l1: int
    l2: float

    @property
    def law(self) -> Law:
        """The distribution of the noise on each number."""
        return GaussianLaw(self._gaussian().stddev) if self.spend.gaussian else self._laplace().law

    def event(self) -> DpEvent:
        """Return the event that one `add` is charged with."""
        return self._gaussian().event() if self.spend.gaussian else self._laplace().event()

    def add(self, numbers: Sequence[int] | Integers, *, generator: Generator | None = None) -> Floats:
        """Return the numbers with noise."""
        if not self.spend.gaussian:
            return self._laplace().add(numbers, generator=generator)
        # Clamping does not increase the distance of two numbers.
        known = np.array([min(max(int(n), -_LARGEST_FLOAT), _LARGEST_FLOAT) for n in numbers], dtype=np.int64)
        return self._gaussian().add(known, generator=generator)

    def _laplace(self) -> WholeNoise:
        return WholeNoise(
            epsilon=self.spend.amount,
            delta=0.0,
            relation=self.relation,
            kind=self.kind,
            l1_sensitivity=self.l1,
            l2_sensitivity=self.l2,
            coordinates=1,
        )

    def _gaussian(self) -> VectorGaussian:
        return VectorGaussian.of_rho(rho=self.spend.amount, sensitivity=self.l2, relation=self.relation)
