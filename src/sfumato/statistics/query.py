# SPDX-License-Identifier: Apache-2.0
"""Queries: show what a release would cost, charge it, and only then compute it.

Guarantee  `Query.release` charges the question's event before it reads a row; a refused release has read
           nothing. Once charged, the cost stays spent, whatever fails later. The guarantee that the release
           states is the price of the same event.
Neighbors  A question is made for one relation and one contribution bound. The contribution bound must be
           that of the data; a question with another one is refused.
Failure    An engine's error may quote rows, and its type may depend on them. Neither is passed on. All
           failures of one question raise the same error with the same message.
"""

import textwrap
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sfumato.accounting import composition
from sfumato.accounting.default_delta import delta_note
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation, round_up
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError, QueryFailedError, SfumatoError
from sfumato.ledger.account import Account
from sfumato.ledger.recorded import is_recorded, record_note
from sfumato.mechanisms.random import Generator, study_note
from sfumato.statistics.release import Interval, Parts, Release

__all__ = ["Answer", "Query", "Question", "cost", "who_counts"]

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(Generic[Value]):
    """The result of a question: its value, its interval and notes.

    Attributes:
        value: The value with noise, or None if the mechanism failed.
        interval: The confidence interval, one for each number, or None.
        notes: Sentences that the release shows beside the value.
        parts: The labels and numbers of a value that is not a single number, for export.
    """

    value: Value
    interval: Interval | tuple[Interval, ...] | None = None
    notes: tuple[str, ...] = ()
    parts: Parts | None = None


class Question(Protocol[Value]):
    """A statistic to release, stated without data: its parameters, its noise and its event."""

    @property
    def name(self) -> str:
        """The name of the statistic, such as "mean of age"."""
        ...

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        ...

    @property
    def delta(self) -> float:
        """The delta of the guarantee; 0 for pure differential privacy."""
        ...

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that the noise is calibrated to."""
        ...

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        ...

    def answer(self, data: Any, *, generator: Generator | None) -> Answer[Value]:
        """Compute the answer, with noise.

        Args:
            data: The private column, rows or table.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The answer, with its interval and notes.
        """
        ...


def cost(question: Question[Any]) -> float:
    """Return the epsilon of a question at its delta.

    Args:
        question: The question to price.

    Returns:
        The epsilon that one release of it costs.
    """
    event, relation = question.event(), question.relation
    if question.delta == 0:
        return composition.basic_epsilon(event, delta=0.0, relation=relation)
    return price(event, delta=question.delta, relation=relation).epsilon


@dataclass(frozen=True, slots=True)
class Query(Generic[Value]):
    """A question and the data to release it from. Nothing is computed or charged before `release`.

    Args:
        question: The statistic to release.
        data: Private data with a `privacy_unit` and a `contribution_bound`.

    Raises:
        InvalidParameterError: If the contribution bounds differ, or the categories do not fit the type of the
            column.
    """

    question: Question[Value]
    data: Any

    def __post_init__(self) -> None:
        if self.question.contribution_bound != self.data.contribution_bound:
            raise InvalidParameterError(
                f"the question has contribution_bound={self.question.contribution_bound}, but the data has "
                f"contribution_bound={self.data.contribution_bound}. Make both the same."
            )
        categories = getattr(self.question, "categories", None)
        if categories is not None:  # by the schema, before anything is charged
            self.data.require_fitting(categories)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee that the release will have."""
        return Guarantee(
            epsilon=cost(self.question),
            delta=self.question.delta,
            relation=self.question.relation,
            privacy_unit=self.data.privacy_unit,
        )

    def __repr__(self) -> str:
        promised = self.guarantee
        return (
            f"<Query: {self.question.name}. Would cost epsilon {round_up(promised.epsilon):g}, delta "
            f"{promised.delta:g}, for one {promised.privacy_unit} of {self._counted('')}, "
            f"{promised.relation.value} neighbors. Nothing is computed before .release()>"
        )

    def _counted(self, of: str) -> str:
        """Return how many rows of a unit count, with `of` behind the rows."""
        within = getattr(self.data, "within", None)
        if within is None:
            return f"at most {self.data.contribution_bound} row(s){of}"
        return f"at most {within.rows} row(s){of} in each of at most {within.groups} group(s)"

    def _repr_html_(self) -> str:
        from sfumato.statistics.views import query_view  # only notebooks need it

        return query_view(self)

    def plan(self) -> str:
        """Return the steps that `release` would take, as text. Nothing is computed, and no data is shown.

        Returns:
            The charge, the query and the noise, as text.
        """
        of_question, of_data = getattr(self.question, "plan", None), getattr(self.data, "plan", None)
        if of_question is not None:
            computed = of_question(self.data)
        else:
            computed = of_data() if of_data is not None else f"{self.question.name}, in memory"
        return (
            f"{self!r}\n"
            f"1. charge: {self.question.event()}\n"
            f"2. compute, from {self._counted(f' of each {self.data.privacy_unit}')}:\n"
            f"{textwrap.indent(computed, '     ')}\n"
            "3. add the noise that was charged for; only the noisy result is returned"
        )

    def release(
        self,
        *,
        account: Account | None = None,
        purpose: str | None = None,
        generator: Generator | None = None,
    ) -> Release[Value]:
        """Charge the account, compute the answer, and return it with its guarantee.

        Args:
            account: The account to charge before any data is read. None means that no account is charged.
            purpose: The purpose that the account records. None means the name of the statistic.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The release, with its value, its confidence interval and its guarantee.

        Raises:
            InvalidParameterError: If a purpose is given without an account, or the account has another
                privacy unit or relation. Nothing is charged.
            BudgetExceededError: If the account has too little budget left. Nothing is computed.
            QueryFailedError: If the engine of a table fails. The cost stays charged.
        """
        promised = self.guarantee
        if account is None:
            if purpose is not None:
                raise InvalidParameterError(
                    "a purpose is recorded in an account, but no account was given: pass account=..."
                )
            return self._computed(promised, generator, account)
        if account.privacy_unit != promised.privacy_unit:
            raise InvalidParameterError(
                f"account {account.name!r} protects one {account.privacy_unit!r}, but the data's "
                f"privacy unit is {promised.privacy_unit!r}. Open the data with the account's unit as "
                "privacy_unit=...."
            )
        named = purpose or self._purpose()
        with account.spend(self.question, purpose=named, generator=generator):
            return self._computed(promised, generator, account)

    def _purpose(self) -> str:
        """Return what the account records if no purpose is given: what is asked, and two bounds of a unit."""
        if getattr(self.data, "within", None) is None:
            return self.question.name
        return f"{self.question.name}, of {who_counts(self.data)}"

    def _computed(
        self, promised: Guarantee, generator: Generator | None, account: Account | None
    ) -> Release[Value]:
        answer = _answered(self.question, self.data, generator)
        notes = (
            _bound_note(self.data),
            study_note(generator),
            record_note(account),
            delta_note(promised.delta),
        )
        return Release(
            name=self.question.name,
            value=answer.value,
            interval=answer.interval,
            guarantee=promised,
            event=self.question.event(),
            notes=(*answer.notes, *(note for note in notes if note is not None)),
            parts=answer.parts,
            account=None if account is None else account.name,
            recorded=is_recorded(account),
        )


def who_counts(data: Any) -> str | None:
    """Return how many rows of a unit count, in all or in each group; None if each row is a unit."""
    if data.privacy_unit == "row":
        return None
    within, counted = getattr(data, "within", None), getattr(data, "counted", "row")
    if within is None:
        return f"at most {_times(data.contribution_bound, counted)} of each {data.privacy_unit}"
    rows, groups = _times(within.rows, counted), _times(within.groups, "group")
    return f"at most {rows} of each {data.privacy_unit} in each of at most {groups}"


def _bound_note(data: Any) -> str | None:
    """Return the note on how many rows of a unit count, or None if each row is a unit."""
    said = who_counts(data)
    if said is None:
        return None
    return f"{said} {'counts' if said.startswith('at most 1 ') else 'count'}"


def _times(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _answered(question: Question[Value], data: Any, generator: Generator | None) -> Answer[Value]:
    try:
        return question.answer(data, generator=generator)
    except SfumatoError:
        raise
    except Exception:  # of an engine, a file or a driver: its message and class may reveal what it read
        pass  # our error is raised below, so that theirs is not chained to it
    raise QueryFailedError(
        f"{question.name}: the data could not be read or computed. The reserved cost stays spent, as part of "
        "the data may have been read. Check that the columns exist and are numbers, and read the engine's "
        "own log."
    )
