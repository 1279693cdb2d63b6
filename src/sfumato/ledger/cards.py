# SPDX-License-Identifier: Apache-2.0
"""The privacy cards of an account and of one recorded release.

A card is given to people outside. It names no person, no time of day and not where the ledger is; the
statement of the account, which is for auditors, does.

Failure    A release that was not finished, or was refunded, has no card.
"""

import math
from collections.abc import Sequence

from sfumato.accounting.event_words import proved_by, told
from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.errors import LedgerError
from sfumato.ledger import statement
from sfumato.ledger._sentences import STUDY_ONLY, day
from sfumato.ledger.recorded import TEMPORARY
from sfumato.ledger.state import Progress, ReleaseRecord
from sfumato.report.cards import words
from sfumato.report.cards.card import CardTable, PrivacyCard

__all__ = ["card_of_account", "card_of_release", "releases_table"]

_DATA = "the data of the account"
_NO_CARD = {
    Progress.RESERVED: "was charged, but has not begun: nothing was released yet",
    Progress.BEGUN: "began and did not finish: nothing says what of it was released",
    Progress.REFUNDED: "was refunded before anything was computed: nothing was released",
}


def card_of_account(told_by: "statement.Statement", *, title: str | None) -> PrivacyCard:
    """Return the card of an account: what all its releases together promise."""
    order = "" if told_by.order is None else f", order {told_by.order:g}"
    return PrivacyCard(
        title=f"Account {told_by.account}" if title is None else title,
        released="everything released from the account, past and future",
        data=_DATA,
        covers="the releases of this account",
        guarantee=told_by.guarantee,
        theorem=f"{told_by.theorem}{order}",
        accountant="privacy filter",
        mechanism=(
            "The budget was fixed first; a release that does not fit into it is refused before data is read.",
            "The guarantee holds also for releases that were chosen after seeing earlier ones.",
        ),
        tuning_charged=None,
        numerics=(words.COST_IN_FLOATS,),
        study_note=STUDY_ONLY if told_by.seeded else None,
        account=told_by.account,
        record_note=None if told_by.recorded else TEMPORARY,
        facts={
            "spent": f"epsilon {round_up(told_by.spent_epsilon):g} at delta "
            f"{round_up(told_by.guarantee.delta):g}",
            "raises of the budget": len(told_by.grants),
        },
        tables=(releases_table(told_by.releases, told_by.costs),) if told_by.releases else (),
        code_version=told_by.code_version,
    )


def releases_table(releases: Sequence[ReleaseRecord], costs: Sequence[Guarantee]) -> CardTable:
    """Return releases with what each costs on its own, numbered as statements number them."""
    return CardTable(
        title="Releases",
        heads=("number", "day", "purpose", "epsilon", "delta", "state"),
        rows=tuple(
            _row(number, release, cost)
            for number, (release, cost) in enumerate(zip(releases, costs, strict=False), start=1)
        ),
    )


def _row(number: int, release: ReleaseRecord, cost: Guarantee) -> tuple[object, ...]:
    state = release.progress.value
    return (
        number,
        day(release.reserved_at),
        release.purpose,
        f"{round_up(cost.epsilon):g}",
        f"{round_up(cost.delta):g}",
        f"{state}, for study only" if release.seeded else state,
    )


def card_of_release(told_by: "statement.Statement", number: int, *, title: str | None) -> PrivacyCard:
    """Return the card of the release of this number, as statements print it; raise if it has none."""
    release, cost = _found(told_by, number)
    accountant, theorem = proved_by(release.event, cost)
    if not math.isfinite(cost.epsilon):  # its event has no figure of its own
        cost, accountant, theorem = told_by.guarantee, "privacy filter", told_by.theorem
    return PrivacyCard(
        title=release.purpose if title is None else title,
        released="what was released",
        data=_DATA,
        covers="this release alone",
        guarantee=cost,
        theorem=theorem,
        accountant=accountant,
        mechanism=(f"Charged: {told(release.event)}.",),
        numerics=(words.noise_source(STUDY_ONLY if release.seeded else None), words.COST_IN_FLOATS),
        study_note=STUDY_ONLY if release.seeded else None,
        account=told_by.account,
        release_number=number,
        record_note=None if told_by.recorded else TEMPORARY,
        facts={"purpose": release.purpose},
        further={"all releases of the account": told_by.guarantee},
        code_version=release.code_version,
        finished=day(release.changed_at),
    )


def _found(told_by: "statement.Statement", number: int) -> tuple[ReleaseRecord, Guarantee]:
    count = len(told_by.releases)
    if not 1 <= number <= count:
        has = f"releases 1 to {count}" if count else "no release"
        raise LedgerError(f"account {told_by.account!r} has {has}, but release {number} was asked for.")
    release = told_by.releases[number - 1]
    if release.progress is not Progress.COMMITTED:
        raise LedgerError(
            f"release {number} of account {told_by.account!r} {_NO_CARD[release.progress]}. It has no card; "
            "`sfumato ledger statement` tells what it costs."
        )
    return release, told_by.costs[number - 1]
