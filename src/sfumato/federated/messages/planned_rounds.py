# SPDX-License-Identifier: Apache-2.0
"""The rounds that a client has agreed to answer, charged once and counted durably.

A client whose replies are private by themselves fixes beforehand how many rounds it will answer. All of them
together are one release of the client's own account: charged before the first, counted before each. So
epsilon is known before the first reply, and no server can ask for more.

Guarantee  `take` returns True at most `rounds` times for a purpose: over all processes, restarts and runs of
           Flower if there is an account, within one run of Flower if there is none (the count is in the
           context of the client then, which ends with the run).
Failure    With an account a crash after `take` leaves the round counted. Without one it may not: Flower sends
           a reply first and keeps the context of the client afterwards, so a process that dies in between
           answers one round more. Two processes of one client with an account that take the same round at
           once: one of them is refused.
"""

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Error, Message

from sfumato import _check
from sfumato.accounting import events
from sfumato.errors import BudgetExceededError, ClaimedElsewhereError, InvalidParameterError
from sfumato.federated.messages.charges import unit_of_rows
from sfumato.ledger.account import Account
from sfumato.ledger.charge import Mechanism, Randomness
from sfumato.ledger.reservation import Reservation
from sfumato.ledger.state import Progress, ReleaseRecord

__all__ = ["AccountOf", "PlannedRounds", "refusal"]

AccountOf = Callable[[Context], Account]

_STATE = "sfumato.rounds"  # the record of a client's context
_REFUSED = 6  # Flower's code of a mod whose conditions are not met


class PlannedRounds:
    """A number of rounds, paid for together.

    Args:
        mechanism: What all rounds together release.
        rounds: How many rounds are answered at most.
        purpose: What they are for. Rounds are counted for each purpose.
        account_of: Returns the account of the client, from Flower's context. None records nothing.
        generator: Where the noise comes from.
        rows_of: Whose each row is, if the mechanism protects rows: its account must protect no more.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        rounds: int,
        purpose: str,
        account_of: AccountOf | None,
        generator: Randomness | None,
        rows_of: str | None = None,
    ) -> None:
        _check.count(rounds=rounds)
        _check.text(purpose=purpose)
        self._mechanism, self._rounds, self._purpose = mechanism, rounds, purpose
        self._account_of, self._generator, self._rows_of = account_of, generator, rows_of

    def take(self, context: Context) -> bool:
        """Count one more round; return whether it may be answered.

        Args:
            context: The context of the client.

        Returns:
            False if all rounds were answered, or the account cannot pay for them.

        Raises:
            InvalidParameterError: If the purpose was charged for another plan, or the account protects more
                than the mechanism does.
        """
        if self._account_of is None:
            return self._take_from(context)
        try:
            return self._take_paid(self._account_of(context))
        except (BudgetExceededError, ClaimedElsewhereError):
            return False

    def _take_from(self, context: Context) -> bool:
        known = context.state.config_records.get(_STATE, ConfigRecord())
        taken = known.get(self._purpose, 0)
        if not isinstance(taken, int) or taken >= self._rounds:
            return False
        context.state[_STATE] = ConfigRecord({**known, self._purpose: taken + 1})
        return True

    def _take_paid(self, account: Account) -> bool:
        if self._rows_of is not None:
            unit_of_rows([account], None, known=self._rows_of)
        found = self._charged(account)
        if found is None:
            paid = account.reserve(self._mechanism, purpose=self._purpose, generator=self._generator)
        else:
            paid = account.reservation(found.reservation)
        release = paid.release
        if release.progress is Progress.RESERVED:
            paid.begin(claim=_claim(1))
            return self._last(paid, 1)
        taken = _taken(release)
        if release.progress is not Progress.BEGUN or taken >= self._rounds:
            return False
        paid.claim(_claim(taken + 1), known=release.claim)
        return self._last(paid, taken + 1)

    def _last(self, paid: Reservation, taken: int) -> bool:
        if taken == self._rounds:
            paid.commit(claim=_claim(taken))
        return True

    def _charged(self, account: Account) -> ReleaseRecord | None:
        """Return the charge of this plan, if there is one; raise if its purpose names another plan."""
        for release in account.releases():
            if release.purpose == self._purpose and release.spent:
                if release.event_json != events.to_json(self._mechanism.event()):
                    raise InvalidParameterError(
                        f"account {account.name!r} was charged for {self._purpose!r} with other settings. "
                        "Use those, or another purpose, which is charged anew."
                    )
                return release
        return None


def _claim(taken: int) -> str:
    return f"round {taken}"


def _taken(release: ReleaseRecord) -> int:
    return int(release.claim.removeprefix("round ") or 0)


def refusal(message: Message, reason: str) -> Message:
    """Return an error reply with a text that says nothing about the client's data."""
    return Message(Error(_REFUSED, reason), reply_to=message)
