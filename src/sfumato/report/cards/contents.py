# SPDX-License-Identifier: Apache-2.0
"""The contents of a card: its parts in order, and the sentences that all cards share.

Markdown and HTML are written from the same parts, so they never disagree.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfumato.accounting.guarantee import Guarantee, Relation, round_up
from sfumato.report.promise import in_plain_words, study_sentence

if TYPE_CHECKING:
    from sfumato.report.cards.card import CardTable, PrivacyCard

__all__ = ["Part", "parts_of", "plain_words_of", "title_of", "unprotected"]

_COMPARED: Mapping[Relation, str] = {
    Relation.ADD_REMOVE: "{data} with and without any one {unit} (add-remove)",
    Relation.REPLACE_ONE: "{data} with any one {unit} and with another in its place (replace-one)",
    Relation.ZERO_OUT: "{data} with any one {unit} and with a blank in its place (zero-out)",
    Relation.REPLACE_LABEL: "{data} with the label of any one {unit} and with another label (replace-label)",
}
_OF_LABELS = (Relation.REPLACE_LABEL, "label")
_LABEL = "{data} with any one label and with another in its place (replace-label)"
_TUNING: Mapping[bool | None, str] = {
    True: "The choice of hyper-parameters is charged: it is part of the guarantee.",
    False: "The choice of settings, such as hyper-parameters or bounds, is not charged. Settings that were "
    "chosen by looking at private data, or at results on them, are not covered.",
    None: "The choice of settings, such as hyper-parameters or bounds, is covered as far as the account was "
    "charged for it.",
}
_NEVER = (
    "What is true of people in general, and can be learned without any one {unit}.",
    "Whatever else is published about the same {unit}: the costs of several releases add up.",
    "One {unit} that is in the data under two names: it counts as two, and two have twice the epsilon.",
    "The memory of the machine that computed it, and how long it computed.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of a card. What is empty is not shown.

    Attributes:
        heading: Its heading; empty for a warning, which comes first.
        facts: Named values.
        sentences: A paragraph.
        points: A list.
        table: A table.
        warning: Whether the paragraph is a warning.
    """

    heading: str
    facts: Mapping[str, object] | None = None
    sentences: str = ""
    points: tuple[str, ...] = ()
    table: "CardTable | None" = None
    warning: bool = False


def title_of(card: "PrivacyCard") -> str:
    """Return the title of a card."""
    return f"Privacy card: {card.title}"


def parts_of(card: "PrivacyCard") -> list[Part]:
    """Return the parts of a card in order."""
    return [part for part in _all_parts(card) if part.facts or part.sentences or part.points or part.table]


def plain_words_of(card: "PrivacyCard") -> str:
    """Return what the guarantee means for one who is protected."""
    if card.study_note is not None:
        return study_sentence(card.study_note, subject="release")
    return in_plain_words(card.guarantee, released=card.released, data=card.data, covers=card.covers)


def unprotected(card: "PrivacyCard") -> tuple[str, ...]:
    """Return what the release does not protect, in sentences."""
    general = tuple(sentence.format(unit=card.guarantee.privacy_unit) for sentence in _NEVER)
    return (*card.not_protected, *general)


def _all_parts(card: "PrivacyCard") -> Iterator[Part]:
    yield from _warnings(card)
    yield Part(heading="What was released", facts={"released": card.released, **card.facts})
    yield Part(heading="Who is protected, and how well", facts=_guarantee(card))
    yield Part(heading="In plain words", sentences=plain_words_of(card))
    yield Part(heading="How", points=card.mechanism)
    yield Part(heading="How the cost was computed", points=tuple(_cost(card)))
    yield Part(heading="Numerics", points=card.numerics)
    yield Part(heading="Audit", sentences=_audit(card))
    yield Part(heading="Record", sentences=_record(card))
    for table in card.tables:
        yield Part(heading=table.title, table=table)
    yield Part(heading="What is not protected", points=unprotected(card))
    yield Part(heading="Where it comes from", facts=_origin(card))


def _warnings(card: "PrivacyCard") -> Iterator[Part]:
    if card.study_note is not None:
        yield Part(heading="", sentences=plain_words_of(card), warning=True)
    if card.audit is not None and card.audit.refuted:
        yield Part(heading="", sentences=f"The claim is false. {card.audit.statement}", warning=True)


def _guarantee(card: "PrivacyCard") -> dict[str, object]:
    promised = card.guarantee
    what = (
        _LABEL if (promised.relation, promised.privacy_unit) == _OF_LABELS else _COMPARED[promised.relation]
    )
    compared = what.format(data=card.data, unit=promised.privacy_unit)
    own: dict[str, object] = {
        "protected": f"one {promised.privacy_unit}",
        "compared": compared,
        "epsilon": f"at most {round_up(promised.epsilon):g}",
        "delta": f"{round_up(promised.delta):g}",
    }
    if promised.public_fact is not None:
        own["taken as public"] = promised.public_fact
    return own | {name: _short(other) for name, other in card.further.items()}


def _short(guarantee: Guarantee) -> str:
    return str(guarantee)


def _cost(card: "PrivacyCard") -> Iterator[str]:
    if card.theorem:
        by = "" if card.accountant is None else f" (accountant: {card.accountant})"
        yield f"Epsilon is an upper bound, by {card.theorem}{by}."
    yield _TUNING[card.tuning_charged]


def _audit(card: "PrivacyCard") -> str:
    return "No audit is part of this release." if card.audit is None else card.audit.statement


def _record(card: "PrivacyCard") -> str:
    number = "" if card.release_number is None else f", release {card.release_number}"
    kept = "" if card.account is None else f"Account {card.account!r}{number}."
    note = "" if card.record_note is None else f"{card.record_note[:1].upper()}{card.record_note[1:]}."
    return " ".join(part for part in (kept, note) if part)


def _origin(card: "PrivacyCard") -> dict[str, object]:
    version = None if card.code_version is None else f"sfumato {card.code_version}"
    facts = {
        "made by": version,
        "finished on": card.finished,
        "SHA-256 of the weights": card.weights_sha256,
    }
    return {name: value for name, value in facts.items() if value is not None}
