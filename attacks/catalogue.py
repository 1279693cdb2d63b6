# SPDX-License-Identifier: Apache-2.0
"""Attacks on every mechanism, statistic, estimator, label method and generator: claim beside lower bound.

Tests compare the cases (`releases`, `learners`, `generators`) with the public names of `mechanisms`,
`statistics`, `estimators`, `labels` and `generative`, so none is left out. Methods with many steps are
attacked by `trainers`. Distributions that are known are also computed exactly (`exact_discrete`).

Guarantee  All lower bounds of a catalogue together have the stated confidence: if every claim is true, none
           is contradicted in at least that share of catalogues.
"""

from collections.abc import Iterable, Iterator, Sequence

from attacks.generators import FITS, audited_fits, generator_cases
from attacks.learners import estimator_cases, label_cases
from attacks.releases import Case, mechanism_cases, statistic_cases
from attacks.selections import margin_cases
from attacks.votes import vote_cases
from attacks.workloads import workload_cases
from sfumato import _check
from sfumato.accounting.guarantee import round_up
from sfumato.audit.evidence.results import AuditResult
from sfumato.audit.evidence.terms import confidence_of_each
from sfumato.audit.mechanisms.exact_discrete import audit_discrete
from sfumato.audit.mechanisms.mechanism_attack import audit_mechanism, runs_needed
from sfumato.audit.runs.canaries import Canaries
from sfumato.mechanisms.random import Generator, resolve

__all__ = ["generators", "learners", "mechanisms", "table", "voters"]


def mechanisms(
    trials: int = 4000, *, confidence: float = 0.95, generator: Generator | None = None
) -> Iterator[AuditResult]:
    """Attack mechanisms and statistics. It takes minutes.

    Args:
        trials: The number of runs on each of two neighbors. Slow cases run less often, but never too few to
            contradict the claim.
        confidence: The confidence of all bounds together.
        generator: The source of randomness, or None for secure randomness from the operating system.

    Returns:
        The result of each case, one after the other.

    Raises:
        InvalidParameterError: If `trials` is not a positive whole number.

    >>> from sfumato.testing import seeded
    >>> next(mechanisms(2000, generator=seeded(0))).refuted
    False
    """
    return _one_by_one(
        (*mechanism_cases(), *margin_cases(), *statistic_cases(), *workload_cases()),
        trials,
        confidence,
        generator,
    )


def learners(
    trials: int = 4000, *, confidence: float = 0.95, generator: Generator | None = None
) -> Iterator[AuditResult]:
    """Attack label methods and estimators. It takes minutes.

    Args:
        trials: The number of runs on each of two neighbors. Slow cases run less often, but never too few to
            contradict the claim.
        confidence: The confidence of all bounds together.
        generator: The source of randomness, or None for secure randomness from the operating system.

    Returns:
        The result of each case, one after the other.

    Raises:
        InvalidParameterError: If `trials` is not a positive whole number.

    >>> from sfumato.testing import seeded
    >>> next(learners(100, generator=seeded(0))).refuted
    False
    """
    return _one_by_one((*label_cases(), *estimator_cases()), trials, confidence, generator)


def voters(
    trials: int = 4000, *, confidence: float = 0.95, generator: Generator | None = None
) -> Iterator[AuditResult]:
    """Attack aggregators of teachers' votes, and whole labeling jobs.

    Args:
        trials: The number of runs on each of two neighbors. Slow cases run less often, but never too few to
            contradict the claim.
        confidence: The confidence of all bounds together.
        generator: The source of randomness, or None for secure randomness from the operating system.

    Returns:
        The result of each case, one after the other.

    Raises:
        InvalidParameterError: If `trials` is not a positive whole number.

    >>> from sfumato.testing import seeded
    >>> next(voters(400, generator=seeded(0))).refuted
    False
    """
    return _one_by_one(vote_cases(), trials, confidence, generator)


def generators(
    trials: int = 4000,
    *,
    canaries: int = 2000,
    confidence: float = 0.95,
    generator: Generator | None = None,
) -> Iterator[AuditResult]:
    """Attack generators of synthetic data, and fit those that DP-SGD trains once each, with canaries.

    Args:
        trials: The number of runs on each of two neighbors. Slow cases run less often, but never too few to
            contradict the claim.
        canaries: The number of canaries of each fit.
        confidence: The confidence of all bounds together.
        generator: The source of randomness, or None for secure randomness from the operating system.

    Returns:
        The result of each case, one after the other.

    Raises:
        InvalidParameterError: If `trials` or `canaries` is not a positive whole number.

    >>> from sfumato.testing import seeded
    >>> next(generators(100, generator=seeded(0))).refuted
    False
    """
    _check.count(canaries=canaries)
    cases, source = generator_cases(), resolve(generator)
    each = confidence_of_each(confidence, (*cases, *FITS))
    yield from _in_turn(cases, trials, each, source)
    yield from audited_fits(Canaries(count=canaries, confidence=each), generator=source)


def _one_by_one(
    cases: Sequence[Case], trials: int, confidence: float, generator: Generator | None
) -> Iterator[AuditResult]:
    """Attack one case after the other, under one confidence."""
    return _in_turn(cases, trials, confidence_of_each(confidence, cases), resolve(generator))


def _in_turn(
    cases: Sequence[Case], trials: int, confidence: float, generator: Generator
) -> Iterator[AuditResult]:
    _check.count(trials=trials)
    for index, case in enumerate(cases):
        yield _attacked(case, trials, confidence, generator.fork("case", index))


def _attacked(case: Case, trials: int, confidence: float, generator: Generator) -> AuditResult:
    least = runs_needed(case.claim.epsilon, delta=case.claim.delta, confidence=confidence)
    runs = audit_mechanism(
        case.run,
        case.first,
        case.second,
        trials=max(least, round(case.share * trials)),
        confidence=confidence,
        claim=case.claim,
        subject=case.subject,
        generator=generator,
    )
    if case.exact is None:
        return runs
    exact = audit_discrete(case.exact, case.first, case.second, delta=case.claim.delta, claim=case.claim)
    return AuditResult(subject=case.subject, claim=case.claim, bounds=(*runs.bounds, *exact.bounds))


def table(results: Iterable[AuditResult]) -> str:
    """Return results as a table in Markdown: claimed epsilon, and what each attack shows.

    Args:
        results: The results of attacks.

    Returns:
        The table.

    >>> from sfumato.audit.mechanisms.exact_discrete import audit_laws
    >>> print(table([audit_laws({"yes": 0.75, "no": 0.25}, {"yes": 0.25, "no": 0.75}, subject="a coin")]))
    | what | claimed epsilon | delta | shown | by |
    | --- | --- | --- | --- | --- |
    | a coin | none | 0 | 1.09 | every outcome, exactly |
    """
    lines = ["| what | claimed epsilon | delta | shown | by |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*lines, *(_line(result) for result in results)])


def _line(result: AuditResult) -> str:
    claimed = "none" if result.claim is None else f"{round_up(result.claim.epsilon):g}"
    shown = ", ".join(bound.told for bound in result.bounds)
    by = ", ".join(bound.attack.removeprefix("event search: ") for bound in result.bounds)
    false = " **FALSE**" if result.refuted else ""
    return f"| {result.subject} | {claimed}{false} | {result.best.delta:g} | {shown} | {by} |"
