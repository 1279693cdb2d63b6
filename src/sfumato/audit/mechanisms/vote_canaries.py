# SPDX-License-Identifier: Apache-2.0
"""An audit of the noise of teachers' votes: canary teachers whose presence only noise can hide.

Each canary is a made-up teacher that votes on queries of its own. If it is present, it moves one vote from
the first of two classes to the second: as far as one unit can move counts. The noisy counts, by the same
function that answers queries, and from the same source of noise, are passed to an `Auditor`.

Guarantee  Only synthetic votes are used. A true claim is called false with a probability of at most
           1 - confidence.
Not here   The comparison with a threshold, weights of groups, the test of agreement, and how rows get to
           teachers. The result names them. `make audit` attacks aggregators and jobs as a whole, and tests
           replay partitions on neighbors.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee
from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.audit.evidence.results import AuditResult, CheckName, Unchecked
from sfumato.audit.runs.auditor import Auditor
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.pate.planning import Job
from sfumato.pate.votes import aggregators
from sfumato.pate.votes.labeling import Labeling
from sfumato.pate.votes.stability import StableLabeling

__all__ = ["VoteCanaries"]

_MOST_QUERIES = 40  # of each canary: enough for the checks of noise across queries
_VOTES = 100.0  # for both classes, before a canary moves one
# An auditor of training speaks of steps and gradients.
_WORDS = (
    ("gradient canaries in one run", "canary teachers"),
    ("noise of each step", "noise of each answer"),
    ("contributions of canaries", "votes of canaries"),
    ("the canaries' coordinates", "the counts of votes"),
    ("what clipping allows", "one vote"),
    ("the clip norm", "one vote"),
    ("coordinates", "canaries"),
    ("coordinate", "canary"),
    ("contributions", "votes"),
    ("steps", "answers"),
    ("step", "answer"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class VoteCanaries:
    """Canaries that audit the noise of a labeling job; pass it as `audit=` to `sfumato.pate.train`.

    Args:
        count: The number of canaries.
        confidence: The probability with which the verdict is right about right code.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> from sfumato.pate import GNMax, Labeling
    >>> from sfumato.testing import seeded
    >>> job = Labeling(aggregator=GNMax(stddev=4.0), queries=20, teachers=30, delta=1e-5)
    >>> VoteCanaries(count=400).attack(job, generator=seeded(0)).refuted
    False
    """

    count: int = 1000
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _check.count(count=self.count)
        _check.rate(confidence=self.confidence)

    def attack(
        self, job: Job, *, privacy_unit: str = "example", generator: Generator | None = None
    ) -> AuditResult:
        """Let canaries vote, and compare what is shown with the claim.

        Args:
            job: The job whose noise is audited.
            privacy_unit: Who is protected.
            generator: Source of randomness of the job.

        Returns:
            The lower bound and the checks.

        Raises:
            InvalidParameterError: If the job's noise is not Gaussian, or there are too few canaries.
        """
        if isinstance(job.aggregator, aggregators.LNMax) or not hasattr(job.aggregator, "stddev"):
            raise InvalidParameterError(
                "canaries audit Gaussian noise: leave audit=... out, and attack LNMax with audit_mechanism."
            )
        stddev: float = job.aggregator.stddev  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
        queries, bound = min(job.queries, _MOST_QUERIES), float(np.sqrt(2))
        auditor = Auditor(
            count=self.count, relation=job.relation, sampling_rate=1.0, confidence=self.confidence
        )
        moved = auditor.signs.numpy().astype(
            np.float64
        )  # an absent one moves nothing, or a vote the other way
        counts = np.stack([_VOTES - moved, _VOTES + moved], axis=1)
        for _ in range(queries):
            noisy = aggregators.noisy_counts(counts, stddev=stddev, generator=generator) - _VOTES
            shown = torch.from_numpy(
                (noisy[:, 1] - noisy[:, 0]) / 2
            )  # a vote moved is 1, in units of sqrt(2)
            auditor.observe(shown, noise=stddev / bound, taken=auditor.seated)

        def event(factor: float) -> DpEvent:
            return dp.SelfComposedDpEvent(dp.GaussianDpEvent(stddev / bound * factor), queries)

        claim = Guarantee(
            epsilon=price(event(1.0), delta=job.guarantee().delta, relation=job.relation).epsilon,
            delta=job.guarantee().delta,
            relation=job.relation,
            privacy_unit=privacy_unit,
        )
        return _of_votes(auditor.verdict(claim, event, subject="votes"), job, queries)


def _of_votes(result: AuditResult, job: Job, queries: int) -> AuditResult:
    """Return a result in words for votes, with what it does not cover."""
    whole = f"{queries}" if queries == job.queries else f"{queries} of {job.queries}"
    return replace(
        result,
        subject=f"The noise of {whole} answers by {job.aggregator.name} alone",
        bounds=tuple(replace(bound, attack=_said(bound.attack)) for bound in result.bounds),
        checks=tuple(
            replace(check, name=_said(check.name), message=_said(check.message), sees=_said(check.sees))
            for check in result.checks
        ),
        unchecked=(*_not_made(result), *_unchecked(job, queries)),
    )


def _said(words: str) -> str:
    for before, after in _WORDS:
        words = words.replace(before, after)
    return words


def _not_made(result: AuditResult) -> tuple[Unchecked, ...]:
    """Return checks of votes that were not made; others are of models and batches, which votes have not."""
    own = (CheckName.STEPS, CheckName.CANARIES, CheckName.PRICE)
    missing = [each for each in result.unchecked if each.name in own]
    return tuple(Unchecked(name=_said(each.name), why=_said(each.why)) for each in missing)


def _unchecked(job: Job, queries: int) -> tuple[Unchecked, ...]:
    """Return the parts of a job that canaries do not look at."""
    individual = isinstance(job, Labeling) and job.individual is not None
    votes = "canaries are made-up votes"
    parts = (
        (queries < job.queries, "the other answers", f"{queries} were audited, by the same function"),
        (
            hasattr(job.aggregator, "threshold"),
            "the comparison with the threshold",
            "only answers are audited",
        ),
        (
            individual,
            "weights, copies and absences of privacy groups",
            "a canary moves one vote in every answer",
        ),
        (isinstance(job, StableLabeling), "the test of agreement", "only answers are audited"),
        (True, "which rows reach which teacher", votes),
    )
    return tuple(Unchecked(name=name, why=why) for holds, name, why in parts if holds)
