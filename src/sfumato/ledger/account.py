# SPDX-License-Identifier: Apache-2.0
"""The account of one data set: a release is charged before the data is read.

Guarantee  `reserve` returns only after the event is durably recorded and only if the account's privacy
           filter admits it (`filters`), decided and written in one serialized transaction: two processes
           never spend the same epsilon. From then on it is spent, whatever crashes.
Neighbors  A charge is stated for the account's own relation, or it is refused (`charge`).
Not here   Begin, commit and refund (`reservation`); how much is left (`remaining`).
"""

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sfumato import _check
from sfumato.accounting.calibrate import search
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import LedgerError, RelationMismatchError
from sfumato.ledger import charge, statement
from sfumato.ledger._words import line
from sfumato.ledger.budget import Budget, as_floats
from sfumato.ledger.charge import Charge, Mechanism, Randomness
from sfumato.ledger.remaining import Remaining, exceeded, needed_epsilon, remaining, spent_guarantee
from sfumato.ledger.reservation import Reservation
from sfumato.ledger.state import AccountState, Grant, ReleaseRecord

if TYPE_CHECKING:
    from sfumato.ledger.book import Accounts, Book  # brings the database, which a type does not need
    from sfumato.report import PrivacyCard

__all__ = ["Account"]

Answer = TypeVar("Answer")


class Account:
    """The account of a data set in a ledger. Get one from `Ledger.open` or `Ledger.account`.

    Args:
        book: The journal of the ledger. Callers do not construct accounts themselves.
        name: The name of the account.
    """

    def __init__(self, book: "Book", name: str) -> None:
        self._book = book
        self.name = name

    def __repr__(self) -> str:
        return f"<Account {self.name!r} of {self._book.location}>"

    def _repr_html_(self) -> str:
        from sfumato.ledger.views import account_view  # not needed to spend

        return account_view(self)

    @property
    def temporary(self) -> bool:
        """Whether its ledger is deleted when no object refers to it any more (`Ledger.temporary`)."""
        return self._book.temporary

    @property
    def privacy_unit(self) -> str:
        """Who is protected."""
        return self._recall(lambda state: state.privacy_unit)

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        return self._recall(lambda state: state.relation)

    @property
    def budget(self) -> Budget:
        """The current budget, grants included."""
        return self._ask(lambda state: state.budget)

    @property
    def opening_budget(self) -> Budget:
        """The budget that the account was opened with, before any grant."""
        return self._recall(lambda state: state.opening_budget)

    def reserve(
        self,
        what: Mechanism | DpEvent,
        *,
        purpose: str,
        relation: Relation | str | None = None,
        generator: Randomness | None = None,
        seeded: bool = False,
    ) -> "Reservation":
        """Charge a mechanism or an event before the data is read.

        Args:
            what: The mechanism, or an event together with `relation`.
            purpose: What the release is for, in one line. Statements show it.
            relation: The relation that a bare event was made for. A mechanism knows its own. It must be the
                account's.
            generator: Where the noise will come from. None is the secure generator of this process. A release
                with noise from any other generator is marked as for study only, and statements say so.
            seeded: Whether to mark the release as for study only when its generator is not at hand.

        Returns:
            The reservation: call `begin` before the data is read and `commit` when the result is released.

        Raises:
            BudgetExceededError: If the budget does not cover it. Nothing is spent.
            RelationMismatchError: If it is stated for another relation than the account's. Nothing is spent.
            UnsupportedEventError: If the event has no price under this relation. Nothing is spent.
            InvalidParameterError: If a parameter is out of range, or a bare event comes without a relation.
        """
        purpose = line(purpose=purpose)
        asked = charge.read(what, relation)
        relation = self._require_relation(asked.relation_or_raise(), f"release {purpose!r}")
        # Prices are remembered: an event that has none is refused before anything is locked or written.
        self._recall(lambda state: state.admits(asked.event_json))

        def admit(accounts: "Accounts") -> None:
            if not accounts[self.name].admits(asked.event_json):
                raise exceeded(purpose, asked, accounts[self.name])

        row = self._book.append(
            self.name,
            "reserve",
            admit,
            event=asked.event_json,
            purpose=purpose,
            relation=relation.value,
            seeded=bool(seeded) or charge.for_study(generator),
        )
        return Reservation(self._book, self.name, row.sequence)

    def spend(
        self,
        what: Mechanism | DpEvent,
        *,
        purpose: str,
        relation: Relation | str | None = None,
        generator: Randomness | None = None,
        seeded: bool = False,
    ) -> "Reservation":
        """Reserve and begin, at once; as a `with` block, commit at its end. An exception leaves it spent.

        Without a block it enters what was released elsewhere.

        Args:
            what: The mechanism, or an event together with `relation`.
            purpose: What the release is for, in one line.
            relation: The relation that a bare event was made for. A mechanism knows its own.
            generator: Where the noise will come from; see `reserve`.
            seeded: Whether to mark the release as for study only when its generator is not at hand.

        Returns:
            The reservation, which is spent now.

        Raises:
            BudgetExceededError: If the budget does not cover it. Nothing is spent, and the block does not
                run.
        """
        reservation = self.reserve(
            what, purpose=purpose, relation=relation, generator=generator, seeded=seeded
        )
        reservation.begin()
        return reservation

    def reservation(self, number: int) -> "Reservation":
        """Return an earlier reservation. One that a crash left before `begin` can be refunded.

        Args:
            number: The number of the reservation, as `releases()` shows it.

        Returns:
            The reservation.

        Raises:
            LedgerError: If the account has no such reservation.
        """
        if not self._ask(lambda state: number in state.releases):
            raise LedgerError(
                f"account {self.name!r} has no reservation {number!r}. See `releases()` for those it has."
            )
        return Reservation(self._book, self.name, number)

    def grant(self, *, epsilon: float = 0.0, delta: float = 0.0, reason: str) -> Budget:
        """Raise the budget. The guarantee of the account is then that of the new budget (see `filters`).

        Args:
            epsilon: How much epsilon is added.
            delta: How much delta is added.
            reason: Why, in one line. Statements show it.

        Returns:
            The new budget.

        Raises:
            InvalidParameterError: If nothing is added, or the sum is out of range.
        """
        reason = line(reason=reason)
        _check.non_negative(epsilon=epsilon, delta=delta)
        epsilon, delta = as_floats(epsilon=epsilon, delta=delta)
        terms = json.dumps({"epsilon": epsilon, "delta": delta}, sort_keys=True)

        def admit(accounts: "Accounts") -> None:
            # Both refuse what makes no sense.
            raised = accounts[self.name].budget.raised(epsilon=epsilon, delta=delta)
            if delta > 0:
                _check.delta(delta=raised.delta)

        self._book.append(self.name, "grant", admit, purpose=reason, terms=terms)
        return self.budget

    def spent(self) -> Guarantee:
        """Return the smallest budget, at the account's delta, that all releases so far fit in.

        It is valid at every moment, also if the releases and that moment were chosen by looking at results:
        the order at which they are counted was fixed when the account was opened, and no part of the bound is
        chosen afterwards. So the figure is above that of a fixed plan, which `statement` shows beside it; it
        is never above the budget. After grants, figures that were read under different budgets hold together
        at the sum of the deltas of these budgets.

        Returns:
            The guarantee of everything released so far.
        """
        return self._ask(spent_guarantee)

    def remaining(self, *, delta: float = 0.0) -> Remaining:
        """Return what would still be admitted.

        Args:
            delta: The delta of the one release whose largest epsilon is returned.

        Returns:
            The figures, each for one more release.

        Raises:
            InvalidParameterError: If the delta is not between 0 and 1.
        """
        _check.in_range(0, 1, delta=delta)
        return self._ask(lambda state: remaining(state, delta=delta))

    def admits(self, what: Mechanism | DpEvent) -> bool:
        """Return whether `reserve` would admit a release now. Nothing is spent.

        Args:
            what: The mechanism, or an event that was made for the account's relation.

        Returns:
            Whether it fits.

        Raises:
            RelationMismatchError: If the mechanism is stated for another relation than the account's.
        """
        asked = self._read(what)
        return self._ask(lambda state: state.admits(asked.event_json))

    def calibrate(
        self,
        make_event: Callable[[float], Mechanism | DpEvent],
        *,
        bracket: tuple[float, float] = (1e-3, 1e6),
        cost_rises: bool = False,
    ) -> float:
        """Return the smallest value whose release is admitted now.

        The filter decides, so a release of that size fits even though it is chosen after seeing others.

        Args:
            make_event: Returns a mechanism for a value, or an event for the account's relation.
            bracket: The smallest and the largest value to try.
            cost_rises: Whether the cost rises with the value. The largest value is returned then.

        Returns:
            The value.

        Raises:
            CalibrationError: If no value in the bracket fits.
        """
        state = self._state()

        def cost(value: float) -> float:
            asked = self._read(make_event(value)).event_json
            alone = state.alone(asked) if state.unused else math.inf
            return alone if alone < math.inf else needed_epsilon(state, asked)

        return search(cost, epsilon=state.budget.epsilon, bracket=bracket, cost_rises=cost_rises)

    def event(self) -> DpEvent:
        """Return everything reserved and not refunded as one event, for `calibrate(given=...)`.

        Returns:
            The event.
        """
        return self._state().event()

    def releases(self) -> list[ReleaseRecord]:
        """Return all releases in the order they were reserved, including refunded ones.

        Returns:
            The releases.
        """
        return self._ask(lambda state: list(state.releases.values()))

    def grants(self) -> list[Grant]:
        """Return all grants, oldest first.

        Returns:
            The grants.
        """
        return self._ask(lambda state: list(state.grants))

    def statement(self) -> statement.Statement:
        """Return the statement for an auditor: `print` it, or call `to_json()`.

        Returns:
            The statement.
        """
        head, state, others = self._book.account_among_others(self.name)
        return statement.write(
            state, head=head, location=self._book.location, others=others, recorded=not self.temporary
        )

    def card(self, *, release: int | None = None, title: str | None = None) -> "PrivacyCard":
        """Return the privacy card of the account, or of one of its releases, for people outside.

        Args:
            release: The number of a release, as statements print it. None: of the whole account.
            title: The title of the card. Default: the name of the account, or the purpose of the release.

        Returns:
            The card. It names no person and no time of day.

        Raises:
            LedgerError: If there is no such release, or it was not finished.
        """
        from sfumato.ledger import cards  # not needed to spend

        if release is None:
            return cards.card_of_account(self.statement(), title=title)
        return cards.card_of_release(self.statement(), release, title=title)

    def costs(self) -> list[Guarantee]:
        """Return what each of `releases()` costs on its own, in the same order; refunded ones cost nothing.

        The cost is at delta 0 if the release is one mechanism that has an epsilon at delta 0, and at the
        account's delta otherwise. All costs together are `spent()`.

        Returns:
            The guarantee of each release.
        """
        state = self._state()
        return [state.own_cost(release) for release in state.releases.values()]

    def _state(self) -> AccountState:
        return self._book.account(self.name)[1]

    def _ask(self, question: Callable[[AccountState], Answer]) -> Answer:
        return self._book.ask(self.name, question)

    def _recall(self, question: Callable[[AccountState], Answer]) -> Answer:
        """Ask about what never changes after an account was opened, without a transaction."""
        return self._book.recall(self.name, question)

    def _read(self, what: Mechanism | DpEvent) -> Charge:
        asked = charge.read(what)
        if asked.relation is not None:
            self._require_relation(asked.relation, "the mechanism")
        return asked

    def _require_relation(self, relation: Relation, what: str) -> Relation:
        """Return the relation of the account, which must be that of a charge."""
        own = self.relation
        if relation is not own:
            raise RelationMismatchError(
                f"{what} is stated for {relation.value} neighbors, but account {self.name!r} counts "
                f"{own.value} neighbors. Nothing was spent for it. Make the mechanism for "
                f"{own.value}, or use an account opened with {relation.value}."
            )
        return own
