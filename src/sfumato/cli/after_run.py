# SPDX-License-Identifier: Apache-2.0
"""What every `sfumato train` shows when it is done, whatever is secret: facts, notes, and a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from sfumato.accounting import Guarantee, round_up
from sfumato.accounting.default_delta import delta_note
from sfumato.cli.own_data import OwnData
from sfumato.cli.settings import TrainSettings
from sfumato.cli.show import show_facts, show_text
from sfumato.datasets import Dataset
from sfumato.labels.label_run import LabelRun
from sfumato.ledger import Account
from sfumato.report import Measurement, TrainingFacts, training_report, write_report
from sfumato.training import TrainingRun, distributed
from sfumato.training.privacy.dp_sgd import DpSgd

__all__ = ["Outcome", "show", "write_page"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run, by rows or by labels, as far as it is shown."""

    settings: TrainSettings
    data: Dataset | OwnData
    model: nn.Module
    name: str  # of the model, or of the method
    guarantee: Guarantee
    statement: str
    accuracy: float | None
    recorded: bool
    account: str | None
    record_note: str | None  # what must be said of a run that no ledger keeps
    study_note: str | None  # ... and of noise that was not secure
    history: Sequence[Measurement] = ()
    mechanism: DpSgd | None = None  # of noisy steps

    @classmethod
    def of(
        cls,
        done: TrainingRun | LabelRun,
        training: TrainingRun | None,
        *,
        settings: TrainSettings,
        data: Dataset | OwnData,
        name: str,
    ) -> "Outcome":
        """Return what is shown of a run; `training` is its part with noisy steps, where it has one."""
        return cls(
            settings=settings,
            data=data,
            model=done.model,
            name=name,
            guarantee=done.guarantee,
            statement=done.statement(),
            accuracy=done.accuracy,
            recorded=done.recorded,
            account=done.account,
            record_note=done.record_note,
            study_note=done.study_note,
            history=() if training is None else training.history,
            mechanism=None if training is None else training.mechanism,
        )

    @property
    def described(self) -> str:
        """What was trained, in a few words."""
        return f"{self.name}, {sum(p.numel() for p in self.model.parameters()):,} parameters"

    @property
    def large(self) -> str | None:
        """A note on a delta that promises little."""
        return delta_note(self.guarantee.delta, self.data.public_size)


def write_page(outcome: Outcome, account: Account | None) -> None:
    """Write the page of a run, where one was asked for; of several processes the first does."""
    if outcome.settings.report is None or distributed.global_rank() != 0:
        return
    settings = {name.replace("_", " "): value for name, value in outcome.settings.given().items()}
    facts = TrainingFacts(
        data=outcome.data.name,
        model=outcome.described,
        guarantee=outcome.guarantee,
        statement=outcome.statement,
        history=outcome.history,
        settings=settings | _noise(outcome.mechanism),
        study_note=outcome.study_note,
    )
    ledger_statement = None if account is None else account.statement().text
    title = f"{outcome.data.name}, learned privately"
    write_report(
        outcome.settings.report, training_report(facts, title=title, ledger_statement=ledger_statement)
    )


def _noise(mechanism: DpSgd | None) -> dict[str, str]:
    if mechanism is None:
        return {}
    # Rounded down: noise is not overstated.
    return {"noise multiplier": ", ".join(f"{-round_up(-n, 6):g}" for n, _ in mechanism.noise)}


def show(outcome: Outcome, told: dict[str, Any], *, as_json: bool, remarks: Sequence[str] = ()) -> None:
    """Show a run: all that is `told` to programs; facts, the statement and some remarks to people."""
    if as_json:
        said = outcome.record_note, outcome.study_note, outcome.large
        notes = [note for note in said if note is not None]
        show_facts("", told | {"notes": notes}, as_json=True)
        return
    facts = {name: value for name, value in _facts(outcome).items() if value is not None}
    show_facts(str(outcome.guarantee), facts, as_json=False)
    show_text(f"\n{outcome.statement}")
    if outcome.large is not None:
        show_text(f"\nNote: {outcome.large}.")
    for remark in remarks:
        show_text(f"\n{remark}")


def _facts(outcome: Outcome) -> dict[str, Any]:
    label = outcome.settings.private == "labels"
    return {
        "data": outcome.data.name,
        "method": outcome.name if label else None,
        "model": None if label else outcome.described,
        "accuracy": None if outcome.accuracy is None else f"{outcome.accuracy:.1%}",
        "epsilon": outcome.guarantee.epsilon,
        "delta": outcome.guarantee.delta,
        "relation": outcome.guarantee.relation.value,
        "privacy_unit": outcome.guarantee.privacy_unit,
        "steps": None if outcome.mechanism is None else outcome.mechanism.steps,
        "recorded": outcome.recorded,
        "account": outcome.account,
        "folder": outcome.settings.folder,
        "report": outcome.settings.report,
    }
