# SPDX-License-Identifier: Apache-2.0
"""Attacks on selections at a margin: one candidate is ahead, instead of all being equal.

A choice among equal candidates shows the noise of a selection. A shortcut for clear cases ("no candidate can
catch up, so return the leader") shows only if one neighbor takes it and the other does not. The lead of a
pair goes from below a margin to above it, as far as one unit may move scores. The margins follow one another
without a gap, so a shortcut at any lead up to the largest is crossed. There are twenty candidates; all but
the leader have the same score, so together they are chosen often enough to be counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from attacks.releases import Case, released
from sfumato import mechanisms as m
from sfumato.accounting.guarantee import Relation
from sfumato.audit.mechanisms.exact_discrete import claim_of
from sfumato.mechanisms.random import Generator

__all__ = ["MARGINS", "margin_cases"]

MARGINS = (1, 3, 5, 7, 9, 11)  # each pair reaches from one less to one more
_BEHIND = 19  # candidates
_BEYOND = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)  # of values over a threshold: one unit moves them by one
_TERMS: dict[str, Any] = {"epsilon": 1.0, "sensitivity": 1.0}


def margin_cases() -> tuple[Case, ...]:
    """Return the cases of selections, each at several margins.

    Returns:
        The cases.

    >>> [case.subject for case in margin_cases()][:2]
    ['Exponential, ahead by 1', 'Exponential, ahead by 3']
    """
    return (*_leading(), *_rising(), *_on_a_line(), *_above())


def _leading() -> Iterator[Case]:
    """Yield choices whose scores one unit moves up or down."""
    for kind in (m.Exponential, m.PermuteAndFlip, m.NoisyMax):
        for margin in MARGINS:
            first, second = ([lead, *[0.0] * _BEHIND] for lead in (margin - 1.0, float(margin)))
            second = [second[0], *[-1.0] * _BEHIND]  # the leader up by one, all others down by one
            mechanism = kind(**_TERMS, relation=Relation.REPLACE_ONE)
            yield released(mechanism, first, second, subject=f"{kind.__name__}, ahead by {margin}")


def _rising() -> Iterator[Case]:
    """Yield choices whose scores one unit can only raise."""
    for kind in (m.Exponential, m.NoisyMax):
        for margin in MARGINS:
            for low in (margin - 1.0, float(margin)):
                first, second = ([lead, *[0.0] * _BEHIND] for lead in (low, low + 1))
                mechanism = kind(**_TERMS, relation=Relation.ADD_REMOVE, monotonic=True)
                name = f"{kind.__name__}, monotonic, ahead by {low + 0.5:g}"
                yield released(mechanism, first, second, subject=name)


def _on_a_line() -> Iterator[Case]:
    """Yield choices among intervals: with one that leads, and with ends that are moved (they are private)."""
    line = m.IntervalExponential(**_TERMS, relation=Relation.REPLACE_ONE, bounds=(0.0, 20.0))
    edges = [0.0, 1.0, 20.0]

    def run(scores: Sequence[float], generator: Generator) -> object:
        return line.release(edges, scores, generator=generator)

    def run_between(ends: Sequence[float], generator: Generator) -> object:
        return line.release(ends, [1.0, 0.0], generator=generator)

    for margin in MARGINS:
        name = f"IntervalExponential, ahead by {margin}"
        case = released(line, [margin - 1.0, 0.0], [float(margin), -1.0], subject=name)
        yield replace(case, run=run)
    moved = released(line, edges, [0.0, 2.0, 20.0], subject="IntervalExponential, an end moved")
    yield replace(moved, run=run_between)


def _above() -> Iterator[Case]:
    """Yield questions whose values are above a threshold by more and more."""
    terms: dict[str, Any] = {
        "threshold": 0.0,
        "sensitivity": 1.0,
        "max_answers": 1,
        "relation": Relation.ADD_REMOVE,
    }

    def above(generator: Generator | None = None) -> m.AboveThreshold:
        return m.AboveThreshold(threshold_epsilon=0.5, comparison_epsilon=0.5, generator=generator, **terms)

    def sparse(generator: Generator | None = None) -> m.SparseVector:
        return m.SparseVector(
            threshold_epsilon=0.5, comparison_epsilon=0.5, answer_epsilon=0.5, generator=generator, **terms
        )

    def run_of(begin: Any) -> Any:
        def run(values: Sequence[float], generator: Generator) -> object:
            asked = begin(generator)
            return tuple(asked.ask(value) for value in values)

        return run

    for begin in (above, sparse):
        name = type(begin()).__name__
        for low in _BEYOND:
            yield Case(
                subject=f"{name}, above by {low + 0.5:g}",
                audits=name,
                run=run_of(begin),
                first=[low],
                second=[low + 1],
                claim=claim_of(begin()),
            )
