# SPDX-License-Identifier: Apache-2.0
"""The statement for an auditor: what is promised, by which theorem, and what it was spent on.

Guarantee  The first figure is the account's budget: it holds however the releases were chosen, by the
           privacy filter (`filters`). The figure of the fixed plan is tighter and is labelled with its
           condition. Printed epsilons are rounded up. The head of the ledger is printed, so that a statement
           is a witness of its ledger.
Seeded     Noise that came from a seed, or that is not cryptographic, protects nobody; a statement with such
           a release says so first.
"""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.errors import UnsupportedEventError
from sfumato.ledger._words import code_version
from sfumato.ledger.journal import Head
from sfumato.ledger.state import AccountState, Grant, Progress, Release

__all__ = ["FixedPlan", "Statement", "write"]

STUDY_ONLY = "for study only: the noise was seeded or not cryptographic"


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
    """All that an account promises and spent, at one moment. `str()` is the text."""

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
    releases: tuple[Release, ...]
    written_at: str
    code_version: str

    @property
    def seeded(self) -> bool:
        """Whether any release that counts had noise that protects nobody."""
        return any(release.seeded and release.spent for release in self.releases)

    @property
    def text(self) -> str:
        """The paragraphs for an auditor."""
        parts = [
            self._title(),
            self._warning(),
            self._claim(),
            self._grants(),
            self._plan(),
            self._list(),
            self._end(),
        ]
        return "\n\n".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> str:
        """Return the same for a machine; epsilons are not rounded, but err upwards."""
        return json.dumps(self._plain(), indent=2, sort_keys=True, allow_nan=False)

    # --- the text ------------------------------------------------------------------------------------------

    def _title(self) -> str:
        return (
            f"Privacy statement of account {self.account!r}, {self.written_at}, sfumato {self.code_version}."
        )

    def _warning(self) -> str:
        if not self.seeded:
            return ""
        return f"{STUDY_ONLY.capitalize()} in at least one release below, so nothing here protects anybody."

    def _claim(self) -> str:
        counted = sum(release.spent for release in self.releases)
        by = f", order {self.order:g}" if self.order is not None else ""
        return (
            f"All releases from this account, past and future, together satisfy {self.guarantee}, also where "
            f"a release was chosen after seeing earlier ones. Theorem: {self.theorem}{by}. So far "
            f"{counted} of {len(self.releases)} reservations count. They use "
            f"{round_up(100 * self.fraction, 3):g}% of what the filter allows; taken alone, they have "
            f"epsilon {round_up(self.spent_epsilon):g} by the same theorem."
        )

    def _grants(self) -> str:
        if not self.grants:
            return ""
        raises = "; ".join(
            f"epsilon +{g.epsilon:g}, delta +{g.delta:g} by {g.person} on {g.written_at}: {g.reason}"
            for g in self.grants
        )
        return (
            f"The budget was raised {len(self.grants)} time(s) ({raises}). The guarantee above is that of "
            "the raised budget. It holds provided that no budget beyond it would have been granted whatever "
            "the releases showed."
        )

    def _plan(self) -> str:
        if self.guarantee.delta == 0 or not any(release.spent for release in self.releases):
            return ""
        if self.fixed_plan is None:
            return "Tighter figure for a fixed plan: not available for these events."
        plan = self.fixed_plan
        return (
            "If, and only if, these releases were planned before any result was seen, they are together "
            f"({round_up(plan.epsilon):g}, {round_up(self.guarantee.delta):g})-differentially private under "
            f"the same relation and unit. Accountant: {plan.accountant}. Theorem: {plan.theorem}."
        )

    def _list(self) -> str:
        if not self.releases:
            return "Nothing was released."
        return "Releases, times in UTC:\n" + "\n".join(_described(release) for release in self.releases)

    def _end(self) -> str:
        return (
            f"Ledger {self.location}, {self.head.count} rows, head {self.head}. Keep this line: "
            "`sfumato ledger verify --head` shows whether anything written until now was changed or cut off."
        )

    # --- the JSON ------------------------------------------------------------------------------------------

    def _plain(self) -> dict[str, Any]:
        plan = self.fixed_plan
        return {
            "account": self.account,
            "ledger": self.location,
            "head": {"count": self.head.count, "hash": self.head.hash},
            "guarantee": {
                "epsilon": self.guarantee.epsilon,
                "delta": self.guarantee.delta,
                "relation": self.guarantee.relation.value,
                "privacy_unit": self.guarantee.privacy_unit,
                "theorem": self.theorem,
                "order": self.order,
            },
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
            "releases": [_release_plain(release) for release in self.releases],
            "written_at": self.written_at,
            "code_version": self.code_version,
        }


def write(state: AccountState, *, head: Head, location: str) -> Statement:
    """Compose the statement of an account."""
    spent = state.spent()
    return Statement(
        account=state.name,
        location=location,
        head=head,
        guarantee=Guarantee(
            epsilon=state.budget.epsilon,
            delta=state.budget.delta,
            relation=state.relation,
            privacy_unit=state.privacy_unit,
        ),
        order=state.order,
        theorem=state.filter.shares.theorem,
        spent_epsilon=state.filter.odometer(spent),
        fraction=state.filter.fraction(spent),
        fixed_plan=_fixed_plan(state),
        grants=tuple(state.grants),
        releases=tuple(state.releases.values()),
        written_at=datetime.now(UTC).isoformat(timespec="seconds"),
        code_version=code_version(),
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


def _described(release: Release) -> str:
    notes = "" if release.progress is Progress.COMMITTED else f", {_NOTES[release.progress]}"
    seeded = f", {STUDY_ONLY}" if release.seeded else ""
    return (
        f"  {release.reservation}. {release.reserved_at[:19]}  {release.purpose} (by {release.person}, "
        f"sfumato {release.code_version}{notes}{seeded}): {release.event_json}"
    )


_NOTES = {
    Progress.RESERVED: "reserved, not begun: counts",
    Progress.BEGUN: "begun, not finished: counts",
    Progress.REFUNDED: "refunded before anything was computed: does not count",
}


def _release_plain(release: Release) -> dict[str, Any]:
    return {
        "reservation": release.reservation,
        "purpose": release.purpose,
        "event": json.loads(release.event_json),
        "person": release.person,
        "code_version": release.code_version,
        "reserved_at": release.reserved_at,
        "changed_at": release.changed_at,
        "progress": release.progress.value,
        "spent": release.spent,
        "seeded": release.seeded,
    }
