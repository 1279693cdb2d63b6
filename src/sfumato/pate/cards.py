# SPDX-License-Identifier: Apache-2.0
"""The privacy card of released answers, and of the student that learned from them.

A card is made of the facts that a run writes into its folder, so the card of a folder is that of the run.

Failure    A folder that was changed or damaged has no card: its facts must fit their fingerprint, and the
           answers must fit the facts.
"""

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _seal
from sfumato.accounting import events
from sfumato.accounting.event_words import proved_by, told
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.report.cards import words
from sfumato.report.cards.card import CardAudit, PrivacyCard

__all__ = ["ANSWERS", "FACTS", "PUBLIC", "RUN", "card_of", "fingerprint_of", "folder_card"]

ANSWERS, FACTS, RUN = "answers.npy", "answers.json", "run.json"
PUBLIC = (
    "The public rows are not protected. If some of them are also among the private rows, the guarantee does "
    "not cover what the public copies reveal."
)


def fingerprint_of(classes: npt.NDArray[np.int64]) -> str:
    """Return the fingerprint of answers: how many there are, and the class of each.

    >>> fingerprint_of(np.array([1, 2]))[:8] == fingerprint_of(np.array([1, 3]))[:8]
    False
    """
    whole = np.ascontiguousarray(classes, dtype="<i8")
    return hashlib.sha256(f"{whole.shape}\n".encode() + whole.tobytes()).hexdigest()


def card_of(facts: Mapping[str, Any], *, title: str | None) -> PrivacyCard:
    """Return the card of answers, or of a run, from its plain facts."""
    promised, event = _guarantee(facts["guarantee"]), events.from_json(json.dumps(facts["event"]))
    accountant, theorem = proved_by(event, promised)
    student = "accuracy" in facts
    return PrivacyCard(
        title=f"Answers by {facts['aggregator']}" if title is None else title,
        released="the answers, and the student that learned from them" if student else "the answers",
        guarantee=promised,
        theorem=theorem,
        accountant=accountant,
        further=_groups(facts),
        mechanism=tuple(_mechanism(facts, told(event))),
        numerics=(words.noise_source(facts["study_note"]), words.COST_IN_FLOATS),
        study_note=facts["study_note"],
        audit=None if facts["audit"] is None else CardAudit.read(facts["audit"], facts["audit_statement"]),
        account=None if facts["account"] is None else ", ".join(_named(facts["account"])),
        record_note=facts["record_note"],
        not_protected=(PUBLIC,),
        facts={
            "teachers": facts["teachers"],
            "public rows asked": facts["queries"],
            "public rows answered": facts["answered"],
            "SHA-256 of the answers": facts["answers_sha256"],
        },
        statement=facts["statement"],
        code_version=facts["code_version"],
    )


def _mechanism(facts: Mapping[str, Any], event: str) -> Iterator[str]:
    parts = "disjoint parts" if facts["disjoint"] else "overlapping parts"
    yield f"{facts['teachers']} teachers learned from {parts} of the private data, and voted on public rows."
    yield f"The answers were made by {facts['aggregator']}. Charged: {event}."
    if facts["test"] is not None:
        yield facts["test"]
    if "accuracy" in facts:
        yield "The student learned from public rows and these answers alone."


def _named(accounts: str) -> tuple[str, ...]:
    """Return the names that a job's facts quote.

    >>> _named(repr("credit") + ", " + repr("it's"))
    ('credit', "it's")
    """
    return ast.literal_eval(f"({accounts},)")


def _groups(facts: Mapping[str, Any]) -> dict[str, Guarantee]:
    groups = [_guarantee(group) for group in facts["groups"]]
    return {f"group {number}": promised for number, promised in enumerate(groups)} if len(groups) > 1 else {}


def _guarantee(facts: Mapping[str, Any]) -> Guarantee:
    return Guarantee(
        epsilon=facts["epsilon"],
        delta=facts["delta"],
        relation=Relation.parse(facts["relation"]),
        privacy_unit=facts["privacy_unit"],
    )


def folder_card(folder: str | os.PathLike[str], *, title: str | None) -> PrivacyCard:
    """Return the card of the run, or of the answers alone, in a folder; raise if a file was changed."""
    place = Path(folder)
    run = place / (RUN if (place / RUN).exists() else FACTS)
    try:
        facts = json.loads(run.read_text(encoding="utf-8"))
        answers = np.load(place / ANSWERS, allow_pickle=False)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidParameterError(
            f"{str(place)!r} holds no whole labeling job ({type(error).__name__}). Restore it."
        ) from None
    if not isinstance(facts, dict) or not _seal.fits(facts):  # pyright: ignore[reportUnknownArgumentType]
        raise InvalidParameterError(
            f"{str(run)!r} was changed after the run, is damaged, or was written by an early version of "
            "sfumato: it does not fit its fingerprint. Restore it."
        )
    if fingerprint_of(answers) != facts.get("answers_sha256"):  # pyright: ignore[reportUnknownMemberType]
        raise InvalidParameterError(
            f"the answers in {str(place)!r} were changed after the run. Restore them."
        )
    return card_of(facts, title=title)  # pyright: ignore[reportUnknownArgumentType]
