# SPDX-License-Identifier: Apache-2.0
"""Train all parts of a network together: embeddings go up, noisy gradients come back.

In an epoch each person is in one batch. Batches follow from a public seed, and everybody knows who is in
them. For a batch (1) each feature party sends noisy embeddings; (2) the label party returns, for each person,
the gradient of the loss by these embeddings, clipped and with noise; (3) the label party takes a noisy step
of the top network; (4) each feature party takes a noisy step of its bottom network along these gradients.

Guarantee  For the columns of one person at a party, an epoch is two Gaussian releases: the embedding (1) and
           the clipped sum in (4). For the label of one person, an epoch is two as well: the returned gradient
           (2) and the clipped sum in (3). Nothing is amplified. Each event is that of all epochs.
           Steps (3) and (4) need noise although weights stay where they are: weights without noise would
           carry the columns of one person into the embeddings that are later sent about others, and a label
           into the gradients that are later returned for others. With noise in both, all networks are
           computed from releases, so what is sent about a person depends, given earlier releases, on that
           person alone, and adaptive composition applies. All networks may leave their parties.
Neighbors  Replace-one for columns, replace-label for labels: each clipped vector moves by twice its bound.
Edge cases A person whose columns are not finite, or make the bottom network fail, has an embedding of zeros
           and no part in (4). A label that is no class has loss 0.
Failure    Everything public is checked first. All parties are charged before a row is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.federated.messages.charges import all_charged, first_record_note, require_purpose, unit_of_rows
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.federated.vertical.learn_top import VerticalRows, accuracy_of, rehearse_networks
from sfumato.federated.vertical.parties import FeatureParty, LabelParty, check_alignment
from sfumato.federated.vertical.vertical_run import VerticalRun
from sfumato.mechanisms.random import Generator, resolve, study_note
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.losses import Loss

__all__ = ["SplitSteps", "train_split"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSteps:
    """How all parts learn. Only `epochs` changes the claim.

    Args:
        epochs: How often each person is in a batch.
        batch_size: People in a batch.
        learning_rate: The rate of SGD, in all parts.
        momentum: The momentum of SGD.
        seed: The public seed of batches.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    epochs: int = 1
    batch_size: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check.count(epochs=self.epochs, batch_size=self.batch_size)
        _check.positive(learning_rate=self.learning_rate)
        _check.non_negative(momentum=self.momentum, seed=self.seed)


_STEPS = SplitSteps()


def train_split(
    parties: Sequence[FeatureParty],
    labels: LabelParty,
    *,
    delta: float,
    steps: SplitSteps = _STEPS,
    evaluation: VerticalRows | None = None,
    purpose: str | None = None,
    privacy_unit: str | None = None,
    generator: Generator | None = None,
) -> VerticalRun:
    """Train the networks of all parties together, in place, with noise on all that is exchanged.

    Args:
        parties: The feature parties, each with `updates`.
        labels: The label party, with `gradients` and `updates`.
        delta: The delta of each guarantee.
        steps: How all parts learn.
        evaluation: Columns of each party and labels that are NOT protected. Noise is added to their
            embeddings as well.
        purpose: What the run is for, in one line, if parties have accounts.
        privacy_unit: What the accounts of parties call the one whose row each is, such as "patient". None:
            they are accounts of persons or of rows.
        generator: The source of all noise. Default: secure. A seeded one protects nobody.

    Returns:
        The run: guarantees, accuracy after each epoch and statement.

    Raises:
        InvalidParameterError: If an account protects another unit, parties do not fit together or
            a setting is missing. Nothing is spent.
        BudgetExceededError: If an account cannot pay. Nothing is spent.
    """
    _check.delta(delta=delta)
    people = check_alignment(parties, labels)
    accounts = [*(party.account for party in parties), labels.account]
    unit = unit_of_rows(accounts, privacy_unit, known="person")
    require_purpose(accounts, purpose)
    source, note = resolve(generator), study_note(generator)
    split = _Split(parties, labels, steps, source)
    rehearse_networks(parties, labels)
    split.rehearse()
    paid = {party.name: _twice(party.embeddings, party.updates, steps.epochs) for party in parties}
    for_labels = _twice(labels.gradients, labels.updates, steps.epochs)
    charges = [(party.account, paid[party.name], Relation.REPLACE_ONE) for party in parties]
    charges.append((labels.account, for_labels, Relation.REPLACE_LABEL))
    claims = {name: _claim(event, delta, unit) for name, event in paid.items()}
    accuracies: list[float] = []
    with all_charged(charges, purpose=purpose, seeded=note is not None):
        for epoch in range(steps.epochs):
            order = torch.randperm(people, generator=torch.Generator().manual_seed(steps.seed + epoch))
            for batch in order.split(steps.batch_size):
                split.step(batch)
            if evaluation is not None:
                accuracies.append(accuracy_of(parties, labels, evaluation, source, step=epoch))
    return VerticalRun(
        parties=claims,
        person=_claim(events.compose(*paid.values()), delta, unit),
        labels=price(for_labels, delta=delta, relation=Relation.REPLACE_LABEL).guarantee("label"),
        top_may_leave=True,
        told=_told(parties, labels, steps),
        accuracies=tuple(accuracies),
        study_note=note,
        record_note=first_record_note(accounts),
    )


def _twice(sent: ClippedNoise | None, updates: ClippedNoise | None, epochs: int) -> DpEvent:
    return events.compose(_required(sent).event(epochs), _required(updates).event(epochs))


def _claim(event: DpEvent, delta: float, unit: str) -> Guarantee:
    return price(event, delta=delta, relation=Relation.REPLACE_ONE).guarantee(unit)


def _required(noise: ClippedNoise | None) -> ClippedNoise:
    if noise is None:
        raise InvalidParameterError(
            "train_split returns gradients, so that every party needs updates=ClippedNoise(...), and the "
            "label party gradients=ClippedNoise(...) too. Use learn_top to return nothing."
        )
    return noise


class _Part:
    """The network of one party, and its noisy steps."""

    def __init__(
        self, network: nn.Module, loss: Loss, noise: ClippedNoise, steps: SplitSteps, own: Generator
    ) -> None:
        self.network = network
        self.gradients = PrivateGradients(
            network,
            loss,
            noise_multiplier=noise.noise_multiplier,
            clip_norm=noise.clip_norm,
            expected_batch_size=steps.batch_size,
            generator=own,
        )
        self._optimizer = torch.optim.SGD(
            network.parameters(), lr=steps.learning_rate, momentum=steps.momentum
        )

    def step(self, *rows: Tensor) -> None:
        """Take one noisy step."""
        with evaluating(self.network):
            self.gradients.backward(*rows)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def rehearse(self, *rows: Tensor) -> None:
        """Compute a step on rows of zeros, and drop it."""
        with evaluating(self.network):
            self.gradients.accumulate(*rows)
        self.gradients.forget()


class _Split:
    """All parties of one run."""

    def __init__(
        self, parties: Sequence[FeatureParty], labels: LabelParty, steps: SplitSteps, generator: Generator
    ) -> None:
        self._parties, self._labels, self._generator = parties, labels, generator
        self._returned = _required(labels.gradients)
        self._top = _Part(
            labels.top, labels.loss, _required(labels.updates), steps, generator.fork("updates of labels", 0)
        )
        self._bottoms = [
            _Part(
                party.bottom,
                _along(party.embeddings),
                _required(party.updates),
                steps,
                generator.fork(f"updates of party {party.name}", 0),
            )
            for party in parties
        ]
        self._number = 0

    def rehearse(self) -> None:
        """Run one step on rows of zeros, and drop it."""
        blank = [torch.zeros_like(party.columns[:2]) for party in self._parties]
        found = [party.embedded(rows)[0] for party, rows in zip(self._parties, blank, strict=True)]
        self._top.rehearse(torch.cat(found, 1), torch.zeros(len(blank[0]), dtype=torch.int64))
        for bottom, rows, embeddings in zip(self._bottoms, blank, found, strict=True):
            bottom.rehearse(rows, embeddings)

    def step(self, batch: Tensor) -> None:
        """Exchange embeddings and gradients of a batch, and let all parts learn."""
        sent: list[Tensor] = []
        usable: list[Tensor] = []
        for party in self._parties:
            found, fine = party.embedded(party.columns[batch])
            own = self._generator.fork(f"embeddings of {party.name}", self._number)
            sent.append(party.embeddings.release(found, generator=own))
            usable.append(fine)
        joined, known = torch.cat(sent, dim=1), self._labels.labels[batch]
        gradients = self._labels.row_gradients(joined, known)
        own = self._generator.fork("returned gradients", self._number)
        returned = self._returned.release(gradients, generator=own)
        self._top.step(joined, known)
        parts = returned.split([part.shape[1] for part in sent], dim=1)
        for party, bottom, fine, part in zip(self._parties, self._bottoms, usable, parts, strict=True):
            keep = fine[:, None]
            rows = torch.where(_like(keep, party.columns), party.columns[batch], 0.0)
            bottom.step(rows, torch.where(keep, part, 0.0))
        self._number += 1


def _like(keep: Tensor, columns: Tensor) -> Tensor:
    return keep.view(-1, *[1] * (columns.dim() - 1))


def _along(noise: ClippedNoise) -> Callable[..., Tensor]:
    """Return the loss whose gradient is that of the whole network, given the gradient by the embedding."""

    def loss(bottom: nn.Module, rows: Tensor, gradients: Tensor) -> Tensor:
        return (noise.clipped(bottom(rows).flatten(1)) * gradients).sum(1)

    return loss


def _told(parties: Sequence[FeatureParty], labels: LabelParty, steps: SplitSteps) -> str:
    each = " ".join(
        f"Party {party.name!r}: each embedding was {party.embeddings.statement()}; what a person contributed "
        f"to a step of its network was clipped to {_required(party.updates).clip_norm:g}, with noise of "
        f"{_required(party.updates).noise_multiplier:.4g} times that in the sum."
        for party in parties
    )
    returned, updates = _required(labels.gradients), _required(labels.updates)
    return (
        f"{len(parties)} parties trained a network in parts for {steps.epochs} epochs, in batches that are "
        f"public. {each} Each gradient that the label party returned was {returned.statement()}; what a "
        f"person contributed to a step of the top network was clipped to {updates.clip_norm:g}, with noise "
        f"of {updates.noise_multiplier:.4g} times that in the sum."
    )
