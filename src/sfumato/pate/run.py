# SPDX-License-Identifier: Apache-2.0
"""Released answers, and the run of a student that learned from them.

Guarantee  Everything here is public: answers by the guarantee of their job, the rest because it was public
           before. Votes, counts and teachers are not here.
"""

import io
import json
import os
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import joblib
import numpy as np
import numpy.typing as npt

from sfumato import _files
from sfumato._seal import sealed
from sfumato.accounting import events
from sfumato.accounting.guarantee import Guarantee
from sfumato.errors import InvalidParameterError
from sfumato.pate import cards
from sfumato.pate.costs import cost_curves
from sfumato.pate.planning import Job
from sfumato.pate.votes.aggregators import NO_ANSWER
from sfumato.pate.votes.stability import StableLabeling
from sfumato.report import PrivacyCard, VotingFacts, notebook, voting_report, write_report

__all__ = ["PateRun", "ReleasedAnswers", "Verdict"]

STUDENT = "student.joblib"
_ANSWERS, _FACTS, _RUN = cards.ANSWERS, cards.FACTS, cards.RUN
PAID_FILES = (_ANSWERS, _FACTS)
FILES = (*PAID_FILES, _RUN, STUDENT)
_UNTESTED = (
    "Agreement was not tested: the budget covers as many queries, or more of them, whatever the votes are."
)


class Verdict(Protocol):
    """What an audit found."""

    def statement(self) -> str:
        """Return it in a sentence."""
        ...

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleasedAnswers:
    """The answers of one labeling job: one release.

    Attributes:
        classes: The number of each public row's class, or -1 if it was not asked or not answered.
        guarantee: The guarantee, which holds for all units.
        guarantees: The guarantee of each privacy group.
        facts: How the answers were made, as plain values: aggregator, teachers, queries and event.
        account: The names of the accounts that were charged.
        record_note: What must be said of a job that no ledger keeps.
        study_note: Why the noise protects nobody, if it was seeded.
        audit: What canaries showed, if there were any.
        job: The job, as it was planned.
        names: The labels, in the order of class numbers.
    """

    classes: npt.NDArray[np.int64]
    guarantee: Guarantee
    guarantees: tuple[Guarantee, ...]
    facts: dict[str, Any]
    account: str | None = None
    record_note: str | None = None
    study_note: str | None = None
    audit: Verdict | None = None
    job: Job | None = field(default=None, repr=False)
    names: tuple[Hashable, ...] = ()

    @property
    def per_class(self) -> dict[str, int]:
        """How many answers each class has, by its name."""
        found = Counter(self.classes.tolist())
        return {str(name): found[number] for number, name in enumerate(self.names)}

    @property
    def answered(self) -> int:
        """How many public rows were answered."""
        return int((self.classes != NO_ANSWER).sum())

    @property
    def asked(self) -> int:
        """How many public rows the teachers were asked about."""
        return int(self.facts["queries"])

    def _repr_html_(self) -> str:
        return self.view(title="Answers of private teachers", statement=self.statement(), accuracy=None)

    def view(self, *, title: str, statement: str, accuracy: float | None) -> str:
        """Return the answers as a notebook shows them.

        Args:
            title: The title.
            statement: The paragraph that states the claim.
            accuracy: The accuracy of a student, if there is one.

        Returns:
            The markup.
        """
        return notebook.RunView(
            title=title,
            guarantee=self.guarantee,
            statement=statement,
            facts={
                "aggregator": self.facts["aggregator"],
                "teachers": self.facts["teachers"],
                "answers": f"{self.answered:,} of {self.asked:,}",
                "student accuracy on evaluation data": None if accuracy is None else f"{accuracy:.1%}",
                "account": self.account,
            },
            figures=[notebook.bars(self.per_class, title="Answers of each class")],
            study_note=self.study_note,
        ).html()

    def statement(self) -> str:
        """Return a paragraph for people who must judge the claim.

        Returns:
            What was released, how, and the guarantee.
        """
        groups = "; ".join(f"group {number}: {promise}" for number, promise in enumerate(self.guarantees))
        parts = "disjoint parts" if self.facts["disjoint"] else "overlapping parts"
        said = (
            f"{self.facts['teachers']} teachers learned from {parts} of the private data, and voted on "
            f"{self.asked} public rows. {self.answered} of them were answered by {self.facts['aggregator']}.",
            self.facts["test"],
            f"The answers satisfy {self.guarantee}.",
            f"By privacy group: {groups}." if len(self.guarantees) > 1 else None,
            cards.PUBLIC,
            f"The job was charged to {self.account}." if self.account else None,
            None if self.audit is None else self.audit.statement(),
            _sentence(self.record_note),
            _sentence(self.study_note),
        )
        return " ".join(sentence for sentence in said if sentence)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the answers as plain values.

        Returns:
            The values, by name.
        """
        return {
            **self.facts,
            "answered": self.answered,
            "guarantee": self.guarantee.to_dict(),
            "groups": [promise.to_dict() for promise in self.guarantees],
            "account": self.account,
            "recorded": self.account is not None and self.record_note is None,
            "record_note": self.record_note,
            "study_note": self.study_note,
            "audit": None if self.audit is None else self.audit.to_dict(),
            "audit_statement": None if self.audit is None else self.audit.statement(),
            "statement": self.statement(),
            "answers_sha256": cards.fingerprint_of(self.classes),
            "code_version": version("sfumato"),
        }

    def card(self, *, title: str | None = None) -> PrivacyCard:
        """Return the privacy card of the answers, for those who learn from them.

        Args:
            title: The title of the card. Default: the aggregator.

        Returns:
            The card.
        """
        return cards.card_of(self.to_dict(), title=title)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the answers, and what they are, into a folder.

        Args:
            folder: The folder. It is made if needed.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        _files.write_whole(place / _ANSWERS, lambda file: np.save(file, self.classes, allow_pickle=False))
        _files.write_whole(place / _FACTS, json.dumps(sealed(self.to_dict()), indent=2).encode())

    @staticmethod
    def load_classes(folder: str | os.PathLike[str]) -> npt.NDArray[np.int64]:
        """Return the classes that were saved in a folder, so that another student costs nothing.

        Args:
            folder: The folder.

        Returns:
            The class of each public row, or -1.

        Raises:
            InvalidParameterError: If the folder holds no answers.
        """
        try:
            return np.load(Path(folder) / _ANSWERS, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InvalidParameterError(f"{folder} holds no answers of a labeling job.") from error


def facts_of(job: Job, *, expected: bool = False) -> dict[str, Any]:
    """Return how answers are made, as plain values; `expected` is whether agreement was expected."""
    individual = None if isinstance(job, StableLabeling) else job.individual
    return {
        "aggregator": job.aggregator.name,
        "teachers": job.teachers,
        "queries": job.queries,
        "disjoint": individual is None or max(individual.copies()) == 1,
        "individual": None if individual is None else getattr(individual.method, "value", None),
        "event": json.loads(events.to_json(job.event())),
        "test": _UNTESTED if expected and not isinstance(job, StableLabeling) else _test(job),
    }


def _test(job: Job) -> str | None:
    if not isinstance(job, StableLabeling):
        return None
    if job.fallback >= job.queries:
        return (
            f"A noisy test of agreement was made, but the budget covers all {job.queries} answers whatever "
            "the votes are. The guarantee covers the test."
        )
    return (
        f"A noisy test decided whether teachers agreed enough for all {job.queries} answers; if it fails, "
        f"only the first {job.fallback} queries are answered. The guarantee covers the test, and holds for "
        "all votes."
    )


def _sentence(note: str | None) -> str | None:
    return None if note is None else f"{note[0].upper()}{note[1:]}."


@dataclass(frozen=True, kw_only=True, eq=False)
class PateRun:
    """A student, the answers it learned from, and their guarantee. No times: those of teachers are private.

    Attributes:
        student: The fitted student, with `predict`.
        answers: The released answers.
        accuracy: The accuracy of the student on evaluation data, which is not protected, if there was any.
    """

    student: Any = field(repr=False)
    answers: ReleasedAnswers
    accuracy: float | None = None

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the answers, and so of the student."""
        return self.answers.guarantee

    @property
    def epsilon(self) -> float:
        """The epsilon of the guarantee."""
        return self.guarantee.epsilon

    def statement(self) -> str:
        """Return a paragraph for people who must judge the claim.

        Returns:
            What was released, how, and the guarantee.
        """
        return (
            f"{self.answers.statement()} The student learned from public rows and these answers alone. "
            "Tuning is not charged."
        )

    def _repr_html_(self) -> str:
        title = "A student of private teachers"
        return self.answers.view(title=title, statement=self.statement(), accuracy=self.accuracy)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the student and the statement into a folder.

        Args:
            folder: The folder. It is made if needed. The student is a pickle of joblib.

        Raises:
            InvalidParameterError: If the student cannot be pickled. The rest is written.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        _files.write_whole(place / _RUN, self.to_json().encode())
        content = io.BytesIO()
        try:
            joblib.dump(self.student, content)
        except Exception as error:
            raise InvalidParameterError(
                f"the student cannot be pickled, so {place} holds the answers without it: {error}"
            ) from error
        _files.write_whole(place / STUDENT, content.getvalue())

    @staticmethod
    def load_student(folder: str | os.PathLike[str]) -> Any:
        """Return the student of a folder. Load only files that you trust: a pickle can run any code.

        Args:
            folder: The folder of a run.

        Returns:
            The fitted student, with `predict`.

        Raises:
            InvalidParameterError: If the folder holds no student.
        """
        place = Path(folder) / STUDENT
        if not place.is_file():
            raise InvalidParameterError(f"{folder} holds no student of a PATE run.")
        return joblib.load(place)

    def to_json(self) -> str:
        """Return everything but the student and the answers as JSON.

        Returns:
            The text, with a fingerprint.
        """
        own = {"accuracy": self.accuracy, "statement": self.statement()}
        return json.dumps(sealed({**self.answers.to_dict(), **own}), indent=2)

    def card(self, *, title: str | None = None) -> PrivacyCard:
        """Return the privacy card of the run, for those who use the student.

        Args:
            title: The title of the card. Default: the aggregator.

        Returns:
            The card.
        """
        own = {"accuracy": self.accuracy, "statement": self.statement()}
        return cards.card_of({**self.answers.to_dict(), **own}, title=title)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "A student of private teachers",
        data: str = "private data",
        settings: Mapping[str, object] | None = None,
        ledger_statement: str | None = None,
    ) -> None:
        """Write one HTML page about the run: guarantee, answers of each class, cost, statement.

        Args:
            path: Where to write the page.
            title: Its title.
            data: The name of the data.
            settings: Public settings to show, by name.
            ledger_statement: The statement of the account that was charged, to show it too.

        Raises:
            OSError: If the page cannot be written.
        """
        answers = self.answers
        facts = VotingFacts(
            data=data,
            guarantee=self.guarantee,
            statement=self.statement(),
            teachers=answers.facts["teachers"],
            asked=answers.asked,
            answered=answers.answered,
            aggregator=answers.facts["aggregator"],
            guarantees=answers.guarantees,
            per_class=answers.per_class,
            costs={} if answers.job is None else cost_curves(answers.job),
            test=answers.facts["test"],
            accuracy=self.accuracy,
            settings=settings or {},
            audit=None if answers.audit is None else answers.audit.statement(),
            study_note=answers.study_note,
        )
        write_report(path, voting_report(facts, title=title, ledger_statement=ledger_statement))
