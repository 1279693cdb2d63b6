# SPDX-License-Identifier: Apache-2.0
"""Ask a question of private data: see what it would cost, pay, and only then compute.

Guarantee  `Query.release` charges the question's event before any row is read; what is refused has touched
           nothing. From then on it is spent, whatever fails. The release states the price of that same event.
Neighbors  A question is made for one relation and one contribution bound, those of the data it is asked of:
           any other is refused.
Failure    What an engine says when it fails may quote rows, and which error it raises may depend on them:
           neither is passed on. All failures of one question read the same.
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

__all__ = ["Answer", "Query", "Question", "cost"]

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(Generic[Value]):
    """What a question found: the value, how sure it is, and what should be said beside it.

    A value that is no single number says what its `parts` are, so that the release can be kept.
    """

    value: Value
    interval: Interval | tuple[Interval, ...] | None = None
    notes: tuple[str, ...] = ()
    parts: Parts | None = None


class Question(Protocol[Value]):
    """What is to be released, stated without data: it knows its noise, hence its event."""

    @property
    def name(self) -> str:
        """What is asked, in a few words: "mean of age"."""
        ...

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        ...

    @property
    def delta(self) -> float:
        """The delta that the price is stated at; 0 for a pure question."""
        ...

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that the noise is made for."""
        ...

    def event(self) -> DpEvent:
        """Return what asking costs."""
        ...

    def answer(self, data: Any, *, generator: Generator | None) -> Answer[Value]:
        """Compute the answer, with noise."""
        ...


def cost(question: Question[Any]) -> float:
    """Return the epsilon of a question at its delta."""
    event, relation = question.event(), question.relation
    if question.delta == 0:
        return composition.basic_epsilon(event, delta=0.0, relation=relation)
    return price(event, delta=question.delta, relation=relation).epsilon


@dataclass(frozen=True, slots=True)
class Query(Generic[Value]):
    """A question and the data it would be asked of. Nothing is computed, nor spent, before `release`."""

    question: Question[Value]
    data: Any  # has `privacy_unit` and `contribution_bound`

    def __post_init__(self) -> None:
        if self.question.contribution_bound != self.data.contribution_bound:
            raise InvalidParameterError(
                f"the question is made for units of at most {self.question.contribution_bound} rows, but the "
                f"data's contribution_bound is {self.data.contribution_bound}. Make both the same."
            )
        categories = getattr(self.question, "categories", None)
        if categories is not None:  # by the schema, before anything is paid
            self.data.require_fitting(categories)

    @property
    def guarantee(self) -> Guarantee:
        """What the release will promise."""
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
            f"{promised.delta:g}, for one {promised.privacy_unit} of at most {self.data.contribution_bound} "
            f"row(s), {promised.relation.value} neighbors. Nothing is computed before .release()>"
        )

    def plan(self) -> str:
        """Return the steps that `release` would take, none of which is taken now; no data is in it."""
        asked, data = getattr(self.question, "plan", None), getattr(self.data, "plan", None)
        if asked is not None:
            computed = asked(self.data)
        else:
            computed = data() if data is not None else f"{self.question.name}, in memory"
        return (
            f"{self!r}\n"
            f"1. charge: {self.question.event()}\n"
            f"2. compute, from at most {self.data.contribution_bound} row(s) of each "
            f"{self.data.privacy_unit}:\n{textwrap.indent(computed, '     ')}\n"
            "3. add the noise that was charged for; only what it returns leaves"
        )

    def release(
        self,
        *,
        account: Account | None = None,
        purpose: str | None = None,
        generator: Generator | None = None,
    ) -> Release[Value]:
        """Pay, compute, and return the answer with its guarantee."""
        promised = self.guarantee
        if account is None:
            if purpose is not None:
                raise InvalidParameterError(
                    "a purpose is written into an account, but none was given: say account=..."
                )
            return self._computed(promised, generator, account)
        if account.privacy_unit != promised.privacy_unit:
            raise InvalidParameterError(
                f"account {account.name!r} protects one {account.privacy_unit!r}, but the data's "
                f"privacy unit is {promised.privacy_unit!r}. Open the data with the account's unit as "
                "privacy_unit=..., or use another account."
            )
        named = purpose or self.question.name
        with account.spend(self.question, purpose=named, generator=generator):
            return self._computed(promised, generator, account)

    def _computed(
        self, promised: Guarantee, generator: Generator | None, account: Account | None
    ) -> Release[Value]:
        answer = _answered(self.question, self.data, generator)
        said = (
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
            notes=(*answer.notes, *(note for note in said if note is not None)),
            parts=answer.parts,
            account=None if account is None else account.name,
            recorded=is_recorded(account),
        )


def _bound_note(data: Any) -> str | None:
    """Say how much of a unit counts, where it may have more."""
    if data.privacy_unit == "row":
        return None
    bound, counted = data.contribution_bound, getattr(data, "counted", "row")
    if bound == 1:
        return f"at most 1 {counted} of each {data.privacy_unit} counts"
    return f"at most {bound} {counted}s of each {data.privacy_unit} count"


def _answered(question: Question[Value], data: Any, generator: Generator | None) -> Answer[Value]:
    try:
        return question.answer(data, generator=generator)
    except SfumatoError:
        raise
    except Exception:  # of an engine, a file or a driver: its message and its class may tell what it read
        pass  # and is raised below, so that our error does not carry theirs along
    raise QueryFailedError(
        f"{question.name}: the data could not be read or computed. What was reserved for it stays spent, as "
        "part of it may have been seen. Check that the columns exist and are numbers, and the engine's own "
        "log."
    )
