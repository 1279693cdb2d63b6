# SPDX-License-Identifier: Apache-2.0
"""The statement for an auditor or a data protection officer: what is guaranteed, and what it was spent on.

Each release is a sentence with its own epsilon, numbered from 1 in the order of its account. Details for
programs, such as the event, are in the JSON.

A ledger does not know whom an account is about. So a statement names all other accounts of its ledger, and
gives the sum of their guarantees for people who are in several.

Noise from a seed, or from a generator that is not cryptographic, does not protect anyone. A statement with
such a release begins with that fact.

Guarantee  The first figure is the account's budget: it holds however the releases were chosen, by the
           privacy filter (`filters`). The figure of the fixed plan is tighter and is labelled with its
           condition. Printed epsilons are rounded up. The head of the ledger is printed, so that a statement
           is a witness of its ledger.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sfumato import _json, _notebook
from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.errors import UnsupportedEventError
from sfumato.ledger._sentences import STUDY_ONLY, day, described, filled, in_words, many
from sfumato.ledger._words import code_version
from sfumato.ledger.journal import Head
from sfumato.ledger.state import AccountState, Grant, ReleaseRecord

__all__ = ["FixedPlan", "Statement", "write"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedPlan:
    """What the releases cost if they were planned before any result was seen."""

    epsilon: float
    lower: float
    upper: float
    accountant: str
    theorem: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """The guarantee and the spending of an account at one moment. `str()` is the text.

    Attributes:
        account: The name of the account.
        location: Where the ledger is, without a password.
        head: The head of the ledger.
        guarantee: The guarantee of all releases, past and future: that of the budget.
        order: The order of the filter; None for pure differential privacy.
        theorem: The theorem that the guarantee rests on.
        spent_epsilon: The smallest epsilon, at the account's delta, that all releases so far fit in.
        fraction: The part of the budget that is used, from 0 to 1.
        fixed_plan: The cost of the same releases as a plan fixed beforehand; None if it has none.
        grants: All grants, oldest first.
        releases: All releases, in order.
        costs: What each release costs on its own.
        others: The other accounts of the ledger, with the guarantees of their budgets.
        written_at: When, in UTC.
        code_version: The version of sfumato that wrote it.
        recorded: Whether the ledger is kept; false for a temporary one.
    """

    account: str
    location: str
    head: Head
    guarantee: Guarantee
    order: float | None
    theorem: str
    spent_epsilon: float
    fraction: float
    fixed_plan: FixedPlan | None
    grants: tuple[Grant, ...]
    releases: tuple[ReleaseRecord, ...]
    costs: tuple[Guarantee, ...]
    others: tuple[tuple[str, Guarantee], ...]
    written_at: str
    code_version: str
    recorded: bool = True

    @property
    def seeded(self) -> bool:
        """Whether any release that counts had noise that does not protect."""
        return any(release.seeded and release.spent for release in self.releases)

    @property
    def text(self) -> str:
        """The paragraphs for an auditor, in lines of at most 80 characters."""
        parts = [
            filled(self._title()),
            filled(self._not_recorded()),
            filled(self._warning()),
            filled(self._claim()),
            filled(self._theorem()),
            filled(self._spent()),
            filled(self._plan()),
            filled(self._grants()),
            self._list(),
            filled(self._others()),
            self._end(),
        ]
        return "\n\n".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return _notebook.panel(f"Statement of account {self.account}", _notebook.text(self.text))

    def to_json(self) -> str:
        """Return the statement for programs. Epsilons are not rounded, but err upwards.

        Returns:
            The JSON text.
        """
        return _json.dumps(self._plain())

    # --- the text ------------------------------------------------------------------------------------------

    def _title(self) -> str:
        return (
            f"Privacy statement of account {self.account!r}, written on {day(self.written_at)} by sfumato "
            f"{self.code_version}."
        )

    def _not_recorded(self) -> str:
        if self.recorded:
            return ""
        return (
            "Not recorded: the ledger of this account is temporary and ends with its process, so no one can "
            "check this statement later."
        )

    def _warning(self) -> str:
        if not self.seeded:
            return ""
        return f"{STUDY_ONLY.capitalize()} in at least one release below, so nothing here protects anybody."

    def _claim(self) -> str:
        return (
            f"All releases from this account, past and future, together satisfy {self.guarantee}, also if "
            f"a release was chosen after seeing earlier ones. {in_words(self.guarantee)}"
        )

    def _theorem(self) -> str:
        by = f", order {self.order:g}" if self.order is not None else ""
        return f"Theorem: {self.theorem}{by}."

    def _spent(self) -> str:
        counted = sum(release.spent for release in self.releases)
        refunded = len(self.releases) - counted
        return (
            f"{many(counted, 'release was', 'releases were')} charged; {refunded or 'none'} "
            f"{'were' if refunded > 1 else 'was'} refunded. Together they use "
            f"{round_up(100 * self.fraction, 3):g}% of what the account allows, and cost epsilon "
            f"{round_up(self.spent_epsilon):g} at delta {self.guarantee.delta:g}, by the same theorem. That "
            "figure holds at whatever moment it is read, so it may be above the sum of the costs below."
        )

    def _grants(self) -> str:
        if not self.grants:
            return ""
        raises = "; ".join(
            f"epsilon +{g.epsilon:g}, delta +{g.delta:g} by {g.person} on {day(g.written_at)}: {g.reason}"
            for g in self.grants
        )
        return (
            f"The budget was raised {many(len(self.grants), 'time', 'times')} ({raises}). The guarantee "
            "above is that of the raised budget. It holds provided that no budget beyond it would have been "
            "granted whatever the releases showed."
        )

    def _plan(self) -> str:
        if self.guarantee.delta == 0 or not any(release.spent for release in self.releases):
            return ""
        if self.fixed_plan is None:
            return "Tighter figure for a fixed plan: not available for these releases."
        plan = self.fixed_plan
        return (
            "If, and only if, these releases were planned before any result was seen, they are together "
            f"({round_up(plan.epsilon):g}, {round_up(self.guarantee.delta):g})-differentially private under "
            f"the same relation and unit. Accountant: {plan.accountant}. Theorem: {plan.theorem}."
        )

    def _list(self) -> str:
        if not self.releases:
            return "Nothing was released."
        sentences = [
            filled(described(release, cost), number=number)
            for number, (release, cost) in enumerate(zip(self.releases, self.costs, strict=True), start=1)
        ]
        return "\n".join(["The releases, and what each costs on its own. Times are in UTC.", *sentences])

    def _others(self) -> str:
        outside = "Releases that are in no ledger, or in another one, are not covered by this statement."
        if not self.others:
            return f"This ledger has no other account. {outside}"
        named = "; ".join(f"{name!r} promises {promised}" for name, promised in self.others)
        return (
            f"This ledger has {many(len(self.others), 'other account', 'other accounts')}: {named}. The "
            "ledger does not know which people an account is about. For people who are in the data of "
            f"several accounts, the promises add up. {self._sum()}{outside}"
        )

    def _sum(self) -> str:
        """Return what the promises to the same unit under the same relation add up to."""
        own = self.guarantee
        alike = [
            (name, promised)
            for name, promised in self.others
            if (promised.relation, promised.privacy_unit) == (own.relation, own.privacy_unit)
        ]
        unlike = [name for name, _ in self.others if name not in dict(alike)]
        apart = (
            f"{', '.join(map(repr, unlike))} {'count' if len(unlike) > 1 else 'counts'} another unit or "
            "other neighbors, and cannot simply be added. "
            if unlike
            else ""
        )
        if not alike:
            return apart
        epsilon = math.fsum([own.epsilon, *(promised.epsilon for _, promised in alike)])
        delta = min(1.0, math.fsum([own.delta, *(promised.delta for _, promised in alike)]))
        names = ", ".join(repr(name) for name, _ in alike)
        return (
            f"This account and {names} together promise epsilon {round_up(epsilon):g}, delta "
            f"{round_up(delta):g}. {apart}"
        )

    def _end(self) -> str:
        closing = filled(
            "Keep the last line: `sfumato ledger verify --head` with it shows whether anything that was "
            "written until now was changed or cut off."
        )
        return (
            f"{closing}\n\nLedger {self.location}, {many(self.head.count, 'row', 'rows')}, head\n{self.head}"
        )

    # --- the JSON ------------------------------------------------------------------------------------------

    def _plain(self) -> dict[str, Any]:
        plan = self.fixed_plan
        return {
            "account": self.account,
            "recorded": self.recorded,
            "ledger": self.location,
            "head": {"count": self.head.count, "hash": self.head.hash},
            "guarantee": self.guarantee.to_dict() | {"theorem": self.theorem, "order": self.order},
            "spent": {
                "epsilon": self.spent_epsilon,
                "delta": self.guarantee.delta,
                "fraction": self.fraction,
            },
            "fixed_plan": None
            if plan is None
            else {name: getattr(plan, name) for name in FixedPlan.__slots__},
            "seeded": self.seeded,
            "grants": [{name: getattr(g, name) for name in Grant.__slots__} for g in self.grants],
            "releases": [
                {"number": number} | _release_plain(release, cost)
                for number, (release, cost) in enumerate(zip(self.releases, self.costs, strict=True), start=1)
            ],
            "other_accounts": [
                {"account": name, "guarantee": promised.to_dict()} for name, promised in self.others
            ],
            "written_at": self.written_at,
            "code_version": self.code_version,
        }


def write(
    state: AccountState,
    *,
    head: Head,
    location: str,
    others: Sequence[AccountState] = (),
    recorded: bool = True,
) -> Statement:
    """Compose the statement of an account."""
    spent = state.spent()
    return Statement(
        account=state.name,
        location=location,
        head=head,
        guarantee=_promised(state),
        order=state.order,
        theorem=state.filter.shares.theorem,
        spent_epsilon=state.filter.odometer(spent),
        fraction=state.filter.fraction(spent),
        fixed_plan=_fixed_plan(state),
        grants=tuple(state.grants),
        releases=tuple(state.releases.values()),
        costs=tuple(state.own_cost(release) for release in state.releases.values()),
        others=tuple((other.name, _promised(other)) for other in others),
        written_at=datetime.now(UTC).isoformat(timespec="seconds"),
        code_version=code_version(),
        recorded=recorded,
    )


def _promised(state: AccountState) -> Guarantee:
    return Guarantee(
        epsilon=state.budget.epsilon,
        delta=state.budget.delta,
        relation=state.relation,
        privacy_unit=state.privacy_unit,
    )


def _fixed_plan(state: AccountState) -> FixedPlan | None:
    # A plan of nothing has no figure; at delta 0 the filter's basic composition is that of any plan.
    if state.budget.delta == 0 or not any(release.spent for release in state.releases.values()):
        return None
    # Imported late: most who open a ledger never ask for a statement.
    from sfumato.accounting.price import price

    try:
        found = price(state.event(), delta=state.budget.delta, relation=state.relation)
    except UnsupportedEventError:
        return None
    if not math.isfinite(found.upper):
        return None
    return FixedPlan(
        epsilon=found.epsilon,
        lower=found.lower,
        upper=found.upper,
        accountant=found.accountant.value,
        theorem=found.theorem,
    )


def _release_plain(release: ReleaseRecord, cost: Guarantee) -> dict[str, Any]:
    return {
        "reservation": release.reservation,
        "purpose": release.purpose,
        "epsilon": cost.epsilon,
        "delta": cost.delta,
        "event": json.loads(release.event_json),
        "person": release.person,
        "code_version": release.code_version,
        "reserved_at": release.reserved_at,
        "changed_at": release.changed_at,
        "progress": release.progress.value,
        "spent": release.spent,
        "seeded": release.seeded,
    }
