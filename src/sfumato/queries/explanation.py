# SPDX-License-Identifier: Apache-2.0
"""What a query would do, cost and be worth, before it is paid: from public numbers alone."""

from dataclasses import dataclass
from typing import Any

from sfumato import _notebook
from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.ledger.account import Account
from sfumato.queries.workload import Source, Workload
from sfumato.statistics.query import who_counts

__all__ = ["Expected", "Explanation", "explained"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What one statistic of a query costs, and how far off it may be.

    Attributes:
        name: Its name in the release.
        asks: What is asked, such as "sum of amount".
        cost: The part of the budget that it gets, from 0 to 1.
        error: The half width of the interval to expect.
        unit: What the error is measured in.
    """

    name: str
    asks: str
    cost: float
    error: float
    unit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What a query would do. Printing it shows all but the SQL, which is in `plan`.

    Attributes:
        guarantee: The guarantee that the release would have.
        statistics: What to expect of each statistic.
        groups: How many groups there are; None if keys are discovered.
        reach: How many rows of one unit count.
        fits: Whether the account would admit it; None without an account.
        level: The confidence level of the errors.
        plan: The queries of the engine.
        search: The share of the budget that discovers keys.
    """

    guarantee: Guarantee
    statistics: tuple[Expected, ...]
    groups: int | None
    reach: str
    fits: bool | None
    level: float
    plan: str
    search: float = 0.0

    def facts(self) -> dict[str, Any]:
        """Return the explanation as named plain values.

        Returns:
            The values, by name.
        """
        return {
            "guarantee": self.guarantee.to_dict(),
            "groups": self.groups,
            "rows that count": self.reach,
            "fits the budget": self.fits,
            "level": self.level,
            "statistics": [
                {"name": e.name, "asks": e.asks, "share": e.cost, "error": e.error, "unit": e.unit}
                for e in self.statistics
            ],
            "plan": self.plan,
            "search for keys": self.search,
        }

    def __str__(self) -> str:
        promised = self.guarantee
        groups = "keys that are discovered" if self.groups is None else f"{self.groups} group(s)"
        lines = [
            f"cost: epsilon {round_up(promised.epsilon):g}, delta {promised.delta:g}, one charge for "
            f"{len(self.statistics)} statistic(s) of {groups}",
            f"rows that count: {self.reach}",
        ]
        if self.fits is not None:
            lines.append(f"fits the budget: {'yes' if self.fits else 'no'}")
        lines.append(f"errors to expect, at level {self.level:g}:")
        lines += [
            f"  {e.name}: {e.asks}, {100 * e.cost:.0f}% of the budget, +- {e.error:.4g} {e.unit}"
            for e in self.statistics
        ]
        if self.search:
            lines.append(f"  search for keys: {100 * self.search:.0f}% of the budget")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return _notebook.panel("What the query would do", _notebook.text(str(self)))


def explained(
    workload: Workload, source: Source, guarantee: Guarantee, account: Account | None, *, group_size: int
) -> Explanation:
    """Return the explanation of a query. Nothing is computed or charged."""
    spends = workload.spends
    total = sum(spend.amount for spend in spends.values())
    search = 0.0 if workload.discovery is None else min(1.0, workload.discovery.epsilon / guarantee.epsilon)
    expected: list[Expected] = []
    for name, statistic in workload.statistics.items():
        error, unit = statistic.expected_error(
            spends[name], workload.reach, level=workload.level, size=group_size
        )
        part = spends[name].amount / total * (1 - search)
        expected.append(Expected(name=name, asks=statistic.name, cost=part, error=error, unit=unit))
    return Explanation(
        guarantee=guarantee,
        statistics=tuple(expected),
        groups=None if workload.discovery is not None else source.grouped().size,
        reach=_reach(source),
        fits=None if account is None else account.admits(workload),
        level=workload.level,
        plan=workload.plan(source),
        search=search,
    )


def _reach(source: Source) -> str:
    said = who_counts(source)
    if said is None:
        return "each row is a unit"
    if source.within is not None and source.within.groups == len(source.keys or ()):
        return f"{said}, as many as keys are named"
    return said
