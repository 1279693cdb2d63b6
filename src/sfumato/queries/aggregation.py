# SPDX-License-Identifier: Apache-2.0
"""A workload and the rows that it is asked of: explained, charged and released.

Guarantee  Nothing is charged or read before `Aggregation.release`, which makes one charge for all statistics.
           A budget that does not cover it refuses all of it, before data is read.
"""

from dataclasses import dataclass

from sfumato import _check, _notebook
from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.errors import BudgetExceededError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.queries.explanation import Explanation, explained
from sfumato.queries.tables import TableRelease
from sfumato.queries.workload import Cells, Source, Workload
from sfumato.statistics.query import Query

__all__ = ["Aggregation"]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Aggregation:
    """A query for several statistics. Nothing is computed or charged before `release`.

    Args:
        query: The query that is released.
        workload: What it asks.
        source: The rows that it would be asked of.
        account: The account that `release` charges, or None.
    """

    query: Query[Cells]
    workload: Workload
    source: Source
    account: Account | None = None

    def __repr__(self) -> str:
        promised = self.guarantee
        return (
            f"<Aggregation: {self.workload.name}. Would cost epsilon {round_up(promised.epsilon):g}, "
            f"delta {promised.delta:g}. Nothing is computed before .release()>"
        )

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee that the release will have."""
        return self.query.guarantee

    def explain(self, *, group_size: int = 1000) -> Explanation:
        """Return the plan, its cost and the errors to expect, from public numbers alone. Nothing is spent.

        Args:
            group_size: An assumed number of rows of a group, for errors that depend on it.

        Returns:
            The explanation, which prints as text.

        Raises:
            InvalidParameterError: If the size is not a whole number above 0.
        """
        _check.count(group_size=group_size)
        return explained(self.workload, self.source, self.guarantee, self.account, group_size=group_size)

    def release(
        self,
        *,
        account: Account | None = None,
        purpose: str | None = None,
        generator: Generator | None = None,
    ) -> TableRelease:
        """Make one charge, compute all statistics, and return them as a table.

        Args:
            account: The account to charge. None means that of the data, if it has one.
            purpose: What the release is for. The account records it.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The table.

        Raises:
            BudgetExceededError: If the budget does not cover all of it. Nothing is spent, and no data is
                read; the message says which epsilon would fit.
            QueryFailedError: If the engine fails. The cost stays charged.
        """
        payer = self.account if account is None else account
        try:
            found = self.query.release(account=payer, purpose=purpose, generator=generator)
        except BudgetExceededError as error:
            fits = None if payer is None else _that_fits(self.workload, payer)
            raise BudgetExceededError(f"{error} {fits}" if fits else str(error)) from None
        return TableRelease(release=found, workload=self.workload)

    def _repr_html_(self) -> str:
        return _notebook.panel(
            f"{self.workload.name}. Nothing is computed or charged before release()",
            _notebook.text(str(self.explain())),
        )


def _that_fits(workload: Workload, account: Account) -> str | None:
    """Return the sentence about the largest part of a workload that an account would admit, if any."""
    left = account.remaining(delta=workload.delta)
    each: list[str] = []
    for name, statistic in workload.statistics.items():
        event = statistic.event(workload.spends[name], workload.reach)
        if account.admits(event):
            each.append(name)
    most = -round_up(-left.epsilon)
    if most > 0 and workload.fits(most):
        said = f"The whole query fits with epsilon={most:g} and delta=0, with more noise."
        return said if not each else f"{said} At the noise that was asked for, {each[0]!r} alone would fit."
    return f"At the noise that was asked for, {each[0]!r} alone would fit." if each else None
