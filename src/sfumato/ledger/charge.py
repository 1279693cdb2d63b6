# SPDX-License-Identifier: Apache-2.0
"""Charges: an event, together with the relation that it was made for.

`for_study` decides whether a release is marked "for study only", for every charge, by the generator of its
noise: every generator that is not secure is marked.

An event has numbers that float64 can hold, and is at most `DEEPEST` levels deep. So whatever was charged once
can be priced again, however deep the caller's own stack is.

Guarantee  An event reaches an account only with its relation. A mechanism states its own; a bare event does
           not state it, so the caller must pass it. The same event can be half as private under
           replace-one neighbors as it reads under add-remove.
"""

import numbers
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import attrs

from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, RelationMismatchError, UnsupportedEventError

__all__ = ["DEEPEST", "Charge", "Mechanism", "Randomness", "for_study", "read"]

DEEPEST = 50  # levels of events inside events; `compose` never needs more than a few


@runtime_checkable
class Mechanism(Protocol):
    """An object with an event and the relation that the event is stated for: every sfumato mechanism."""

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        ...

    def event(self) -> DpEvent:
        """Return the event, which accountants price.

        Returns:
            The event.
        """
        ...


class Randomness(Protocol):
    """The properties of a generator that a ledger needs (`mechanisms.random.Generator`)."""

    @property
    def secure(self) -> bool:
        """Whether its bytes are cryptographic and their key is secret."""
        ...

    @property
    def seeded(self) -> bool:
        """Whether someone who knows a seed can repeat its bytes."""
        ...


def for_study(generator: Randomness | None) -> bool:
    """Return whether noise from a generator does not protect: None is the secure default of every sampler.

    >>> from sfumato.testing import seeded
    >>> for_study(None), for_study(seeded(1))
    (False, True)
    """
    return generator is not None and not (generator.secure is True and generator.seeded is False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """An event as the ledger writes it, and the relation it was made for (None: not given)."""

    event_json: str
    relation: Relation | None

    def relation_or_raise(self) -> Relation:
        """Return the relation; an event alone cannot be charged."""
        if self.relation is None:
            raise InvalidParameterError(
                "an event alone does not state for which neighbors it was made, so it cannot be charged. "
                "Pass the mechanism itself, which states it, or pass relation=... beside the event."
            )
        return self.relation


def read(what: Mechanism | DpEvent, relation: Relation | str | None = None) -> Charge:
    """Return the charge for a mechanism, or for an event with a relation beside it.

    >>> read(events.PureDpEvent(0.5), "replace-one").relation
    <Relation.REPLACE_ONE: 'replace-one'>
    """
    stated = None if relation is None else Relation.parse(relation)
    if isinstance(what, DpEvent):
        return Charge(event_json=_written(what), relation=stated)
    if not isinstance(what, Mechanism):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise UnsupportedEventError(
            f"a release is charged by its mechanism or by a DpEvent, but a {type(what).__name__} was given."
        )
    own = Relation.parse(what.relation)
    if stated is not None and stated is not own:
        raise RelationMismatchError(
            f"the mechanism is stated for {own.value} neighbors, but relation={stated.value!r} was given. "
            "Leave the relation out, or make the mechanism for that relation."
        )
    return Charge(event_json=_written(what.event()), relation=own)


def _written(event: DpEvent) -> str:
    _require_shallow(event)
    return events.to_json(event)


def _require_shallow(event: DpEvent) -> None:
    level = [event]
    for _ in range(DEEPEST):
        for part in level:
            _require_floats(part)
        # By identity: a part that stands in many places is looked at once.
        level = list({id(inner): inner for part in level for inner in _inside(part)}.values())
        if not level:
            return
    raise InvalidParameterError(
        f"the event has more than {DEEPEST} levels of events inside events. Write the same composition flat: "
        "sfumato.accounting.compose(...) of the parts."
    )


def _inside(event: DpEvent) -> Iterator[DpEvent]:
    for value in _fields(event):
        yield from (
            inner for inner in (value if isinstance(value, list | tuple) else [value]) if _is_event(inner)
        )


def _is_event(value: object) -> bool:
    return isinstance(value, DpEvent)


def _fields(event: DpEvent) -> list[Any]:
    if not attrs.has(type(event)):
        return []
    return [getattr(event, field.name) for field in attrs.fields(type(event))]


def _require_floats(event: DpEvent) -> None:
    for value in _fields(event):
        if isinstance(value, numbers.Real):
            try:
                float(value)
            except OverflowError:
                raise InvalidParameterError(
                    f"a number of the {type(event).__name__} is too large to be priced: above 1e308. Give "
                    "numbers that a float can hold."
                ) from None
