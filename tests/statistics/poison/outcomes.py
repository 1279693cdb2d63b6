# SPDX-License-Identifier: Apache-2.0
"""What comes of a question but for noisy numbers, with extreme rows and without them."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from sfumato.statistics import query

from .engines import Engine
from .kinds import Kind
from .questions import CORE, QUESTIONS, Ask, Purse
from .tables import ROWS, Table, made

__all__ = ["Compared", "Outcome", "compared", "covering", "crowd", "outcome", "single"]

Values = tuple[Any, ...]
_SHARES = 10  # of the questions that are not at the core
_PRICES: dict[str, float] = {}


@dataclass(frozen=True)
class Outcome:
    """What can be seen of a question."""

    kind: str  # "answered", or the name of an error
    said: str  # the words of the error, or of a schema
    charged: bool
    warned: tuple[str, ...]


@dataclass(frozen=True)
class Compared:
    """What comes of a question of usual rows, and of these with extreme ones."""

    kind: str
    values: Values
    question: str
    usual: Outcome
    extreme: Outcome

    @property
    def changed(self) -> bool:
        """Whether extreme rows change what comes of the question."""
        return self.usual != self.extreme

    @property
    def failed(self) -> bool:
        """Whether the question fails where it must not: of usual rows, or by an error that is not ours."""
        refused = self.usual.kind in ("InvalidParameterError", "ColumnTypeError")
        known = refused or self.usual.kind == "answered"
        return not known or (refused and self.usual.charged) or bool(self.usual.warned)


def outcome(question: Ask, table: Table) -> Outcome:
    """Ask, and return what came of it."""
    purse = Purse()
    with warnings.catch_warnings(record=True) as caught, _prices_once():
        warnings.simplefilter("always")
        try:
            answer = question(table, purse)
            kind, said = "answered", answer if isinstance(answer, str) else ""
        except Exception as error:
            kind, said = type(error).__name__, str(error)
    told = {w for w in caught if not issubclass(w.category, DeprecationWarning | FutureWarning)}
    warned = {f"{warning.category.__name__}: {warning.message}" for warning in told}
    return Outcome(kind, said, purse.charged, tuple(sorted(warned)))


@contextmanager
def _prices_once() -> Iterator[None]:
    """Compute the price of a question once: it is half of the time, and no row has a part in it."""
    cost = query.cost

    def known(question: Any) -> float:
        terms = repr((question.event(), question.delta, question.relation))
        if terms not in _PRICES:
            _PRICES[terms] = cost(question)
        return _PRICES[terms]

    with patch.object(query, "cost", known):
        yield


def crowd(kind: Kind) -> list[Values]:
    """Return all extreme values of a type, for one table."""
    return [(*kind.extreme, None)]


def single(kind: Kind) -> list[Values]:
    """Return each extreme value of a type, for a table of its own."""
    return [(value,) for value in (*kind.extreme, None)]


def covering(place: int) -> dict[str, Ask]:
    """Return questions for the type at this place: those at the core, and some of all others in turn."""
    others = [name for name in QUESTIONS if name not in CORE]
    return {name: QUESTIONS[name] for name in (*CORE, *others[place % _SHARES :: _SHARES])}


def compared(
    engine: Engine,
    kind: Kind,
    tables: Sequence[Values],
    questions: Mapping[str, Ask] = QUESTIONS,
    *,
    usual: int = ROWS,
    copies: int = 1,
) -> Iterator[Compared]:
    """Ask each question of usual rows, and of these with extreme ones; yield both outcomes."""
    plain = made(engine, kind, usual=usual)
    expected = {name: outcome(ask, plain) for name, ask in questions.items()}
    for values in tables:
        extreme = made(engine, kind, values, usual=usual, copies=copies)
        for name, ask in questions.items():
            yield Compared(kind.title, values, name, expected[name], outcome(ask, extreme))
