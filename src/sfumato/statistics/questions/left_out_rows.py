# SPDX-License-Identifier: Apache-2.0
"""Private share of the rows that a contribution bound leaves out.

Guarantee  `LeftOutShare` costs its event: noise on two counts of rows, those that count under the bound k,
           and those beyond it. One unit may own any number of rows, so no noise would hide how many are left
           out in total. Therefore at most c rows of each unit are counted (`most_rows`): a unit of m rows
           adds min(m, k) to one count and min(m, c) - min(m, k) to the other, together at most c.
Neighbors  Both counts only grow with the rows of a unit, so replacing a unit changes them no more than adding
           or removing one: by c in L1 norm, and by |(k, c - k)| in L2 norm.
Edge cases The value is the share of the rows beyond k among the rows that are counted. If units have more
           than c rows, it is less than the share of all rows, by an unknown amount. A larger c needs more
           noise. If the noisy number of rows is below 1, the value is None ("failed"), which is private and
           charged. The interval covers the noise. Rows without a unit are not counted. A row with a missing
           value is counted, as the columns of other questions are not known here.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.statistics.contributions.owned_rows import OwnedRows, described, shown
from sfumato.statistics.noise import Kind, WholeNoise
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.row_split import NoisyShares
from sfumato.statistics.release import Covers, Interval
from sfumato.statistics.terms import Terms

__all__ = ["LeftOutShare", "left_out_share"]

_MANY = 10  # times the bound: rows of a unit that are counted, unless given
_FAILED = ("failed: too few rows for this epsilon",)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOutShare(Terms):
    """The share of the rows beyond the first `kept`, of at most `contribution_bound` rows of each unit.

    >>> LeftOutShare(kept=2, contribution_bound=20, epsilon=0.5).event()
    DiscreteLaplaceDpEvent(noise_parameter=0.025, sensitivity=20)
    """

    kept: int

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        if not self.contribution_bound > self.kept >= 1:
            raise InvalidParameterError(
                f"most_rows={self.contribution_bound} must be above the contribution bound, {self.kept}: "
                "rows beyond the bound are left out, and are counted here up to most_rows."
            )

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"share of rows left out by a bound of {self.kept}"

    def event(self) -> DpEvent:
        """Return the event that a release is charged with."""
        return self._noise().event()

    def answer(self, data: "ManyRows", *, generator: Generator | None) -> Answer[float | None]:
        """Return the share with noise, or None if the noisy number of rows is below 1."""
        kept, counted = data.owned.counts(self.kept, self.contribution_bound)
        noisy = NoisyShares.of([kept, counted - kept], self._noise(), 1, None, generator)
        if noisy.size < 1:
            return Answer(value=None, notes=_FAILED)
        places = np.array([0.0, 1.0])
        lower, upper = noisy.interval(places, level=self.level)
        return Answer(
            value=min(max(noisy.average(places), 0.0), 1.0),
            interval=Interval(lower=lower, upper=upper, level=self.level, covers=(Covers.NOISE,)),
            notes=(
                f"if a {data.privacy_unit} has more than {self.contribution_bound} rows, the share of all "
                "rows is larger",
            ),
        )

    def plan(self, data: "ManyRows") -> str:
        """Return the SQL that the engine would run."""
        return data.owned.sql(data.owned.count(self.kept, self.contribution_bound))

    def _noise(self) -> WholeNoise:
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=self.contribution_bound,
            l2_sensitivity=math.hypot(self.kept, self.contribution_bound - self.kept),
            coordinates=2,
        )


@dataclass(frozen=True, slots=True, repr=False)
class ManyRows:
    """Rows with a higher contribution bound than that of all other questions."""

    owned: OwnedRows
    contribution_bound: int

    @property
    def privacy_unit(self) -> str:
        """The privacy unit: who is protected."""
        return self.owned.privacy_unit

    def __repr__(self) -> str:
        return described(self, *self.owned.expression.columns)

    def __dir__(self) -> list[str]:
        return shown(self, "owned")


def left_out_share(
    owned: OwnedRows,
    *,
    epsilon: float,
    most_rows: int | None,
    delta: float,
    relation: Relation | str,
    level: float,
) -> Query[Any]:
    """Return the query for a table with a privacy unit. Raises if each row is a unit."""
    if owned.unit is None:
        raise InvalidParameterError(
            "each row of this table is a unit, so no row is left out. Open the table with privacy_unit=... "
            "if a unit has several rows."
        )
    most = _MANY * owned.contribution_bound if most_rows is None else most_rows
    question = LeftOutShare(
        kept=owned.contribution_bound,
        contribution_bound=most,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        level=level,
        column="rows",
    )
    return Query(question, ManyRows(owned, most))
