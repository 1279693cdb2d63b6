# SPDX-License-Identifier: Apache-2.0
"""A finished run on secret labels: the model, its guarantee, its statement.

Guarantee  Everything in it is public: the model by the guarantee, the rest because it was public before.
"""

import json
from dataclasses import dataclass
from typing import Any

from torch import nn

from sfumato.accounting import events
from sfumato.accounting.guarantee import Guarantee
from sfumato.labels import label_card
from sfumato.labels.request import Method
from sfumato.report import PrivacyCard, notebook
from sfumato.report.cards.words import TUNING_NOT_CHARGED, code_version
from sfumato.training.record import fingerprints
from sfumato.training.run import TrainingRun, sentence

__all__ = ["LabelRun"]


@dataclass(frozen=True, kw_only=True)
class LabelRun:
    """A trained model with its guarantee for labels; `print(run.statement())` says what was done.

    Attributes:
        model: The trained model.
        method: The method of label privacy.
        guarantee: Epsilon, delta, relation and unit of the run.
        accuracy: The accuracy on evaluation data, which is not protected, if there was any.
        training: The training run, of a method that works by noisy gradients.
        study_note: Why the noise protects nobody, if it was seeded.
        account: The name of the account that was charged.
        record_note: What must be said of a run that no ledger keeps.
    """

    model: nn.Module
    method: Method
    guarantee: Guarantee
    accuracy: float | None
    training: TrainingRun | None = None
    study_note: str | None = None
    account: str | None = None
    record_note: str | None = None

    @property
    def recorded(self) -> bool:
        """Whether a ledger keeps the run."""
        return self.account is not None and self.record_note is None

    @property
    def epsilon(self) -> float:
        """The epsilon of the guarantee."""
        return self.guarantee.epsilon

    def card(self, *, title: str | None = None) -> PrivacyCard:
        """Return the privacy card of the run, for those who use the model.

        Args:
            title: The title of the card. Default: the method.

        Returns:
            The card.
        """
        name = f"A model trained by {self.method.name}" if title is None else title
        if self.training is not None:
            return label_card.of_training(
                self.training.card(title=name), guarantee=self.guarantee, statement=self.statement()
            )
        return label_card.of_released_labels(
            label_card.ReleasedLabels(
                event=self.method.event(),
                method=self.method.name,
                guarantee=self.guarantee,
                study_note=self.study_note,
                account=self.account,
                record_note=self.record_note,
                statement=self.statement(),
                weights_sha256=fingerprints.fingerprint_of(self.model.state_dict()),
                code_version=code_version(),
            ),
            title=name,
        )

    def _repr_html_(self) -> str:
        accuracy = None if self.accuracy is None else f"{self.accuracy:.1%}"
        return notebook.RunView(
            title=f"A run on secret labels: {self.method.name}",
            guarantee=self.guarantee,
            statement=self.statement(),
            facts={"accuracy on evaluation data": accuracy, "account": self.account},
            study_note=self.study_note,
        ).html()

    def to_json(self) -> str:
        """Return everything but the model as JSON.

        Returns:
            The text of `run.json`, with a fingerprint.
        """
        own: dict[str, Any] = {
            "method": self.method.name,
            "accuracy": self.accuracy,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "relation": self.guarantee.relation.value,
            "privacy_unit": self.guarantee.privacy_unit,
            "study_note": self.study_note,
            "recorded": self.recorded,
            "account": self.account,
            "statement": self.statement(),
        }
        told: dict[str, Any] = (
            self._released() if self.training is None else json.loads(self.training.to_json())
        )
        return json.dumps(fingerprints.sealed(told | own), indent=2)

    def _released(self) -> dict[str, Any]:
        """Return what a run says that has no training of its own."""
        return {
            "event": json.loads(events.to_json(self.method.event())),
            "record_note": self.record_note,
            "code_version": code_version(),
            "weights": fingerprints.fingerprint_of(self.model.state_dict()),
        }

    def statement(self) -> str:
        """Return a paragraph for people who must judge the claim.

        Returns:
            What was released, by which method, and the guarantee.
        """
        if self.training is not None:
            return f"{self.training.statement()} {label_card.FEATURES}"
        said = (
            label_card.released_once(self.method.name),
            f"The releases satisfy {self.guarantee}. {label_card.FEATURES}",
            TUNING_NOT_CHARGED,
            f"The run was charged to account {self.account!r}." if self.account else None,
            sentence(self.record_note),
            sentence(self.study_note),
        )
        return " ".join(sentence for sentence in said if sentence)
