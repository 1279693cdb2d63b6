# SPDX-License-Identifier: Apache-2.0
"""One data set's account: ask before touching data, and be charged before the answer comes.

Guarantee  `reserve` returns only after the event is durably recorded and only if the account's privacy
           filter admits it (`filters`), decided and written in one serialized transaction: two processes
           never spend the same epsilon. From then on it is spent, whatever crashes.
Relation   A charge is stated for the account's own relation, or it is refused (`charge`).
Refund     `refund` works only before `begin`, which is durable before data may be touched: then nothing was
           computed from the data, and the account is as if the release had never been asked for.
Failure    An exception between `begin` and `commit` leaves the release spent: part of a result may have been
           seen.
Claims     A release that goes on in another process after a crash is claimed by it, in one transaction, and
           only by who knows the last claim. So one charge has one line of continuations and one result: a
           second copy of the same files knows an old claim, and can neither go on nor commit.
"""

import json
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sfumato import _check
from sfumato.accounting import gaussian
from sfumato.accounting.calibrate import search
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation, round_up
from sfumato.errors import BudgetExceededError, ClaimedElsewhereError, LedgerError, RelationMismatchError
from sfumato.ledger import charge, filters, statement
from sfumato.ledger._words import line
from sfumato.ledger.budget import Budget, as_floats
from sfumato.ledger.charge import Charge, Mechanism, Randomness
from sfumato.ledger.state import AccountState, Grant, Progress, ReleaseRecord

if TYPE_CHECKING:
    from sfumato.ledger.book import Accounts, Book  # brings the database, which a type does not need

__all__ = ["Account", "Remaining", "Reservation"]

Answer = TypeVar("Answer")
_ANOTHER = "One charge pays for one result: go on where it was continued, or reserve anew."


@dataclass(frozen=True, kw_only=True, slots=True)
class Remaining:
    """What an account would still admit, as one more release. Each figure errs downwards (noise: upwards)."""

    epsilon: float  # the largest epsilon of a release of which nothing else is known
    run_epsilon: float  # the largest epsilon, at the account's delta, of a Gaussian release or a DP-SGD run
    noise_multiplier: float  # the least of one Gaussian release; infinite where none fits
    delta: float  # what is left for releases with a delta of their own
    fraction: float  # of the filter that is left, 0 to 1


class Account:
    """The account of a data set in a ledger; get one with `Ledger.open` or `Ledger.account`."""

    def __init__(self, book: "Book", name: str) -> None:
        self._book = book
        self.name = name

    def __repr__(self) -> str:
        return f"<Account {self.name!r} of {self._book.location}>"

    @property
    def temporary(self) -> bool:
        """Whether its ledger is removed when nobody holds it any more (`Ledger.temporary`)."""
        return self._book.temporary

    @property
    def privacy_unit(self) -> str:
        """Who is protected."""
        return self._ask(lambda state: state.privacy_unit)

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        return self._ask(lambda state: state.relation)

    @property
    def budget(self) -> Budget:
        """The budget as of now, grants included."""
        return self._ask(lambda state: state.budget)

    def reserve(
        self,
        what: Mechanism | DpEvent,
        *,
        purpose: str,
        relation: Relation | str | None = None,
        generator: Randomness | None = None,
        seeded: bool = False,
    ) -> "Reservation":
        """Charge a mechanism, or an event, or raise `BudgetExceededError` with nothing spent.

        A mechanism knows the relation it is stated for; beside a bare event, `relation` must say it. Any but
        the account's is refused.
        `generator` is where the noise will come from, None being the secure one of this process. A release
        with noise of any other kind is marked as for study only, and statements say so. `seeded` marks one
        whose generator is not at hand.
        """
        purpose = line(purpose=purpose)
        asked = charge.read(what, relation)
        terms = self._terms()
        _require_relation(asked.relation_or_raise(), terms, f"release {purpose!r}")
        # Prices are remembered: this one refuses what has none before anything is locked or written.
        self._ask(lambda state: state.admits(asked.event_json))

        def admit(accounts: "Accounts") -> None:
            if not accounts[self.name].admits(asked.event_json):
                raise _exceeded(purpose, asked, accounts[self.name])

        row = self._book.append(
            self.name,
            "reserve",
            admit,
            event=asked.event_json,
            purpose=purpose,
            relation=terms.relation.value,
            seeded=bool(seeded) or charge.for_study(generator),
        )
        return Reservation(self._book, self.name, row.sequence)

    @contextmanager
    def spend(
        self,
        what: Mechanism | DpEvent,
        *,
        purpose: str,
        relation: Relation | str | None = None,
        generator: Randomness | None = None,
        seeded: bool = False,
    ) -> Generator["Reservation"]:
        """Reserve and begin; commit when the block ends well. An exception leaves the release spent."""
        reservation = self.reserve(
            what, purpose=purpose, relation=relation, generator=generator, seeded=seeded
        )
        reservation.begin()
        yield reservation
        reservation.commit()

    def reservation(self, number: int) -> "Reservation":
        """Return the handle of an earlier reservation: one that a crash left unbegun can be refunded."""
        if not self._ask(lambda state: number in state.releases):
            raise LedgerError(
                f"account {self.name!r} has no reservation {number!r}. See `releases()` for those it has."
            )
        return Reservation(self._book, self.name, number)

    def grant(self, *, epsilon: float = 0.0, delta: float = 0.0, reason: str) -> Budget:
        """Raise the budget and return it. The guarantee is then the new budget's (`filters`, Grants)."""
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

        It holds at whatever moment it is read, also if releases and that moment were chosen by looking at
        results: the order at which they are counted was fixed when the account was opened, and no part of the
        bound is chosen afterwards. The price of that is a figure above the one of a fixed plan, which
        `statement` shows beside it; it is never above the budget. After grants, figures that were read under
        different budgets hold together at the sum of these budgets' deltas.
        """
        return self._ask(spent_guarantee)

    def remaining(self, *, delta: float = 0.0) -> Remaining:
        """Return what would still be admitted; `delta` is that of the release whose epsilon is asked for."""
        _check.in_range(0, 1, delta=delta)
        return self._ask(lambda state: remaining(state, delta=delta))

    def admits(self, what: Mechanism | DpEvent) -> bool:
        """Whether `reserve` would admit this now; asking costs nothing.

        A bare event is taken as made for the account's relation.
        """
        asked = self._read(what, self._terms())
        return self._ask(lambda state: state.admits(asked.event_json))

    def calibrate(
        self,
        make_event: Callable[[float], Mechanism | DpEvent],
        *,
        bracket: tuple[float, float] = (1e-3, 1e6),
        cost_rises: bool = False,
    ) -> float:
        """Return the least value in `bracket` (the largest, if `cost_rises`) that is admitted now.

        `make_event` returns a mechanism, or an event for the account's relation. The filter decides, so a
        release of that size fits even though it is chosen after seeing others.
        """
        terms, state = self._terms(), self._state()

        def cost(value: float) -> float:
            asked = self._read(make_event(value), terms).event_json
            alone = state.alone(asked) if state.unused else math.inf
            return alone if alone < math.inf else _needs(state, asked)

        return search(cost, epsilon=state.budget.epsilon, bracket=bracket, cost_rises=cost_rises)

    def event(self) -> DpEvent:
        """Return everything reserved and not refunded as one event, as `calibrate(given=...)` takes it."""
        return self._state().event()

    def releases(self) -> list[ReleaseRecord]:
        """Return all releases in the order they were reserved, refunded ones too."""
        return self._ask(lambda state: list(state.releases.values()))

    def grants(self) -> list[Grant]:
        """Return all grants, oldest first."""
        return self._ask(lambda state: list(state.grants))

    def statement(self) -> statement.Statement:
        """Return what an auditor needs to know: `print` it, or take `to_json()`."""
        head, state, others = self._book.account_among_others(self.name)
        return statement.write(
            state, head=head, location=self._book.location, others=others, recorded=not self.temporary
        )

    def costs(self) -> list[Guarantee]:
        """Return what each of `releases()` costs on its own, in the same order; refunded ones cost nothing.

        At delta 0 where it is one mechanism that has an epsilon at delta 0, and at the account's delta
        otherwise. What all cost together is `spent()`.
        """
        state = self._state()
        return [state.own_cost(release) for release in state.releases.values()]

    def _state(self) -> AccountState:
        return self._book.account(self.name)[1]

    def _ask(self, question: Callable[[AccountState], Answer]) -> Answer:
        return self._book.ask(self.name, question)

    def _terms(self) -> "_Terms":
        return self._ask(lambda state: _Terms(name=state.name, relation=state.relation))

    def _read(self, what: Mechanism | DpEvent, terms: "_Terms") -> Charge:
        asked = charge.read(what)
        if asked.relation is not None:
            _require_relation(asked.relation, terms, "what is asked about")
        return asked


@dataclass(frozen=True, kw_only=True, slots=True)
class _Terms:
    """What an account was opened with and never changes."""

    name: str
    relation: Relation


class Reservation:
    """A release that is charged. `begin` before touching data, `commit` when the result leaves."""

    def __init__(self, book: "Book", account: str, number: int) -> None:
        self._book = book
        self._account = account
        self.number = number

    def __repr__(self) -> str:
        return f"<Reservation {self.number} of account {self._account!r} of {self._book.location}>"

    @property
    def release(self) -> ReleaseRecord:
        """What the ledger knows of it now."""
        return self._book.ask(self._account, lambda state: state.releases[self.number])

    @property
    def release_number(self) -> int:
        """Its place among the account's releases, from 1 on, as statements print it."""
        return self._book.ask(self._account, lambda state: list(state.releases).index(self.number) + 1)

    def begin(self, *, claim: str = "") -> None:
        """Record that data may be touched from now on: no refund any more.

        Who gives a `claim` must know the last one to go on or to commit.
        """
        terms = json.dumps({"claim": line(claim=claim)}) if claim else ""
        self._step("begin", Progress.RESERVED, "Reserve anew for another computation.", terms=terms)

    def claim(self, claim: str, *, known: str) -> None:
        """Go on with a release that was begun, from the place where `known` was its claim.

        From then on `claim` is the one to know. Of two that know the same claim, the second is refused.
        """
        terms = json.dumps({"claim": line(claim=claim), "follows": known}, sort_keys=True)
        self._step("claim", Progress.BEGUN, _ANOTHER, known=known, terms=terms)

    def commit(self, *, claim: str = "") -> None:
        """Record that the result left; `claim` is the last one, if there was any."""
        self._step("commit", Progress.BEGUN, "Call begin() once, compute, then commit() once.", known=claim)

    def refund(self) -> None:
        """Give back what was charged; possible only before `begin`, when nothing was computed."""
        self._step("refund", Progress.RESERVED, "Only what was never begun can be given back.")

    def _step(
        self, kind: str, needed: Progress, advice: str, *, known: str | None = None, terms: str = ""
    ) -> None:
        def admit(accounts: "Accounts") -> None:
            release = accounts[self._account].releases[self.number]
            if release.progress is not needed:
                raise (ClaimedElsewhereError if kind == "claim" else LedgerError)(
                    f"reservation {self.number} of account {self._account!r} is {release.progress.value}, so "
                    f"{kind} is not possible. {advice}"
                )
            if known is not None and known != release.claim:
                raise ClaimedElsewhereError(
                    f"reservation {self.number} of account {self._account!r} was continued elsewhere, so "
                    f"{kind} is not possible here. {_ANOTHER}"
                )

        self._book.append(self._account, kind, admit, reservation=self.number, terms=terms)


def spent_guarantee(state: AccountState) -> Guarantee:
    """Return what an account has spent, as it holds at whatever moment it is read."""
    return Guarantee(
        epsilon=state.filter.odometer(state.spent()),
        delta=state.budget.delta,
        relation=state.relation,
        privacy_unit=state.privacy_unit,
    )


def remaining(state: AccountState, *, delta: float = 0.0) -> Remaining:
    """Return what an account would still admit."""
    spent, rule = state.spent(), state.filter
    noise = _least_noise_multiplier(state)
    return Remaining(
        epsilon=rule.largest_epsilon(spent, delta=delta, relation=state.relation),
        run_epsilon=_run_epsilon(state, noise),
        noise_multiplier=noise,
        delta=max(0.0, rule.allowance.delta - spent.delta),
        fraction=1 - rule.fraction(spent) if state.kept else 0.0,
    )


def _least_noise_multiplier(state: AccountState) -> float:
    noise = state.filter.least_noise_multiplier(state.spent(), relation=state.relation)
    if state.unused and state.budget.delta > 0:
        alone = gaussian.stddev_for(state.budget.epsilon, state.budget.delta, float(state.relation.diameter))
        return min(noise, alone * (1 + 1e-9))  # the price of this noise rounds up
    return noise


def _run_epsilon(state: AccountState, noise_multiplier: float) -> float:
    """Return the epsilon, rounded down, of the Gaussian that is left: of all that is left where nothing was
    used."""
    if state.unused:
        return state.budget.epsilon
    if noise_multiplier == math.inf:
        return 0.0
    mu = state.relation.diameter / noise_multiplier
    return gaussian.epsilon(mu, state.budget.delta) * (1 - 1e-9)


def _needs(state: AccountState, asked: str) -> float:
    """Return the epsilon of a budget that one more event would need; at most the account's just if it
    fits."""
    after = filters.total([state.spent(), state.cost(asked)])
    needs = state.filter.smallest_epsilon(after)
    # The two round differently in the last digit; the filter has the last word.
    if state.filter.admits(after):
        return min(needs, state.budget.epsilon)
    return max(needs, math.nextafter(state.budget.epsilon, math.inf))


def _round_down(value: float) -> float:
    return -round_up(-value)


def _require_relation(relation: Relation, terms: _Terms, what: str) -> None:
    if relation is not terms.relation:
        raise RelationMismatchError(
            f"{what} is stated for {relation.value} neighbors, but account {terms.name!r} counts "
            f"{terms.relation.value} neighbors. Nothing was spent for it. Make the mechanism for "
            f"{terms.relation.value}, or use an account opened with {relation.value}."
        )


def _exceeded(purpose: str, asked: Charge, state: AccountState) -> BudgetExceededError:
    left, price = remaining(state), state.cost(asked.event_json)
    needs = _needs(state, asked.event_json)
    needs = min(needs, state.alone(asked.event_json)) if state.unused else needs
    if price.delta > 0 and state.spent().delta + price.delta > state.filter.allowance.delta:
        need = f"has a delta of its own of {price.delta:g}, and {_round_down(left.delta):g} is left for those"
    elif math.isfinite(needs):
        need = f"would take everything together to epsilon={round_up(needs):g}"
    else:
        need = "does not fit beside what was released before"
    return BudgetExceededError(
        f"release {purpose!r} {need}, but account {state.name!r} has a budget of {state.budget}. "
        f"{_left(left, state)} or add budget with `sfumato ledger grant`. Nothing was spent for it, and the "
        "data was not touched."
    )


def _left(left: Remaining, state: AccountState) -> str:
    found: list[str] = []
    if left.run_epsilon > 0 and state.budget.delta > 0:
        found.append(
            f"a DP-SGD run or a Gaussian release of at most epsilon={_round_down(left.run_epsilon):g} at "
            f"delta={state.budget.delta:g} (noise multiplier of one Gaussian: "
            f"{round_up(left.noise_multiplier):g})"
        )
    if left.epsilon > 0:
        kind = "a release of any other kind" if found else "one release"
        found.append(f"{kind} of at most epsilon={_round_down(left.epsilon):g} and delta=0")
    return (
        f"Left is {', or '.join(found)}. Ask for that," if found else "Nothing is left. Use another account,"
    )
