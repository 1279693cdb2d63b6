# SPDX-License-Identifier: Apache-2.0
"""The state that the rows of a journal add up to: accounts, budgets, releases.

A release that takes long has a holder: the process that knows its claim, a text that a begin row or a claim
row wrote. A claim row names the claim it follows, so the claims of one release form one line, and each
handover from one process to another happened once.

The amount spent is a running sum (`tally`), and an event is priced when it is first needed. So one more
release takes the same time after ten as after ten thousand.

Guarantee  The state is a function of the rows alone. A release counts as spent from its reserve row on, and
           only a refund row takes it back; a refund after a begin row cannot happen, and a journal in which
           it does is refused as corrupt.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from sfumato.accounting import composition, events
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import (
    InvalidParameterError,
    LedgerCorruptError,
    LedgerVersionError,
    UnsupportedEventError,
)
from sfumato.ledger import filters
from sfumato.ledger.budget import Budget
from sfumato.ledger.filters import Cost, Filter
from sfumato.ledger.journal import Row
from sfumato.ledger.shares import SHARES
from sfumato.ledger.tally import Tally

__all__ = ["AccountState", "Grant", "Progress", "ReleaseRecord", "apply"]


class Progress(Enum):
    """The progress of a release.

    Attributes:
        RESERVED: Spent; no data was read yet.
        BEGUN: Spent; data may have been read, so it stays spent.
        COMMITTED: Spent; the result was released.
        REFUNDED: Not spent; nothing was computed.
    """

    RESERVED = "reserved"
    BEGUN = "begun"
    COMMITTED = "committed"
    REFUNDED = "refunded"


# Which row may follow which: the only way from RESERVED back is before BEGUN.
_STEPS = {
    "begin": (Progress.RESERVED, Progress.BEGUN),
    "commit": (Progress.BEGUN, Progress.COMMITTED),
    "refund": (Progress.RESERVED, Progress.REFUNDED),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseRecord:
    """One release in the ledger.

    Attributes:
        reservation: Its number, unique in the ledger.
        purpose: What it was for.
        event_json: The event, as JSON.
        relation: Which data sets are neighbors.
        person: Who signed it.
        code_version: The version of sfumato that wrote it.
        reserved_at: When it was reserved, in UTC.
        changed_at: When it changed last, in UTC.
        progress: How far it has come.
        seeded: Whether its noise is for study only.
        claim: The present claim of its holder; empty if there is none.
    """

    reservation: int
    purpose: str
    event_json: str
    relation: Relation
    person: str
    code_version: str
    reserved_at: str
    changed_at: str
    progress: Progress
    seeded: bool
    claim: str = ""

    @property
    def event(self) -> events.DpEvent:
        """The event, which accountants price."""
        return events.from_json(self.event_json)

    @property
    def spent(self) -> bool:
        """Whether it counts as spent."""
        return self.progress is not Progress.REFUNDED

    def moved(self, progress: Progress, changed_at: str, claim: str) -> "ReleaseRecord":
        """Return the same release with another progress (written out: `replace` is slow for many rows).

        Args:
            progress: The new progress.
            changed_at: When it changed, in UTC.
            claim: The claim from then on.

        Returns:
            The new record.
        """
        return ReleaseRecord(
            reservation=self.reservation,
            purpose=self.purpose,
            event_json=self.event_json,
            relation=self.relation,
            person=self.person,
            code_version=self.code_version,
            reserved_at=self.reserved_at,
            changed_at=changed_at,
            progress=progress,
            seeded=self.seeded,
            claim=claim,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """One raise of a budget.

    Attributes:
        epsilon: How much epsilon was added.
        delta: How much delta was added.
        reason: Why.
        person: Who signed it.
        written_at: When, in UTC.
    """

    epsilon: float
    delta: float
    reason: str
    person: str
    written_at: str


@dataclass(kw_only=True, slots=True)
class AccountState:
    """One account, as of some row."""

    name: str
    privacy_unit: str
    relation: Relation
    opening_budget: Budget
    budget: Budget
    order: float | None
    rule: int
    opened_by: str
    opened_at: str
    earlier: tuple[Budget, ...] = ()  # the budgets before each grant
    grants: list[Grant] = field(default_factory=list[Grant])
    releases: dict[int, ReleaseRecord] = field(default_factory=dict[int, ReleaseRecord])
    _tally: Tally = field(default_factory=Tally)  # of every release that counts and is not in _unpriced
    _unpriced: dict[int, ReleaseRecord] = field(default_factory=dict[int, ReleaseRecord])
    _refundable: dict[int, Cost] = field(default_factory=dict[int, Cost])  # what a refund would take away

    @property
    def filter(self) -> Filter:
        """The rule that admits."""
        return Filter(budget=self.budget, order=self.order, rule=self.rule, earlier=self.earlier)

    def cost(self, event_json: str) -> Cost:
        """Price one event for this account."""
        return filters.cost(event_json, self.relation, self.filter)

    def alone(self, event_json: str) -> float:
        """Return the epsilon of an event that is the only one of this account."""
        return filters.alone(event_json, self.relation, self.budget.delta)

    @property
    def unused(self) -> bool:
        """Whether no release counts: no result was seen, and the next event is a plan fixed beforehand."""
        return not any(release.spent for release in self.releases.values())

    def admits(self, event_json: str) -> bool:
        """Whether one more event would keep the guarantee."""
        if self.filter.admits(filters.total([self.spent(), self.cost(event_json)])):
            return True
        return self.unused and self._within(self.alone(event_json))

    @property
    def kept(self) -> bool:
        """Whether what was admitted so far is within the budget."""
        if self.filter.admits(self.spent()):
            return True
        counted = [release for release in self.releases.values() if release.spent]
        return len(counted) == 1 and self._within(self.alone(counted[0].event_json))

    def _within(self, epsilon: float) -> bool:
        return epsilon <= self.budget.epsilon

    def spent(self) -> Cost:
        """Add up everything reserved and not refunded.

        An interrupt from the keyboard comes between any two calls, and this object lives on after it. So a
        sum is finished before it takes the place of the last one, and until then its release is unpriced.
        """
        for number, release in list(self._unpriced.items()):
            cost = self._cost_of(release)
            tally, refundable = self._tally.copy(), release.progress is Progress.RESERVED
            tally.add(cost)
            self._tally = tally  # from here on no call: nothing comes between these lines
            del self._unpriced[number]
            if refundable:
                self._refundable[number] = cost
        return self._tally.total()

    def copy(self) -> "AccountState":
        """Return a copy, which later rows do not change."""
        return replace(
            self,
            grants=list(self.grants),
            releases=dict(self.releases),
            _tally=self._tally.copy(),
            _unpriced=dict(self._unpriced),
            _refundable=dict(self._refundable),
        )

    def granted(self, grant: Grant) -> None:
        """Raise the budget. What was admitted is priced anew, because a share of more is a smaller share."""
        self.earlier = (*self.earlier, self.budget)
        self.budget = self.budget.raised(epsilon=grant.epsilon, delta=grant.delta)
        self.grants.append(grant)
        self._tally, self._refundable = Tally(), {}
        self._unpriced = {number: release for number, release in self.releases.items() if release.spent}

    def reserved(self, release: ReleaseRecord) -> None:
        """Count one more release."""
        self.releases[release.reservation] = self._unpriced[release.reservation] = release

    def moved(self, release: ReleaseRecord) -> None:
        """Apply the new progress of a release."""
        number = release.reservation
        self.releases[number] = release
        cost = self._refundable.pop(number, None)
        if release.spent:
            if number in self._unpriced:
                self._unpriced[number] = release
        elif cost is not None:
            self._tally.remove(cost)
        else:
            del self._unpriced[number]

    def event(self) -> events.DpEvent:
        """Return everything reserved and not refunded as one event."""
        return events.compose(*(release.event for release in self.releases.values() if release.spent))

    def own_cost(self, release: ReleaseRecord) -> Guarantee:
        """Return what one release costs on its own; an epsilon that cannot be stated is infinite."""
        epsilon, delta = self._own_epsilon(release) if release.spent else (0.0, 0.0)
        return Guarantee(epsilon=epsilon, delta=delta, relation=self.relation, privacy_unit=self.privacy_unit)

    def _own_epsilon(self, release: ReleaseRecord) -> tuple[float, float]:
        try:
            epsilon, delta = composition.basic(release.event, self.relation)
        except UnsupportedEventError:  # such as Gaussian noise, which has no epsilon at delta 0
            epsilon, delta = math.inf, 0.0
        one = sum(events.leaves(release.event).values()) == 1
        if self.budget.delta == 0 or (one and delta == 0 and epsilon < math.inf):
            return epsilon, delta
        alone = self.alone(release.event_json)
        return (alone, self.budget.delta) if alone < math.inf else (epsilon, delta)

    def _cost_of(self, release: ReleaseRecord) -> Cost:
        try:
            return self.cost(release.event_json)
        except (InvalidParameterError, UnsupportedEventError) as error:
            raise LedgerVersionError(
                f"release {release.reservation} of account {self.name!r} was written by sfumato "
                f"{release.code_version} with an event that this version cannot price. Nothing more is spent "
                "before it can: upgrade sfumato."
            ) from error


def apply(row: Row, accounts: dict[str, AccountState]) -> None:
    """Apply one more row, whose hash was checked, to the accounts."""
    try:
        _KINDS[row.kind](row, accounts)
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _senseless(row, f"it cannot be read ({type(error).__name__})") from error


def _open(row: Row, accounts: dict[str, AccountState]) -> None:
    if row.account in accounts:
        raise _senseless(row, "it opens an account a second time")
    terms = json.loads(row.terms)
    budget = Budget(epsilon=terms["epsilon"], delta=terms["delta"])
    accounts[row.account] = AccountState(
        name=row.account,
        privacy_unit=terms["privacy_unit"],
        relation=Relation(row.relation),
        opening_budget=budget,
        budget=budget,
        order=terms["order"],
        rule=_rule(row, terms),
        opened_by=row.person,
        opened_at=row.written_at,
    )


def _rule(row: Row, terms: dict[str, object]) -> int:
    rule = terms.get("rule", 1)  # accounts opened by early versions have none
    if not isinstance(rule, int) or rule < 1:
        raise _senseless(row, "it names no rule")
    if rule not in SHARES:
        raise LedgerVersionError(
            f"account {row.account!r} was opened by sfumato {row.code_version} with a rule that this version "
            "does not know. Nothing more is spent before it can: upgrade sfumato."
        )
    return rule


def _grant(row: Row, accounts: dict[str, AccountState]) -> None:
    account = accounts[row.account]
    terms = json.loads(row.terms)
    account.granted(
        Grant(
            epsilon=terms["epsilon"],
            delta=terms["delta"],
            reason=row.purpose,
            person=row.person,
            written_at=row.written_at,
        )
    )


def _reserve(row: Row, accounts: dict[str, AccountState]) -> None:
    account = accounts[row.account]
    if Relation(row.relation) is not account.relation:
        raise _senseless(row, "its relation is not its account's")
    account.reserved(
        ReleaseRecord(
            reservation=row.sequence,
            purpose=row.purpose,
            event_json=row.event,
            relation=account.relation,
            person=row.person,
            code_version=row.code_version,
            reserved_at=row.written_at,
            changed_at=row.written_at,
            progress=Progress.RESERVED,
            seeded=row.seeded,
        )
    )


def _step(row: Row, accounts: dict[str, AccountState]) -> None:
    if row.reservation is None:
        raise _senseless(row, "it names no reservation")
    account = accounts[row.account]
    release = account.releases[row.reservation]
    before, after = _STEPS[row.kind]
    if release.progress is not before:
        raise _senseless(row, f"it is a {row.kind} of a release that is {release.progress.value}")
    claim = json.loads(row.terms)["claim"] if row.kind == "begin" and row.terms else release.claim
    account.moved(release.moved(after, row.written_at, claim))


def _claim(row: Row, accounts: dict[str, AccountState]) -> None:
    if row.reservation is None:
        raise _senseless(row, "it names no reservation")
    account, terms = accounts[row.account], json.loads(row.terms)
    release = account.releases[row.reservation]
    if release.progress is not Progress.BEGUN or release.claim != terms["follows"]:
        raise _senseless(row, "it claims a release that is not open, or that another has claimed")
    account.moved(release.moved(Progress.BEGUN, row.written_at, terms["claim"]))


_KINDS: dict[str, Callable[[Row, dict[str, AccountState]], None]] = {
    "open": _open,
    "grant": _grant,
    "reserve": _reserve,
    "begin": _step,
    "commit": _step,
    "refund": _step,
    "claim": _claim,
}


def _senseless(row: Row, why: str) -> LedgerCorruptError:
    return LedgerCorruptError(
        f"row {row.sequence} of the ledger makes no sense: {why}. It was not written by sfumato. "
        "Restore a copy that verifies."
    )
