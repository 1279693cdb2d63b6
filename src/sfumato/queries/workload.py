# SPDX-License-Identifier: Apache-2.0
"""A workload: several statistics of the same groups, which are one question with one event.

Guarantee  The event is the composition of the events of all statistics, and of the search for keys if keys
           are discovered. Each statistic costs its own event, whatever the keys are and whatever the others
           released, so the composition is the cost of the workload also if its keys were discovered.
           `planned` divides the budget such that the composition costs at most (epsilon, delta).
Neighbors  Add-or-remove and replace-one.
Edge cases With delta 0 all noise is pure, and epsilons add up. With a delta, noise on numbers is Gaussian: in
           closed form if nothing else is in the workload, otherwise by a search that prices the whole event.
           A statistic with an `error` costs what that error needs; the others divide the rest.
Not here   The charge: `statistics.query.Query` makes it, as for any question.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sfumato import _check
from sfumato.accounting.calibrate import calibrate, search
from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import CalibrationError, InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.queries.counts import Cell, Statistic
from sfumato.queries.quantiles import Quantile
from sfumato.queries.spending import Reach, Spend
from sfumato.queries.totals import Bins, GroupedRows, Total
from sfumato.statistics.contributions.owned_rows import OwnedRows, Within
from sfumato.statistics.groups.grouped_rows import groups_of
from sfumato.statistics.groups.key_discovery import KeyDiscovery, Keyed
from sfumato.statistics.query import Answer

__all__ = ["Cells", "Source", "Workload", "planned"]

_BELOW = 1 - 2.0**-40  # so that rounded shares never add up to more than the budget
_SMALLEST, _LARGEST = 1e-12, 1e6  # of a rho

Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """The released numbers: one row for each key, one column for each statistic."""

    columns: tuple[str, ...]
    keys: tuple[Key, ...]
    cells: Mapping[str, list[Cell]]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Source:
    """The rows that a workload is asked of, and the columns that group them."""

    owned: OwnedRows
    columns: tuple[str, ...]
    keys: tuple[Key, ...] | None  # None: they are discovered
    within: Within | None

    def __repr__(self) -> str:
        return f"<Source of {', '.join(self.owned.expression.columns)}; unit: {self.privacy_unit}>"

    @property
    def privacy_unit(self) -> str:
        """The privacy unit: who is protected."""
        return self.owned.privacy_unit

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that count."""
        return self.owned.contribution_bound

    def grouped(self, keys: tuple[Key, ...] | None = None) -> GroupedRows:
        """Return the rows in groups, for the keys that were named or found."""
        if not self.columns:
            return GroupedRows(self.owned, None, None)
        known = self.keys if keys is None else keys
        plain = [key[0] if len(self.columns) == 1 else key for key in known or ()]
        return GroupedRows(self.owned, groups_of(self.owned, self.columns, plain), self.within)

    def keyed(self) -> Keyed:
        """Return the rows whose keys are discovered: a unit counts for as many keys as it has groups."""
        groups = self.owned.contribution_bound if self.within is None else self.within.groups
        return Keyed(replace(self.owned, contribution_bound=groups), self.columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Several statistics of the same groups, as one question. `planned` makes one."""

    statistics: Mapping[str, Statistic]
    spends: Mapping[str, Spend]
    columns: tuple[str, ...]
    reach: Reach
    delta: float
    contribution_bound: int
    level: float
    discovery: KeyDiscovery | None = field(default=None)

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        return self.reach.relation

    @property
    def name(self) -> str:
        """What is asked, as releases and ledgers show it."""
        asked = ", ".join(statistic.name for statistic in self.statistics.values())
        return f"{asked} by {', '.join(self.columns)}" if self.columns else asked

    def event(self) -> DpEvent:
        """Return the event that the whole workload is charged with."""
        return _event(self.statistics, self.spends, self.reach, self.discovery)

    def totals(self) -> list[Total]:
        """Return the exact totals that the statistics need."""
        return [total for statistic in self.statistics.values() for total in statistic.totals()]

    def bins(self) -> list[Bins]:
        """Return the histograms that the statistics need."""
        return [bins for statistic in self.statistics.values() for bins in statistic.bins()]

    def answer(self, data: Source, *, generator: Generator | None) -> Answer[Cells]:
        """Compute all numbers, with noise."""
        keys, notes = data.keys, tuple[str, ...]()
        if self.discovery is not None:
            found_keys = self.discovery.answer(data.keyed(), generator=generator)
            single = len(self.columns) == 1
            keys = tuple((key,) if single else key for key in found_keys.value)
            notes = found_keys.notes
        elif not self.columns:
            keys = ((),)
        if not keys:  # no key was found, which is noisy
            return Answer(value=Cells(columns=self.columns, keys=(), cells={n: [] for n in self.statistics}))
        found = data.grouped(keys).compute(self.totals(), self.bins())
        cells = {
            name: statistic.answer(
                found, self.spends[name], self.reach, level=self.level, generator=generator
            )
            for name, statistic in self.statistics.items()
        }
        return Answer(value=Cells(columns=self.columns, keys=keys, cells=cells), notes=notes)

    def fits(self, epsilon: float) -> bool:
        """Return whether it can be asked for a pure epsilon: target errors may need more, keys a delta."""
        if self.discovery is not None:
            return False
        try:
            planned(
                self.statistics,
                columns=self.columns,
                reach=self.reach,
                epsilon=epsilon,
                delta=0.0,
                contribution_bound=self.contribution_bound,
                level=self.level,
                key_share=None,
            )
        except InvalidParameterError:
            return False
        return True

    def plan(self, data: Source) -> str:
        """Return the SQL that the engine would run."""
        if self.discovery is None:
            return data.grouped().plan(self.totals(), self.bins())
        return f"{self.discovery.plan(data.keyed())}\nthen, for the keys that were found, the statistics"


def _event(
    statistics: Mapping[str, Statistic],
    spends: Mapping[str, Spend],
    reach: Reach,
    discovery: KeyDiscovery | None,
) -> DpEvent:
    parts = [statistic.event(spends[name], reach) for name, statistic in statistics.items()]
    return compose(*([] if discovery is None else [discovery.event()]), *parts)


def planned(
    statistics: Mapping[str, Statistic],
    *,
    columns: tuple[str, ...],
    reach: Reach,
    epsilon: float | None,
    delta: float,
    contribution_bound: int,
    level: float,
    key_share: float | None,
) -> Workload:
    """Return a workload whose statistics divide a budget.

    Args:
        statistics: The statistics, by name.
        columns: The columns of the keys.
        reach: How far one unit reaches.
        epsilon: The budget of the whole workload. None: every statistic has an `error`.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        contribution_bound: The most rows of one unit that count.
        level: The confidence level of intervals and errors.
        key_share: The share of the budget that discovers keys; None if keys are public.

    Returns:
        The workload.

    Raises:
        InvalidParameterError: If a parameter is out of range, or the errors need more than the budget.
    """
    _check.probability(level=level)
    if delta != 0:
        _check.delta(delta=delta)
    if epsilon is not None:
        _check.positive(epsilon=epsilon)
    elif key_share is not None or any(each.error is None for each in statistics.values()):
        raise InvalidParameterError(
            "pass epsilon=..., or an error=... for every statistic, of groups with public keys."
        )
    budget = _Budget(statistics=statistics, reach=reach, delta=delta, level=level)
    fixed = budget.fixed()
    shared = {name: each.share for name, each in statistics.items() if each.error is None}
    discovery = None
    if key_share is not None and epsilon is not None:
        _check.positive(key_share=key_share)
        part = key_share / (key_share + sum(shared.values()) + len(fixed))
        discovery = KeyDiscovery(
            columns=columns,
            epsilon=epsilon * part,
            delta=_discovery_delta(delta),
            relation=reach.relation,
            contribution_bound=reach.most_groups,
        )
    spends = fixed
    if epsilon is not None:
        spends = fixed | budget.divided(epsilon, shared, fixed, discovery)
    return Workload(
        statistics=dict(statistics),
        spends={name: spends[name] for name in statistics},
        columns=columns,
        reach=reach,
        delta=delta,
        contribution_bound=contribution_bound,
        level=level,
        discovery=discovery,
    )


def _discovery_delta(delta: float) -> float:
    if not delta > 0:
        raise InvalidParameterError(
            "keys are discovered by a threshold, which needs a delta above 0: pass delta=..., such as "
            "delta=1e-6, or keys=[...]."
        )
    return delta / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Budget:
    """A budget that statistics divide."""

    statistics: Mapping[str, Statistic]
    reach: Reach
    delta: float
    level: float

    @property
    def gaussian(self) -> bool:
        """Whether noise on numbers is Gaussian."""
        return self.delta > 0

    def fixed(self) -> dict[str, Spend]:
        """Return what statistics with a target error cost."""
        return {
            name: self._for_error(each, each.error)
            for name, each in self.statistics.items()
            if each.error is not None
        }

    def _for_error(self, statistic: Statistic, error: float) -> Spend:
        def off(amount: float) -> float:
            spend = Spend(amount=amount, gaussian=self.gaussian)
            return statistic.expected_error(spend, self.reach, level=self.level, size=1)[0]

        try:
            amount = search(off, epsilon=error, bracket=(_SMALLEST, _LARGEST))
        except CalibrationError:
            amount = None
        if amount is None:
            raise InvalidParameterError(f"an error of {error:g} is too small for the {statistic.name}.")
        return Spend(amount=amount, gaussian=self.gaussian)

    def divided(
        self,
        epsilon: float,
        shares: Mapping[str, float],
        fixed: Mapping[str, Spend],
        discovery: KeyDiscovery | None,
    ) -> dict[str, Spend]:
        """Return what the other statistics may spend: their shares of what is left of the budget."""
        total = math.fsum(shares.values())

        def spends(amount: float) -> dict[str, Spend]:
            return {
                name: Spend(amount=amount * share / total, gaussian=self.gaussian)
                for name, share in shares.items()
            }

        if not self.gaussian:
            left = epsilon - math.fsum(spend.amount for spend in fixed.values())
            self._require(left > 0 or (left == 0 and not shares), epsilon)
            return spends(left if len(self.statistics) == 1 else left * _BELOW) if shares else {}
        if not shares:
            cost = price(
                _event(self.statistics, fixed, self.reach, discovery),
                delta=self.delta,
                relation=self.reach.relation,
            ).epsilon
            self._require(cost <= epsilon, epsilon)
            return {}
        if discovery is None and not any(isinstance(each, Quantile) for each in self.statistics.values()):
            left = 0.5 / stddev_for(epsilon, self.delta, 1.0) ** 2 * _BELOW
            left -= math.fsum(spend.amount for spend in fixed.values())
            self._require(left > 0, epsilon)
            return spends(left)
        return spends(self._searched(epsilon, spends, fixed, discovery))

    def _searched(
        self, epsilon: float, spends: Any, fixed: Mapping[str, Spend], discovery: KeyDiscovery | None
    ) -> float:
        """Return the largest rho for which the whole event costs at most the budget."""

        def event(amount: float) -> DpEvent:
            return _event(self.statistics, {**fixed, **spends(amount)}, self.reach, discovery)

        rho = 0.5 / stddev_for(epsilon, self.delta, 1.0) ** 2
        try:
            found = calibrate(
                event,
                epsilon=epsilon,
                delta=self.delta,
                relation=self.reach.relation,
                bracket=(rho * 1e-4, rho * 4),
                cost_rises=True,
            )
        except CalibrationError:
            found = None
        self._require(found is not None, epsilon)
        return found or rho

    def _require(self, fits: bool, epsilon: float) -> None:
        if not fits:
            raise InvalidParameterError(
                f"the target errors, and the search for keys, need more than epsilon={epsilon:g}. Allow "
                "larger errors, or pass a larger epsilon. Nothing was charged, and no data was read."
            )
