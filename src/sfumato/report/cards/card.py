# SPDX-License-Identifier: Apache-2.0
"""A privacy card: what was released, who is protected, how well, and what is not protected.

A card is made of facts that were released or public before. It is written as Markdown, as an HTML page, as
JSON and as the header of a model card of Hugging Face.

Guarantee  Epsilon and delta are shown rounded up, the lower bound of an audit rounded down. A card of noise
           that does not protect begins with a warning and carries no tag that calls it private.
Not here   Where facts come from: a run, a release or an account makes its own card (`run.card()`). No card
           holds a time of day: how long something took can depend on private rows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sfumato import _check, _json
from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.errors import InvalidParameterError
from sfumato.report.cards import contents, markdown, page, yaml_header

__all__ = ["CardAudit", "CardTable", "PrivacyCard"]

VERSION = 1  # of the layout of the JSON
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class _Verdict(Protocol):
    """What an audit found."""

    def statement(self) -> str: ...

    def to_dict(self) -> dict[str, object]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CardAudit:
    """What an audit showed about a claim.

    Args:
        statement: The result in sentences.
        epsilon_lower_bound: The largest lower bound on epsilon; None if there is none.
        confidence: The confidence of that bound; None if there is none.
        refuted: Whether the audit shows that the claim is false.
    """

    statement: str
    epsilon_lower_bound: float | None = None
    confidence: float | None = None
    refuted: bool = False

    @classmethod
    def of(cls, verdict: _Verdict | None) -> "CardAudit | None":
        """Return the facts of a verdict.

        Args:
            verdict: What an audit found; None if none was made.

        Returns:
            The facts; None if no audit was made.
        """
        return None if verdict is None else cls.read(verdict.to_dict(), verdict.statement())

    @classmethod
    def read(cls, found: Mapping[str, Any], statement: str) -> "CardAudit":
        """Return the facts of a verdict that was written as plain values.

        Args:
            found: The result as plain values.
            statement: The result in sentences.

        Returns:
            The facts.
        """
        listed: Any = found.get("bounds", ())
        bounds = [(float(bound["epsilon"]), float(bound["confidence"])) for bound in listed]
        best = max(bounds, default=(None, None))  # the largest bound, as a result of an audit names it
        return cls(
            statement=statement,
            epsilon_lower_bound=best[0],
            confidence=best[1],
            refuted=bool(found.get("refuted", False)),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the facts as plain values.

        Returns:
            The values, by name.
        """
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class CardTable:
    """A table on a card.

    Args:
        title: What it shows.
        heads: The names of its columns.
        rows: Its rows, each with one entry for each column; None is an empty cell.

    Raises:
        InvalidParameterError: If a row has more or fewer entries than there are columns.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.heads) for row in self.rows):
            raise InvalidParameterError("every row of a table needs one entry for each column.")

    def to_dict(self) -> dict[str, object]:
        """Return the table as plain values.

        Returns:
            Its title, and its rows as objects.
        """
        rows = [dict(zip(self.heads, row, strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows}


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyCard:
    """What a release promises, on one page. Runs, releases and accounts make their own: `run.card()`.

    Attributes:
        title: The title, such as the name of a model.
        released: What was released, as the beginning of a sentence: "the model", "the mean of age".
        data: What a protected unit is or is not in, such as "the training data".
        covers: What the guarantee is about, such as "this run alone".
        guarantee: Epsilon, delta, relation and privacy unit.
        theorem: What the upper bound on epsilon rests on; empty if nothing was proved by an accountant.
        accountant: The accountant that gave it, by its name.
        further: Further guarantees of the same release, by name, such as one against a server.
        mechanism: How units are protected: sampling, clipping and noise, in sentences.
        tuning_charged: Whether the choice of hyper-parameters is part of the guarantee; None if this cannot
            be known, as of an account, which holds whatever was charged to it.
        numerics: What is exact and what is floating point, in sentences.
        study_note: Why the noise does not protect anyone, if it does not.
        audit: What an audit showed; None if none was made.
        account: The name of the account that was charged.
        release_number: The place among the releases of the account, as statements print it.
        record_note: What must be said of a release that no ledger keeps.
        not_protected: What is not protected, in sentences, beside what never is.
        facts: Further public facts, by name, such as the number of steps.
        tables: Tables, such as the releases of an account.
        statement: The paragraph for people who must judge the claim.
        weights_sha256: The fingerprint of the weights.
        code_version: The version of sfumato that made the release.
        finished: The day on which the release was finished, as 2026-01-31.

    Raises:
        InvalidParameterError: If a text is empty, or `finished` is more than a day.

    >>> from sfumato.accounting import Relation
    >>> guarantee = Guarantee(epsilon=2, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="patient")
    >>> card = PrivacyCard(title="A model", released="the model", guarantee=guarantee)
    >>> card.metadata()["differential_privacy"]["privacy_unit"]
    'patient'
    >>> print(card.to_markdown().splitlines()[0])
    # Privacy card: A model
    """

    title: str
    released: str
    guarantee: Guarantee
    data: str = "the training data"
    covers: str = "this run alone"
    theorem: str = ""
    accountant: str | None = None
    further: Mapping[str, Guarantee] = field(default_factory=dict[str, Guarantee])
    mechanism: tuple[str, ...] = ()
    tuning_charged: bool | None = False
    numerics: tuple[str, ...] = ()
    study_note: str | None = None
    audit: CardAudit | None = None
    account: str | None = None
    release_number: int | None = None
    record_note: str | None = None
    not_protected: tuple[str, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    tables: tuple[CardTable, ...] = ()
    statement: str = ""
    weights_sha256: str | None = None
    code_version: str | None = None
    finished: str | None = None

    def __post_init__(self) -> None:
        _check.text(title=self.title)
        _check.text(released=self.released)
        if self.finished is not None and not _DAY.fullmatch(self.finished):
            raise InvalidParameterError(
                "finished must be a day, such as 2026-01-31. A time of day is left out: how long a run took "
                "can depend on private rows."
            )

    @property
    def protects(self) -> bool:
        """Whether the noise protects, and no audit shows that the claim is false."""
        return self.study_note is None and not (self.audit is not None and self.audit.refuted)

    def to_markdown(self) -> str:
        """Return the card as Markdown, without a header for programs (`to_model_card`).

        Returns:
            The text. Names that look like markup are shown as text.
        """
        return markdown.written(contents.title_of(self), contents.parts_of(self))

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def to_html(self) -> str:
        """Return the card as an HTML page, which loads nothing and runs nothing.

        Returns:
            The page.
        """
        return page.written(contents.title_of(self), contents.parts_of(self))

    def to_json(self) -> str:
        """Return the card for programs. Numbers are not rounded; one that is infinite is null.

        Returns:
            The JSON text.
        """
        return _json.dumps(self.to_dict())

    def to_dict(self) -> dict[str, object]:
        """Return the card as plain values.

        Returns:
            The values, by name.
        """
        own = {name: getattr(self, name) for name in _PLAIN}
        return {
            "format": "sfumato privacy card",
            "version": VERSION,
            **own,
            "protects": self.protects,
            "guarantee": self.guarantee.to_dict(),
            "further": {name: promised.to_dict() for name, promised in self.further.items()},
            "in_plain_words": contents.plain_words_of(self),
            "not_protected": list(contents.unprotected(self)),
            "audit": None if self.audit is None else self.audit.to_dict(),
            "facts": dict(self.facts),
            "tables": [table.to_dict() for table in self.tables],
        }

    def metadata(self) -> dict[str, Any]:
        """Return the facts for the YAML header of a model card of Hugging Face.

        The Hub reads `tags` and keeps other keys as they are. Epsilon and delta are rounded up.

        Returns:
            `tags`, which do not call a release private whose noise does not protect; and
            `differential_privacy` with the facts, none of which is None.
        """
        tags = ["differential-privacy", "sfumato"] if self.protects else ["sfumato"]
        bound = None if self.audit is None else self.audit.epsilon_lower_bound
        facts = {
            "protects": self.protects,
            "epsilon": round_up(self.guarantee.epsilon),
            "delta": round_up(self.guarantee.delta),
            "relation": self.guarantee.relation.value,
            "privacy_unit": self.guarantee.privacy_unit,
            "accountant": self.accountant,
            "theorem": self.theorem or None,
            "mechanism": " ".join(self.mechanism) or None,
            "tuning_charged": self.tuning_charged,
            "secure_noise": self.study_note is None,
            "audit_epsilon_lower_bound": None if bound is None else -round_up(-bound, 3),
            "account": self.account,
            "release_number": self.release_number,
            "weights_sha256": self.weights_sha256,
            "code_version": self.code_version,
            "finished": self.finished,
        }
        return {
            "tags": tags,
            "differential_privacy": {name: value for name, value in facts.items() if value is not None},
        }

    def header(self) -> str:
        """Return `metadata` as the YAML header of a model card, between its two lines of dashes.

        Returns:
            The text.
        """
        return yaml_header.written(self.metadata())

    def to_model_card(self) -> str:
        """Return the `README.md` of a model on Hugging Face: the header, then the card as Markdown.

        Returns:
            The text.
        """
        return f"{self.header()}\n{self.to_markdown()}"


_PLAIN = (
    "title",
    "released",
    "theorem",
    "accountant",
    "mechanism",
    "tuning_charged",
    "numerics",
    "study_note",
    "account",
    "release_number",
    "record_note",
    "statement",
    "weights_sha256",
    "code_version",
    "finished",
)
