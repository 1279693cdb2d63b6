# SPDX-License-Identifier: Apache-2.0
"""Who holds what about the same people: parties with columns, and one party with the labels.

Row i is the same person at every party: the parties have agreed on that before, and the number of people is
public. Each party has a part of the network. A feature party computes an embedding of each person from its
columns (bottom). The label party computes scores from the embeddings of all parties (top).

Guarantee  What is sent about a person is computed from the row of that person alone: networks see one row at
           a time, in evaluation mode, and other rows do not even change its last bits (`each_row`). A row
           that makes a network fail has zeros.
Neighbors  The columns of one person at one party are replaced (replace-one), or the label of one person is
           (replace-label).
Not here   Private matching of people: which people all parties have is public here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.federated.vertical.each_row import each_row
from sfumato.ledger.account import Account
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.engine.losses import Loss, cross_entropy

__all__ = ["FeatureParty", "LabelParty", "check_alignment"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureParty:
    """A party that holds columns.

    Args:
        name: The name of the party, for statements.
        columns: One row of numbers for each person, [people, columns]. They are private.
        bottom: The network from one row to its embedding. If nothing is returned to the party
            (`learn_top`), it must not depend on the private columns: leave it as it is, or train it on public
            data.
        embeddings: The bound on an embedding, and the noise.
        updates: The bound on what a person contributes to a step of the bottom network, and the noise. Only
            `train_split` needs it.
        account: The account of these columns, under replace-one neighbors.

    Raises:
        InvalidParameterError: If the columns are not a matrix of floating-point numbers.
    """

    name: str
    columns: Tensor = field(repr=False)
    bottom: nn.Module
    embeddings: ClippedNoise
    updates: ClippedNoise | None = None
    account: Account | None = None

    def __post_init__(self) -> None:
        _check.text(name=self.name)
        if self.columns.dim() < 2 or not self.columns.is_floating_point():
            raise InvalidParameterError(
                f"the columns of party {self.name!r} must be floating-point numbers with one row a person."
            )

    def embedded(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of rows, and which rows the bottom network could compute.

        They are private: they are not clipped yet and have no noise.

        Args:
            columns: Rows of this party.

        Returns:
            The embeddings, [rows, size], and [rows] of bool.
        """
        with evaluating(self.bottom), torch.no_grad():
            blank = self.bottom(torch.zeros_like(columns[:1])).flatten()
            return each_row(self.embedding, columns, blank=blank)

    def embedding(self, row: Tensor) -> Tensor:
        """Return the embedding of one row, which is private.

        Args:
            row: The columns of one person.

        Returns:
            The embedding.
        """
        return self.bottom(row[None]).flatten()


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelParty:
    """The party that holds the labels.

    Args:
        labels: One whole number for each person. They are private.
        classes: The number of classes, which is public.
        top: The network from the embeddings of all parties, side by side, to one score for each class.
        gradients: The bound on the gradient that is returned for a person, and the noise. Only `train_split`
            needs it.
        updates: The bound on what a person contributes to a step of the top network, and the noise. Only
            `train_split` needs it.
        loss: `loss(model, embeddings, labels)` returns one number for each row.
        account: The account of the labels, under replace-label neighbors.

    Raises:
        InvalidParameterError: If the labels are not one whole number for each person.
    """

    labels: Tensor = field(repr=False)
    classes: int
    top: nn.Module
    gradients: ClippedNoise | None = None
    updates: ClippedNoise | None = None
    loss: Loss = cross_entropy
    account: Account | None = None

    def __post_init__(self) -> None:
        _check.count(classes=self.classes)
        if self.labels.dim() != 1 or self.labels.dtype != torch.int64:
            raise InvalidParameterError("labels must be one whole number (int64) for each person.")

    def row_gradients(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient of each person's loss by the embeddings of that person. They are private.

        Args:
            embeddings: The embeddings that all parties sent, side by side.
            labels: The labels of these people.

        Returns:
            The gradients, [rows, size].
        """

        def loss(row: Tensor, label: Tensor) -> Tensor:
            return self.loss(self.top, row[None], label[None]).squeeze(0)

        with evaluating(self.top):
            pairs = [embeddings, labels.to(torch.int64)]
            return each_row(torch.func.grad(loss), *pairs, blank=torch.zeros_like(embeddings[0]))[0].detach()


def check_alignment(parties: Sequence[FeatureParty], labels: LabelParty) -> int:
    """Return the number of people. Only public sizes and names are looked at.

    Args:
        parties: The feature parties.
        labels: The label party.

    Returns:
        The number of people, the same at all parties.

    Raises:
        InvalidParameterError: If parties have different numbers of people, or two have the same name.
    """
    people = len(labels.labels)
    if not parties or not people:
        raise InvalidParameterError("there must be a feature party, and people.")
    names = [party.name for party in parties]
    if len(set(names)) < len(names):
        raise InvalidParameterError(f"two parties have the same name: {', '.join(names)}. Rename one.")
    for party in parties:
        if len(party.columns) != people:
            raise InvalidParameterError(
                f"party {party.name!r} has {len(party.columns)} people, and the label party has {people}. "
                "Row i must be the same person everywhere: agree on the people first."
            )
    return people
