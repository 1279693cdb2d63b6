# SPDX-License-Identifier: Apache-2.0
"""The privacy card of a run on secret labels: features are public, and only labels are protected.

Failure    A folder whose files were changed after the run has no card.
"""

import json
import os
from dataclasses import dataclass, replace

from sfumato.accounting import events
from sfumato.accounting.event_words import proved_by, told
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.report.cards import words
from sfumato.report.cards.card import PrivacyCard
from sfumato.training.record.fingerprints import fingerprint_of
from sfumato.training.record.run_folder import CheckpointError
from sfumato.training.run import loaded, unchanged

__all__ = ["FEATURES", "ReleasedLabels", "folder_card", "of_released_labels", "of_training", "released_once"]

FEATURES = "Features are public, and are not protected at all."


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedLabels:
    """What a card says of a run that released labels once and learned from them."""

    event: DpEvent
    method: str
    guarantee: Guarantee
    study_note: str | None
    account: str | None
    record_note: str | None
    statement: str
    weights_sha256: str
    code_version: str


def released_once(method: str) -> str:
    """Return what a method did that releases labels once.

    >>> released_once("clusters")[:50]
    'Labels were released once with noise, by the metho'
    """
    return (
        f"Labels were released once with noise, by the method {method!r}, and the model was trained on what "
        "was released."
    )


def of_training(card: PrivacyCard, *, guarantee: Guarantee, statement: str) -> PrivacyCard:
    """Return the card of a training run as that of a run on secret labels."""
    return replace(
        card, guarantee=guarantee, statement=statement, not_protected=(FEATURES, *card.not_protected)
    )


def of_released_labels(run: ReleasedLabels, *, title: str) -> PrivacyCard:
    """Return the card of a run that released labels once."""
    accountant, theorem = proved_by(run.event, run.guarantee)
    return PrivacyCard(
        title=title,
        released="the labels with noise, and the model that learned from them",
        guarantee=run.guarantee,
        theorem=theorem,
        accountant=accountant,
        mechanism=(released_once(run.method), f"Charged: {told(run.event)}."),
        numerics=(words.noise_source(run.study_note), words.COST_IN_FLOATS),
        study_note=run.study_note,
        account=run.account,
        record_note=run.record_note,
        not_protected=(FEATURES,),
        facts={"method": run.method},
        statement=run.statement,
        weights_sha256=run.weights_sha256,
        code_version=run.code_version,
    )


def folder_card(folder: str | os.PathLike[str], *, title: str | None) -> PrivacyCard:
    """Return the card of the finished run on secret labels in a folder."""
    facts, weights = unchanged(folder)
    try:
        guarantee = Guarantee(
            epsilon=facts["epsilon"],
            delta=facts["delta"],
            relation=Relation.parse(facts["relation"]),
            privacy_unit=facts["privacy_unit"],
        )
        name = f"A model trained by {facts['method']}" if title is None else title
        if "mechanism" in facts:
            card = loaded(folder, labels=True).card(title=name)
            return of_training(card, guarantee=guarantee, statement=facts["statement"])
        event = events.from_json(json.dumps(facts["event"]))
        told = {each: facts[each] for each in _SAME}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the run in {str(folder)!r} is of another version of sfumato, or damaged "
            f"({type(error).__name__})."
        ) from error
    run = ReleasedLabels(event=event, guarantee=guarantee, weights_sha256=fingerprint_of(weights), **told)
    return of_released_labels(run, title=name)


_SAME = ("method", "study_note", "account", "record_note", "statement", "code_version")
