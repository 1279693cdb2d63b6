# SPDX-License-Identifier: Apache-2.0
"""What a finished run hands over: the model, what it cost, how it went, and the paragraph that says so.

Everything here is public: the model by the run's guarantee, the rest because it was public before. Times are
not here: how long a step or a run takes depends on private rows.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from sfumato.accounting import events
from sfumato.accounting.guarantee import Guarantee
from sfumato.accounting.price import Price
from sfumato.errors import UnsupportedUseError
from sfumato.report import PrivacyCard, TrainingFacts, notebook, training_report, write_report
from sfumato.report.cards.words import TUNING_NOT_CHARGED, code_version
from sfumato.report.training import curves
from sfumato.training.engine.contributions import Federation
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.record import fingerprints, mechanism_words, run_card
from sfumato.training.record.mechanism_json import mechanism_from, plain_mechanism
from sfumato.training.record.metrics import Metrics
from sfumato.training.record.run_folder import CheckpointError, RunFolder
from sfumato.training.run_audit import Verdict
from sfumato.training.sharding import states

__all__ = ["LoadedVerdict", "TrainingRun", "loaded", "sentence", "unchanged"]


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A trained model with its guarantee; `print(run.statement())` says what was done.

    Attributes:
        model: The trained model.
        mechanism: What was run: sampling, clipping, noise and steps.
        price: What it cost, as a certified interval.
        privacy_unit: Who is protected.
        expected_batch_size: The public number that noisy sums were divided by.
        history: Metrics during the run.
        evaluated: Whether there was evaluation data.
        rows_note: What must be said of the rows of one unit, if a unit is no row.
        stopped_after: How many steps were taken, if the run was stopped before its last one.
        denoised: What units contributed in place of gradients, and what was done to noisy ones, if anything.
        federation: What is said of clients, if units are clients and steps are rounds.
        audit: What canaries showed, if there were any.
        study_note: Why the noise protects nobody, if it was seeded.
        account: The name of the account that was charged.
        reservation: The number of the charge.
        release_number: The place of the run among the account's releases, as statements print it.
        finished: The day on which the run ended, in universal time. How long it took is not kept.
        record_note: What must be said of a run that no ledger keeps.
        settings_sha256: Fingerprint of the settings file in the folder.
        weights_sha256: Fingerprint of the weights that the run ended with.
        code_version: The version of sfumato that made the run.
    """

    model: nn.Module
    mechanism: DpSgd
    price: Price
    privacy_unit: str
    expected_batch_size: float
    history: tuple[Metrics, ...]
    evaluated: bool
    rows_note: str | None = None
    stopped_after: int | None = None
    denoised: str | None = None
    federation: Federation | None = None
    audit: Verdict | None = None
    study_note: str | None = None
    account: str | None = None
    reservation: int | None = None
    release_number: int | None = None
    finished: str | None = None
    record_note: str | None = None
    settings_sha256: str | None = None
    weights_sha256: str | None = None
    code_version: str = field(default_factory=code_version)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], model: nn.Module | None = None) -> "TrainingRun":
        """Return the finished run in a folder.

        Args:
            folder: Where the run was kept.
            model: A module of the trained architecture, which gets the weights. Without it the run has its
                weights (`run.model.state_dict()`) and cannot predict.

        Returns:
            The run: its guarantee, its statement, its metrics and its model.

        Raises:
            CheckpointError: If there is no finished run, or its files were changed or damaged.
        """
        return loaded(folder, model)

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any], model: nn.Module) -> "TrainingRun":
        """Return the run that wrote some facts.

        Args:
            facts: The facts, as `to_json` writes them.
            model: The model with the weights of the run.

        Returns:
            The run.

        Raises:
            ValueError: If the steps do not have the price that the facts state.
        """
        mechanism = mechanism_from(facts["mechanism"])
        price = mechanism.price(delta=facts["delta"])
        if price.epsilon != facts["epsilon"]:
            raise ValueError("the steps of the run do not have the price that its file states")
        same = ("privacy_unit", "expected_batch_size", "evaluated", "denoised", "study_note")
        same += ("account", "reservation", "release_number", "finished", "record_note", "settings_sha256")
        same += ("code_version",)
        audit, federation = facts["audit"], facts.get("federation")
        return cls(
            model=model,
            mechanism=mechanism,
            price=price,
            weights_sha256=facts["weights"],
            history=tuple(Metrics.from_dict(row) for row in facts["history"]),
            audit=None if audit is None else LoadedVerdict(audit, facts["audit_statement"]),
            federation=None if federation is None else Federation(**federation),
            stopped_after=facts.get("stopped_after"),  # files of earlier versions have none
            rows_note=facts.get("rows_note"),
            **{name: facts[name] for name in same},
        )

    def report(self, path: str | os.PathLike[str], *, title: str = "A private training run") -> None:
        """Write one HTML page about the run: guarantee, curves, statement.

        Args:
            path: Where to write the page.
            title: Its title.

        Raises:
            OSError: If the page cannot be written.
        """
        write_report(path, training_report(self._facts(), title=title))

    def _facts(self) -> TrainingFacts:
        return TrainingFacts(
            data="private",
            model=self._model_description(),
            guarantee=self.guarantee,
            statement=self.statement(),
            history=self.history,
            study_note=self.study_note,
            step=self.words.step,
        )

    def _repr_html_(self) -> str:
        accuracy = None if self.accuracy is None else f"{self.accuracy:.1%}"
        return notebook.RunView(
            title=f"A private training run: {self._model_description()}",
            guarantee=self.guarantee,
            statement=self.statement(),
            facts={
                f"noisy {self.words.step}s": self.mechanism.steps,
                "accuracy on evaluation data": accuracy,
                "account": self.account,
            },
            figures=curves(self._facts()),
            study_note=self.study_note,
        ).html()

    def card(self, *, title: str | None = None) -> PrivacyCard:
        """Return the privacy card of the run, for those who use the model.

        Args:
            title: The title of the card. Default: the kind of the model and its size.

        Returns:
            The card: `to_markdown()`, `to_html()`, `to_json()`, and `metadata()` for a model card of Hugging
            Face.
        """
        return run_card.card_of(self, title=title, model=self._model_description())

    @property
    def recorded(self) -> bool:
        """Whether a ledger keeps the run."""
        return self.account is not None and self.record_note is None

    @property
    def guarantee(self) -> Guarantee:
        """Epsilon, delta, relation and privacy unit of the whole run, all intermediate weights included."""
        fact = None if self.federation is None else self.federation.public_fact
        return replace(self.price.guarantee(self.privacy_unit), public_fact=fact)

    @property
    def against_server(self) -> Guarantee | None:
        """The guarantee against a server that sees noisy sums and knows whom it asked; None without sums.

        `DpSgd.price_against_server` says what it counts.
        """
        paid = self.mechanism.price_against_server(delta=self.price.delta)
        return None if paid is None else paid.guarantee(self.privacy_unit)

    @property
    def epsilon(self) -> float:
        """The epsilon of the guarantee."""
        return self.price.epsilon

    @property
    def accuracy(self) -> float | None:
        """The last accuracy on evaluation data, if there was any."""
        return self.history[-1].accuracy if self.history else None

    def statement(self) -> str:
        """Return a paragraph for people who must judge the claim.

        Returns:
            What was done, and the guarantee.
        """
        return " ".join(sentence for sentence in self._sentences() if sentence)

    def _sentences(self) -> Sequence[str | None]:
        words = self.words
        server = self.against_server
        return (
            words.trained(self.mechanism.steps),
            *mechanism_words.told(
                self.mechanism, unit=self.privacy_unit, divided_by=self.expected_batch_size, words=words
            ),
            self.rows_note,
            self.denoised,
            None
            if self.stopped_after is None
            else f"The run was stopped after {self.stopped_after} of these steps; all of them are charged.",
            f"All weights together, intermediate ones included, satisfy {self.guarantee}.",
            None if self.federation is None and server is None else mechanism_words.against_whom(server),
            f"Epsilon is an upper bound, by {self.price.theorem}.",
            TUNING_NOT_CHARGED,
            None if self.audit is None else self.audit.statement(),
            run_card.EVALUATION if self.evaluated else None,
            f"The run is release {self.release_number} of account {self.account!r}."
            if self.account
            else None,
            sentence(self.record_note),
            sentence(self.study_note),
        )

    @property
    def words(self) -> mechanism_words.Words:
        """What the run calls its steps and the contributions of units."""
        return mechanism_words.STEPS if self.federation is None else mechanism_words.ROUNDS

    def to_json(self) -> str:
        """Return everything but the model as JSON.

        Returns:
            The text of `run.json`, with a fingerprint.
        """
        facts: dict[str, Any] = {
            "steps": self.mechanism.steps,
            "epsilon": self.price.epsilon,
            "epsilon_lower": self.price.lower,
            "delta": self.price.delta,
            "relation": self.price.relation.value,
            "privacy_unit": self.privacy_unit,
            "accountant": self.price.accountant.value,
            "event": json.loads(events.to_json(self.mechanism.event())),
            "noise": [list(part) for part in self.mechanism.noise],
            "mechanism": plain_mechanism(self.mechanism),
            "evaluated": self.evaluated,
            "rows_note": self.rows_note,
            "stopped_after": self.stopped_after,
            "denoised": self.denoised,
            "federation": None if self.federation is None else asdict(self.federation),
            "against_server": None if self.against_server is None else self.against_server.to_dict(),
            "record_note": self.record_note,
            "audit_statement": None if self.audit is None else self.audit.statement(),
            "expected_batch_size": self.expected_batch_size,
            "study_note": self.study_note,
            "audit": None if self.audit is None else self.audit.to_dict(),
            "recorded": self.recorded,
            "account": self.account,
            "release_number": self.release_number,
            "reservation": self.reservation,
            "history": [row.to_dict() for row in self.history],
            "statement": self.statement(),
            "code_version": self.code_version,
            "finished": self.finished,
            "model": self._model_description(),
            "sampling": repr(self.mechanism.sampling),
            "clipping": repr(self.mechanism.step),
            "weights": self.weights_sha256 or fingerprints.fingerprint_of(self.model.state_dict()),
            "settings_sha256": self.settings_sha256,
        }
        return json.dumps(fingerprints.sealed(facts), indent=2)

    def _model_description(self) -> str:
        if isinstance(self.model, LoadedWeights):
            return self.model.described
        count = sum(parameter.numel() for parameter in self.model.parameters())
        return f"{type(self.model).__name__}, {count} parameters"


# --- loaded from a folder --------------------------------------------------------------------------------


def unchanged(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Return the facts and the weights of a finished run; raise if there is none, or a file was changed."""
    place = RunFolder(folder)
    facts, weights = place.read_report(), place.read_weights()
    if fingerprints.fingerprint_of(weights) != facts.get("weights"):
        raise CheckpointError(f"the weights in {str(folder)!r} were changed after the run. Restore them.")
    if "history" in facts:
        place.require_metrics(facts["history"])
    return facts, weights


def loaded(
    folder: str | os.PathLike[str], model: nn.Module | None = None, *, labels: bool = False
) -> TrainingRun:
    """Return the finished run in a folder; with `labels`, the noisy steps of one that protects labels."""
    facts, weights = unchanged(folder)
    report = RunFolder(folder).report
    if "method" in facts and not labels:
        raise CheckpointError(
            f"the run in {str(folder)!r} protects labels alone: its statement is in {report.name}."
        )
    if model is None:
        model = LoadedWeights(weights, described=str(facts.get("model", "a model")))
    else:
        model.load_state_dict(states.placed_all(weights, model.state_dict()))
        model.eval()
    try:
        return TrainingRun.of_facts(facts, model)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the file {str(report)!r} is of another version of sfumato, or damaged ({type(error).__name__})."
        ) from error


class LoadedWeights(nn.Module):
    """The weights of a run whose architecture is not here."""

    def __init__(self, weights: Mapping[str, Tensor], *, described: str) -> None:
        super().__init__()
        self._weights = dict(weights)
        self.described = described

    def state_dict(self, *_args: Any, **_options: Any) -> dict[str, Any]:
        """Return the weights."""
        return dict(self._weights)

    def forward(self, *_rows: Any) -> Tensor:
        """Raise: without the architecture there is nothing to compute."""
        raise UnsupportedUseError(
            "this run was loaded without its model. Pass one: TrainingRun.load(folder, model=...)."
        )


@dataclass(frozen=True)
class LoadedVerdict:
    """What the file of a run says of its audit."""

    facts: Mapping[str, Any]
    sentence: str

    def statement(self) -> str:
        """Return it in a sentence."""
        return self.sentence

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values."""
        return dict(self.facts)


# --- in words --------------------------------------------------------------------------------------------


def sentence(note: str | None) -> str | None:
    """Return a note as a sentence.

    >>> sentence("for study only: the noise was seeded")
    'For study only: the noise was seeded.'
    """
    return f"{note[0].upper()}{note[1:]}." if note else None
