# SPDX-License-Identifier: Apache-2.0
"""Attack every mechanism and every statistic of this library: claim and lower bound, side by side.

Guarantee  All lower bounds together have the confidence that was asked for: if every claim is true, none is
           contradicted in at least that share of catalogues. Laws that are known are computed exactly, too
           (`audit.discrete`).
Complete   A test compares the cases (`audit.cases`) with the public names of `mechanisms` and `statistics`.
"""

from collections.abc import Iterable, Iterator

from sfumato import _check
from sfumato.accounting.guarantee import round_up
from sfumato.audit.cases import Case, mechanism_cases, statistic_cases
from sfumato.audit.discrete import audit_discrete
from sfumato.audit.mechanism import audit_mechanism, runs_needed
from sfumato.audit.results import AuditResult, confidence_of_each
from sfumato.mechanisms.random import Generator, resolve

__all__ = ["mechanisms", "table"]


def mechanisms(
    trials: int = 4000, *, confidence: float = 0.95, generator: Generator | None = None
) -> Iterator[AuditResult]:
    """Attack one after the other, each with `trials` runs on either of two neighbors. Takes minutes.

    A few slow ones are run half as often; none less than it takes to contradict its claim at all.

    >>> from sfumato.testing import seeded
    >>> next(mechanisms(2000, generator=seeded(0))).refuted
    False
    """
    _check.count(trials=trials)
    source, cases = resolve(generator), (*mechanism_cases(), *statistic_cases())
    each = confidence_of_each(confidence, cases)
    for index, case in enumerate(cases):
        yield _attacked(case, trials, each, source.fork("case", index))


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

    >>> from sfumato.audit.discrete import audit_laws
    >>> print(table([audit_laws({"yes": 0.75, "no": 0.25}, {"yes": 0.25, "no": 0.75}, subject="a coin")]))
    | what | claimed epsilon | delta | shown | by |
    | --- | --- | --- | --- | --- |
    | a coin | none | 0 | 1.099 | every outcome, exactly |
    """
    lines = ["| what | claimed epsilon | delta | shown | by |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*lines, *(_line(result) for result in results)])


def _line(result: AuditResult) -> str:
    claimed = "none" if result.claim is None else f"{round_up(result.claim.epsilon):g}"
    shown = ", ".join(f"{bound.epsilon:.3f}" for bound in result.bounds)
    by = ", ".join(bound.attack.removeprefix("event search: ") for bound in result.bounds)
    false = " **FALSE**" if result.refuted else ""
    return f"| {result.subject} | {claimed}{false} | {result.best.delta:g} | {shown} | {by} |"
