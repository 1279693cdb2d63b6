# SPDX-License-Identifier: Apache-2.0
"""Embeddings are sent once, and only the top network learns: the cheapest way to use others' columns.

Guarantee  Each feature party sends one noisy embedding of each person: one Gaussian release about the
           columns of that person, without amplification, because the label party knows whose it is. Bottom
           networks do not depend on private columns, so the embedding of a person depends on that person
           alone. Everything afterwards is computed from embeddings.
           Labels: without `method` nothing leaves the label party, and the top network must stay there. With
           a `method` of `sfumato.labels` the top network satisfies the guarantee of that method. The noisy
           embeddings are its public features.
Neighbors  Replace-one for columns, replace-label for labels.
Failure    Everything public is checked first. All feature parties are charged before a row is read.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.federated.messages.charges import all_charged, first_record_note, require_purpose, unit_of_rows
from sfumato.federated.vertical.parties import FeatureParty, LabelParty, check_alignment
from sfumato.federated.vertical.vertical_run import VerticalRun
from sfumato.labels.learner import Learner
from sfumato.labels.learning import Released, soft_cross_entropy
from sfumato.labels.request import Method
from sfumato.labels.train import train as train_on_labels
from sfumato.mechanisms.random import Generator, resolve, study_note
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.engine.losses import cross_entropy
from sfumato.training.record.metrics import correct_rows

__all__ = ["accuracy_of", "learn_top", "rehearse_networks", "send_embeddings"]

_LEARNER = Learner()
VerticalRows = tuple[Sequence[Tensor], Tensor]  # columns of each party, and labels


def learn_top(
    parties: Sequence[FeatureParty],
    labels: LabelParty,
    *,
    delta: float,
    method: Method | None = None,
    learner: Learner | None = None,
    evaluation: VerticalRows | None = None,
    purpose: str | None = None,
    privacy_unit: str | None = None,
    generator: Generator | None = None,
) -> VerticalRun:
    """Send noisy embeddings once, and train the top network on them, in place.

    Args:
        parties: The feature parties. Their bottom networks must not depend on private columns.
        labels: The label party.
        delta: The delta of the guarantees for columns.
        method: How labels are protected, so that the top network may leave, such as `labels.LabelDpSgd`.
            None: labels are used as they are, and the top network must stay with the label party.
        learner: How the top network learns, unless the method has settings of its own.
        evaluation: Columns of each party and labels that are NOT protected. Noise is added to their
            embeddings as well, because predictions of other people will need it. Without `method` the
            accuracy depends on labels as they are, and must stay with the label party too.
        purpose: What the run is for, in one line, if parties have accounts.
        privacy_unit: What the accounts of parties call the one whose row each is, such as "patient". None:
            they are accounts of persons or of rows.
        generator: The source of all noise. Default: secure. A seeded one protects nobody.

    Returns:
        The run: guarantees, accuracy and statement.

    Raises:
        InvalidParameterError: If an account protects another unit, parties do not fit together or
            a setting is out of range. Nothing is spent.
        BudgetExceededError: If an account cannot pay. Nothing is spent.

    >>> from sfumato.federated.messages.clipped_noise import ClippedNoise
    >>> from torch import nn
    >>> noise = ClippedNoise.calibrated(epsilon=4, delta=1e-6)
    >>> bank, shop = (
    ...     FeatureParty(name=name, columns=torch.zeros(20, 3), bottom=nn.Linear(3, 2), embeddings=noise)
    ...     for name in ("bank", "shop")
    ... )
    >>> held = LabelParty(labels=torch.zeros(20, dtype=torch.int64), classes=2, top=nn.Linear(4, 2))
    >>> run = learn_top([bank, shop], held, delta=1e-6)
    >>> print(run.parties["bank"])
    (4, 1e-06)-differential privacy for one person, replace-one neighbors
    """
    _check.delta(delta=delta)
    people = check_alignment(parties, labels)
    accounts = [party.account for party in parties]
    unit = unit_of_rows(accounts, privacy_unit, known="person")
    require_purpose([*accounts, labels.account if method is not None else None], purpose)
    rehearse_networks(parties, labels)
    paid = {party.name: party.embeddings.event() for party in parties}
    together = events.compose(*paid.values())
    _require_admitted(labels, method, purpose)
    source, note = resolve(generator), study_note(generator)
    charges = [(party.account, paid[party.name], Relation.REPLACE_ONE) for party in parties]
    with all_charged(charges, purpose=purpose, seeded=note is not None):
        embeddings = send_embeddings(parties, torch.arange(people), source, step=0)
    claimed = _learn(labels, embeddings, method, learner, purpose, generator)
    return VerticalRun(
        parties={
            name: price(e, delta=delta, relation=Relation.REPLACE_ONE).guarantee(unit)
            for name, e in paid.items()
        },
        person=price(together, delta=delta, relation=Relation.REPLACE_ONE).guarantee(unit),
        labels=claimed,
        top_may_leave=method is not None,
        told=_told(parties),
        accuracies=() if evaluation is None else (accuracy_of(parties, labels, evaluation, source),),
        study_note=note,
        record_note=first_record_note(accounts),
    )


def send_embeddings(
    parties: Sequence[FeatureParty],
    people: Tensor,
    generator: Generator,
    *,
    step: int,
    columns: Sequence[Tensor] | None = None,
) -> Tensor:
    """Return what all parties send about some people, side by side: clipped, with noise of each party.

    Args:
        parties: The feature parties.
        people: The numbers of the people.
        generator: The source of noise. Each party and each step has a part of its own.
        step: The number of the exchange, each time another.
        columns: Other rows than those the parties hold, or None.

    Returns:
        The embeddings, [people, sizes added up].
    """
    sent: list[Tensor] = []
    for place, party in enumerate(parties):
        held = party.columns if columns is None else columns[place]
        found, _ = party.embedded(held[people])
        own = generator.fork(f"embeddings of {party.name}", step)
        sent.append(party.embeddings.release(found, generator=own))
    return torch.cat(sent, dim=1)


_EVALUATION = 2**62  # steps from here on are not those of training


@torch.no_grad()
def accuracy_of(
    parties: Sequence[FeatureParty],
    labels: LabelParty,
    evaluation: VerticalRows,
    generator: Generator,
    *,
    step: int = 0,
) -> float:
    """Return the accuracy on people who are not protected, with noisy embeddings as all others have."""
    columns, known = evaluation
    people, step = torch.arange(len(known)), _EVALUATION + step
    embeddings = send_embeddings(parties, people, generator, step=step, columns=columns)
    with evaluating(labels.top):
        return float(correct_rows(labels.top, embeddings, known).mean())


def rehearse_networks(parties: Sequence[FeatureParty], labels: LabelParty) -> None:
    """Run all networks on rows of zeros: what cannot work is found before anything is spent.

    Args:
        parties: The feature parties. Only the shapes of their columns are looked at.
        labels: The label party.

    Raises:
        InvalidParameterError: If a network does not fit its inputs, or the number of classes.
    """
    with torch.no_grad():
        parts: list[Tensor] = []
        for party in parties:
            with evaluating(party.bottom):
                parts.append(_blank_embedding(party))
        with evaluating(labels.top):
            _require_scores(parties, labels, parts)


def _blank_embedding(party: FeatureParty) -> Tensor:
    """Return the embedding of a row of zeros."""
    blank = torch.zeros_like(party.columns[:1])
    try:
        return torch.func.vmap(party.embedding)(blank)
    except Exception as error:  # on rows of zeros: no private number is in it
        raise InvalidParameterError(
            f"the bottom network of party {party.name!r} does not take its columns: "
            f"{str(error).splitlines()[0]}. It gets rows of shape {tuple(blank.shape[1:])}."
        ) from error


def _require_scores(parties: Sequence[FeatureParty], labels: LabelParty, parts: Sequence[Tensor]) -> None:
    """Raise unless the top network takes the embeddings, rows of zeros here, and scores each class."""
    width = sum(part.shape[1] for part in parts)
    sizes = ", ".join(
        f"{part.shape[1]} of {party.name!r}" for party, part in zip(parties, parts, strict=True)
    )
    try:
        scores = labels.top(torch.cat(list(parts), dim=1))
    except Exception as error:  # on rows of zeros: no private number is in it
        raise InvalidParameterError(
            f"the top network does not take embeddings of {width} numbers ({sizes}): "
            f"{str(error).splitlines()[0]}. It gets the embeddings of all parties side by side, so its first "
            f"layer needs {width} inputs, such as nn.Linear({width}, {labels.classes})."
        ) from error
    if labels.loss is cross_entropy and tuple(scores.shape) != (1, labels.classes):
        raise InvalidParameterError(
            f"the top network gives {tuple(scores.shape[1:])} numbers for each person, but there are "
            f"classes={labels.classes}. Its last layer needs {labels.classes} outputs."
        )


def _require_admitted(labels: LabelParty, method: Method | None, purpose: str | None) -> None:
    """Raise if the labels cannot be paid for, before embeddings are spent."""
    account = labels.account
    if method is not None and account is not None and not account.admits(method):
        account.reserve(method, purpose=str(purpose), generator=None).refund()  # raises: too little is left


def _learn(
    labels: LabelParty,
    embeddings: Tensor,
    method: Method | None,
    learner: Learner | None,
    purpose: str | None,
    generator: Generator | None,
) -> Guarantee | None:
    if method is None:
        known = (labels.labels[:, None] == torch.arange(labels.classes)).float()  # zeros if it is no class
        learned = Released(targets=known, loss=soft_cross_entropy)
        (learner if learner is not None else _LEARNER)(labels.top, embeddings, learned)
        return None
    account = labels.account
    return train_on_labels(
        labels.top,
        embeddings,
        labels.labels,
        method=method,
        learner=learner,
        account=account,
        purpose=None if account is None else purpose,
        generator=generator,
    ).guarantee


def _told(parties: Sequence[FeatureParty]) -> str:
    each = " ".join(
        f"Party {party.name!r}: each embedding was {party.embeddings.statement()}." for party in parties
    )
    return (
        f"{len(parties)} parties sent one embedding of each person to the label party, once. {each} Their "
        "networks do not depend on private columns. Only the top network was trained."
    )
