# SPDX-License-Identifier: Apache-2.0
"""The settings of a labeling job that are keywords of `label`, `train`, `PrivateData.pate` and the command.

`VoteKeywords` lists them for type checkers and editors; `VoteSettings` holds them, checked. A test compares
the two lists.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypedDict

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.pate.payment import Accounts, accounts_of
from sfumato.pate.planning import Job, plan
from sfumato.pate.run import Verdict
from sfumato.pate.teaching.partition import Partition
from sfumato.pate.teaching.processes import check_workers
from sfumato.pate.votes.aggregators import Aggregator
from sfumato.pate.votes.individual import IndividualBudgets
from sfumato.pate.votes.labeling import Labeling
from sfumato.pate.votes.stability import StableLabeling

__all__ = ["VoteAudit", "VoteKeywords", "VoteSettings"]

_TEACHERS = 250


class VoteAudit(Protocol):
    """An audit of the noise of votes (`sfumato.audit.VoteCanaries` is one)."""

    def attack(self, job: Job, *, privacy_unit: str, generator: Generator | None) -> Verdict:
        """Return what canaries show about the noise of a job.

        Args:
            job: The job.
            privacy_unit: Who is protected.
            generator: Source of randomness of the job.

        Returns:
            What was found.
        """
        ...


class VoteKeywords(TypedDict, total=False):
    """The keywords of `label` and `train`."""

    epsilon: float | None
    delta: float | None
    teachers: int | None
    aggregator: Aggregator | None
    queries: int | None
    agreement: float | Sequence[float] | None
    individual: IndividualBudgets | None
    relation: Relation | str | None
    privacy_unit: str | None
    partition: Partition | None
    account: Accounts | None
    purpose: str | None
    folder: str | os.PathLike[str] | None
    workers: int
    progress: bool
    audit: VoteAudit | None
    rounds: int | None
    generator: Generator | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class VoteSettings:
    """What is claimed, who pays, and where and how teachers are trained.

    Args:
        epsilon: The budget of the job.
        delta: The delta of the guarantee. Default: that of the account's budget.
        teachers: The number of teachers. Default: 250.
        aggregator: How votes become answers. Default: `GNMax`.
        queries: How many public rows to ask about. Default: as many as the budget covers.
        agreement: About which share of the teachers will agree, to answer more queries if they do.
        individual: The epsilons of privacy groups, instead of `epsilon`.
        relation: Which data sets are neighbors. Default: that of the account, or else add-remove.
        privacy_unit: Who is protected, in a word for statements.
        partition: Which teacher learns from which unit. Needs `units`. Default: drawn,
            and with `units` kept in the folder.
        account: The account that pays, or one for each privacy group.
        purpose: What the job is for. The account keeps it.
        folder: Where teachers, which are private, and answers are kept.
        workers: In how many processes teachers learn and vote.
        progress: Whether to show a progress bar.
        audit: `sfumato.audit.VoteCanaries(count=1000)` to audit the noise.
        rounds: In how many rounds `InteractiveGNMax` answers, and no other aggregator. Default: 4.
        generator: Source of noise. None is secure; any other kind is for study only.

    Raises:
        InvalidParameterError: If a number is out of range, or an account comes without a purpose.
    """

    epsilon: float | None = None
    delta: float | None = None
    teachers: int | None = None
    aggregator: Aggregator | None = None
    queries: int | None = None
    agreement: float | Sequence[float] | None = None
    individual: IndividualBudgets | None = None
    relation: Relation | str | None = None
    privacy_unit: str | None = None
    partition: Partition | None = field(default=None, repr=False)
    account: Accounts | None = None
    purpose: str | None = None
    folder: str | os.PathLike[str] | None = None
    workers: int = 1
    progress: bool = True
    audit: VoteAudit | None = None
    rounds: int | None = None
    generator: Generator | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None:
            _check.count(rounds=self.rounds)
        self._require_types()
        check_workers(self.workers)  # teachers would refuse it only after the charge
        if self.account is not None and self.purpose is None:
            raise InvalidParameterError("an account keeps a purpose with every release: pass purpose='...'.")
        if self.account is None and self.purpose is not None:
            raise InvalidParameterError(
                "a purpose is written into an account, but none was given: pass account=..."
            )

    def _require_types(self) -> None:
        """Raise for values that would fail later in words that name no setting."""
        accounts = self.account if isinstance(self.account, list | tuple) else (self.account,)
        if self.account is not None and not (
            accounts and all(isinstance(each, Account) for each in accounts)
        ):
            raise InvalidParameterError(
                "account must be an account, as Ledger(...).open returns it, or one for each privacy group."
            )
        if self.audit is not None and not callable(getattr(self.audit, "attack", None)):
            raise InvalidParameterError("audit must be VoteCanaries(count=...), of sfumato.audit.")
        if self.generator is not None and not callable(getattr(self.generator, "fill", None)):
            raise InvalidParameterError(
                "generator must be None, which is secure, or sfumato.testing.seeded(...) for study."
            )
        if self.partition is not None and not isinstance(self.partition, Partition):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise InvalidParameterError("partition must be a Partition, as Partition.draw(...) returns it.")
        if self.individual is not None and not isinstance(self.individual, IndividualBudgets):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise InvalidParameterError("individual must be IndividualBudgets(...).")

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> "VoteSettings":
        """Return the settings; raise for a keyword that there is not.

        Args:
            keywords: The keywords.

        Returns:
            The settings.

        Raises:
            InvalidParameterError: If a keyword is unknown or out of range.

        >>> VoteSettings.of({"epsilom": 1.0})
        Traceback (most recent call last):
        sfumato.errors.InvalidParameterError: unknown keyword 'epsilom'. Did you mean 'epsilon'?
        """
        _check.keywords(keywords, [each.name for each in fields(cls)])
        return cls(**keywords)

    def job(self, given: Job | None, *, public_rows: int) -> Job:
        """Return the job: the given one, or the one that these settings describe.

        Args:
            given: A job, as `pate.plan` returns it, or None.
            public_rows: How many public rows there are to ask about.

        Returns:
            The job.

        Raises:
            InvalidParameterError: If a setting is missing or out of range, or a job and its settings are
                both given.
        """
        if public_rows == 0:
            raise InvalidParameterError("there are no public rows to ask about, and none for a student.")
        planned = (
            "epsilon",
            "delta",
            "teachers",
            "aggregator",
            "queries",
            "agreement",
            "individual",
            "relation",
        )
        if given is not None:
            if not isinstance(given, Labeling | StableLabeling):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
                raise InvalidParameterError("job must be a job, as pate.plan(...) returns it.")
            twice = [name for name in planned if getattr(self, name) is not None]
            if twice:
                raise InvalidParameterError(f"{twice[0]} is part of the job: leave one of them out.")
            self._require_rows(given, public_rows)
            return given
        most = self._planned(self.queries)
        if self.queries is None and most.queries > public_rows:
            return self._planned(public_rows)  # for so few, a test of agreement may buy nothing
        self._require_rows(most, public_rows)
        return most

    def _planned(self, queries: int | None) -> Job:
        return plan(
            epsilon=self.epsilon,
            delta=self._delta(),
            teachers=_TEACHERS if self.teachers is None else self.teachers,
            aggregator=self.aggregator,
            queries=queries,
            agreement=self.agreement,
            individual=self.individual,
            relation=self._relation(),
        )

    def _require_rows(self, job: Job, public_rows: int) -> None:
        if job.queries > public_rows:
            raise InvalidParameterError(
                f"the job asks about {job.queries} public rows, but there are {public_rows}. Give more, or "
                f"plan with queries={public_rows}."
            )

    def _first_account(self) -> Any:
        if self.account is None:
            return None
        return self.account if isinstance(self.account, Account) else self.account[0]

    def _delta(self) -> float:
        if self.delta is not None:
            return self.delta
        if self.individual is not None:
            return self.individual.delta
        account = self._first_account()
        if account is None:
            raise InvalidParameterError(
                "pass delta=..., the chance that the guarantee fails: less than 1 over the number of units."
            )
        return account.budget.delta

    def _relation(self) -> Relation:
        account = self._first_account()
        if self.relation is not None:
            return Relation.parse(self.relation)
        return Relation.ADD_REMOVE if account is None else account.relation

    def accounts(self, job: Job) -> tuple[Any, ...]:
        """Return the accounts that pay for a job.

        Args:
            job: The job.

        Returns:
            None, one, or one for each group.
        """
        return accounts_of(self.account, job)
