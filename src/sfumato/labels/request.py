# SPDX-License-Identifier: Apache-2.0
"""The checked arguments of a run on secret labels.

Unit       A label, or with `owners` a user: all labels that one owner has.
Failure    `ask` checks everything but the labels: features, sizes, owners, evaluation rows, and the model on
           all features. All of this is public, so a refusal costs nothing and may say why. Of the labels it
           reads only their number and type.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from sfumato.errors import InvalidParameterError
from sfumato.labels.input_checks import (
    ArrayLike,
    check_features,
    check_shape,
    checked_evaluation,
    checked_labels,
    checked_owners,
)
from sfumato.labels.learning import check_model, predictions
from sfumato.labels.methods.noisy_gradients import NoisyGradients
from sfumato.labels.methods.released_labels import ReleasingMethod
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.training.description import Charge

__all__ = ["LabelRequest", "Method", "ask"]

Method = ReleasingMethod | NoisyGradients
_LABELS = "label"  # the privacy unit, unless users own several
_ROWS = (_LABELS, "example", "row")  # units that have one label each


@dataclass(frozen=True, kw_only=True)
class LabelRequest:
    """What a run is about, whatever the method: checked, but for the labels."""

    model: nn.Module
    features: Tensor
    labels: Any = field(repr=False)
    owners: Tensor | None
    evaluation: tuple[Tensor, Tensor] | None
    charge: Charge
    generator: Generator | None

    @property
    def account(self) -> Account | None:
        """The account that pays."""
        return self.charge.account

    @property
    def unit(self) -> str:
        """Who is protected."""
        if self.account is not None:
            return self.account.privacy_unit
        return _LABELS if self.owners is None else "user"

    @property
    def units(self) -> int:
        """How many there are of them; who owns which row is public."""
        return len(self.features if self.owners is None else self.owners.unique())

    def true_labels(self, method: Method) -> Tensor:
        """Return the labels: from here on the run is spent."""
        return checked_labels(self.labels, classes=method.classes, rows=len(self.features))

    def accuracy(self) -> float | None:
        """Return the share of evaluation rows that the model gets right."""
        if self.evaluation is None:
            return None
        features, labels = self.evaluation
        found = predictions(self.model, features).argmax(1)
        return float((found == labels.cpu()).double().mean())


def ask(
    model: nn.Module,
    features: Tensor,
    labels: Any,
    *,
    method: Method,
    owners: ArrayLike | None = None,
    evaluation: tuple[Tensor, ArrayLike] | None = None,
    charge: Charge | None = None,
    generator: Generator | None = None,
) -> LabelRequest:
    """Return the checked request, or refuse what cannot work; no label is read.

    >>> import torch
    >>> from sfumato.labels import RandomizedLabels
    >>> method = RandomizedLabels(epsilon=1.0, classes=3)
    >>> features, labels = torch.zeros(2, 4), torch.tensor([0, 1])
    >>> ask(nn.Linear(4, 3), features, labels, method=method, owners=["ann", "bob"]).unit
    'user'
    >>> ask(nn.Linear(4, 2), features, labels, method=method)
    Traceback (most recent call last):
    sfumato.errors.UnsupportedModelError: the model must return logits, one for each of 3 classes ...
    """
    charge = charge if charge is not None else Charge()
    check_features(features)
    rows, bound = len(features), method.contribution_bound
    check_shape(labels, rows=rows)
    _check_unit(charge, owners, rows=rows, bound=bound)
    request = LabelRequest(
        model=model,
        features=features,
        labels=labels,
        owners=None if owners is None else checked_owners(owners, rows=rows, contribution_bound=bound),
        evaluation=None if evaluation is None else checked_evaluation(evaluation, classes=method.classes),
        charge=charge,
        generator=generator,
    )
    method.check_size(rows=rows, units=request.units)
    for part in (features,) if request.evaluation is None else (features, request.evaluation[0]):
        check_model(model, part, classes=method.classes)
    return request


def _check_unit(charge: Charge, owners: ArrayLike | None, *, rows: int, bound: int) -> None:
    account = charge.account
    if (account is None) != (charge.purpose is None):
        raise InvalidParameterError("an account and a purpose belong together: pass both, or neither.")
    if owners is not None:
        return
    if account is not None and account.privacy_unit not in _ROWS:
        unit = account.privacy_unit
        raise InvalidParameterError(
            f"account {account.name!r} protects one {unit!r}, but nothing says whose the labels are. Pass "
            f"owners=...: torch.arange({rows}) if each row is another {unit}."
        )
    if bound != 1:
        raise InvalidParameterError(
            "contribution_bound is about users who own several labels: pass owners=..."
        )
