# SPDX-License-Identifier: Apache-2.0
"""The cases of every mechanism and every statistic, with two neighbors that are hard to hide.

- Delta is 0.01 if noise is Gaussian. No release in use should have so weak a guarantee; but every claim at a
  small delta implies one at this delta, and events this rare can be counted in thousands of runs.
- Epsilon is 1, and 4 for cases that spend it on several steps, of which one event sees only a part.
- Statistics of rows run half as often, because a run takes milliseconds.

Neighbors  Each pair moves the value that gets noise as far as the sensitivity allows, if that is simple to
           arrange. A lower bound near the claim then shows that the claim is tight, not that it is false.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sfumato import mechanisms as m
from sfumato import statistics as s
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.mechanisms.exact_discrete import claim_of
from sfumato.audit.mechanisms.mechanism_attack import Run, RunMany, Vectorized
from sfumato.mechanisms.random import Generator
from sfumato.statistics.query import Query, Question

__all__ = ["Case", "mechanism_cases", "released", "statistic_cases"]

ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
DELTA = 0.01  # of Gaussian claims: see above
_SCORES = ([1.0] + [0.0] * 7, [0.0] + [1.0] * 7)  # one up, all others down: the exponential's worst
_ASKED = ([0.0] * 6 + [1.0], [1.0] * 6 + [0.0])  # all but the last up: above-threshold's worst
_UNIT = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One claim to attack.

    Args:
        subject: The name of the case.
        audits: The public name of what is attacked.
        run: How to run it.
        first: A data set.
        second: A neighbor of it.
        claim: The guarantee to test.
        exact: A mechanism whose distribution is known, or None.
        share: The share of the trials to run.
    """

    subject: str
    audits: str
    run: Run | Vectorized
    first: Any
    second: Any
    claim: Guarantee
    exact: Any = None
    share: float = 1.0


def released(mechanism: Any, first: Any, second: Any, *, delta: float = 0.0, subject: str = "") -> Case:
    """Return the case of a mechanism with a `release`.

    Args:
        mechanism: The mechanism.
        first: Its input on a data set.
        second: Its input on a neighbor.
        delta: The delta of the claim.
        subject: The name of the case, or "" for the name of the class.

    Returns:
        The case.
    """
    name = type(mechanism).__name__
    return Case(
        subject=subject or name,
        audits=name,
        run=lambda data, generator: mechanism.release(data, generator=generator),
        first=first,
        second=second,
        claim=claim_of(mechanism, delta=delta),
    )


def _exactly(mechanism: Any, first: Any, second: Any, *, delta: float = 0.0) -> Case:
    """Return the case of a mechanism with a `release` and few outcomes."""
    return replace(released(mechanism, first, second, delta=delta), exact=mechanism)


# --- mechanisms -------------------------------------------------------------------------------------------


def mechanism_cases() -> tuple[Case, ...]:
    """Return the cases of `sfumato.mechanisms`.

    Returns:
        The cases.
    """
    return (*_additive(), *_in_tensors(), *_choosing(), *_answering(), *_local(), *_sensitive())


def _additive() -> tuple[Case, ...]:
    laplace = m.Laplace.calibrated(epsilon=1.0, sensitivity=1.0, relation=ADD)
    gaussian = m.Gaussian.calibrated(epsilon=1.0, delta=DELTA, sensitivity=1.0, relation=ADD)
    whole = m.DiscreteLaplace.calibrated(epsilon=1.0, sensitivity=1, relation=ADD)
    replaced = m.DiscreteLaplace.calibrated(epsilon=1.0, sensitivity=2, relation=REPLACE)
    return (
        released(laplace, 0.0, 1.0),
        released(gaussian, 0.0, 1.0, delta=DELTA),
        _exactly(whole, 0, 1),
        replace(released(replaced, 0, 2, subject="DiscreteLaplace, replace-one"), exact=replaced),
        _exactly(m.DiscreteGaussian(stddev=2.0, sensitivity=1, relation=ADD), 0, 1, delta=DELTA),
    )


def _tensor(
    name: str, run_many: RunMany, mechanism: Any, *, first: Any = 0.0, second: Any = 1.0, delta: float
) -> Case:
    """Return the case of a function that adds noise in tensors. Its claim is that of the mechanism with the
    same noise.
    """
    claim = claim_of(mechanism, delta=delta)
    return Case(
        subject=f"{name}, in a tensor",
        audits=name,
        run=Vectorized(run_many),
        first=first,
        second=second,
        claim=claim,
    )


def _in_tensors() -> tuple[Case, ...]:
    gaussian = m.Gaussian.calibrated(epsilon=1.0, delta=DELTA, sensitivity=1.0, relation=ADD)
    laplace = m.Laplace.calibrated(epsilon=1.0, sensitivity=1.0, relation=ADD)
    whole = m.DiscreteLaplace.calibrated(epsilon=1.0, sensitivity=1, relation=ADD)
    discrete = m.DiscreteGaussian(stddev=2.0, sensitivity=1, relation=ADD)
    stddev, scale = gaussian.stddev, laplace.scale

    def added(value: float, count: int, generator: Generator) -> Any:
        return m.add_gaussian_(torch.full((count,), value), stddev=stddev, generator=generator).numpy()

    def added_many(value: float, count: int, generator: Generator) -> Any:
        parts = [torch.full((count,), value / 2**0.5) for _ in range(2)]  # together they move by 1
        m.add_gaussian_many_(parts, stddev=stddev, generator=generator)
        return torch.stack(parts, dim=1).numpy()

    def laplace_added(value: float, count: int, generator: Generator) -> Any:
        return m.add_laplace_(torch.full((count,), value), scale=scale, generator=generator).numpy()

    def summed(draw: Callable[..., torch.Tensor], **size: float) -> RunMany:
        return lambda value, count, generator: value + draw((count,), generator=generator, **size).numpy()

    return (
        _tensor("gaussian", summed(m.gaussian, stddev=stddev), gaussian, delta=DELTA),
        _tensor("add_gaussian_", added, gaussian, delta=DELTA),
        _tensor("add_gaussian_many_", added_many, gaussian, delta=DELTA),
        _tensor("laplace", summed(m.laplace, scale=scale), laplace, delta=0.0),
        _tensor("add_laplace_", laplace_added, laplace, delta=0.0),
        _tensor("discrete_laplace", summed(m.discrete_laplace, scale=whole.scale), whole, delta=0.0),
        _tensor("discrete_gaussian", summed(m.discrete_gaussian, stddev=2.0), discrete, delta=DELTA),
        *(_grid(rounded) for rounded in m.Rounded),
    )


def _grid(rounded: m.Rounded) -> Case:
    mechanism = m.GridGaussian(
        clip_norm=1.0, granularity=2.0**-10, stddev=2.0, dimension=2, relation=ADD, rounded=rounded
    )
    with_unit = torch.tensor([[3.0, 4.0]])
    return released(
        mechanism, with_unit, with_unit[:0], delta=DELTA, subject=f"GridGaussian, {rounded.value} rounded"
    )


def _choosing() -> tuple[Case, ...]:
    terms: dict[str, Any] = {"epsilon": 1.0, "sensitivity": 1.0}
    rising = ([1.0] + [0.0] * 7, [0.0] * 8)  # what monotonic scores may do
    line = m.IntervalExponential(**terms, relation=REPLACE, bounds=(0.0, 8.0))
    monotonic = m.Exponential(**terms, relation=ADD, monotonic=True)
    interval = released(line, [1.0, 0.0], [0.0, 1.0])
    edges = [0.0, 1.0, 8.0]

    def run(scores: Sequence[float], generator: Generator) -> object:
        return line.release(edges, scores, generator=generator)

    return (
        _exactly(m.Exponential(**terms, relation=REPLACE), *_SCORES),
        replace(released(monotonic, *rising, subject="Exponential, monotonic"), exact=monotonic),
        _exactly(m.PermuteAndFlip(**terms, relation=REPLACE), *_SCORES),
        released(m.NoisyMax(**terms, relation=REPLACE), *_SCORES),
        released(m.NoisyMax(**terms, relation=ADD, monotonic=True), *rising, subject="NoisyMax, monotonic"),
        replace(interval, run=run),
    )


def _answering() -> tuple[Case, ...]:
    terms: dict[str, Any] = {"threshold": 0.5, "sensitivity": 1.0, "max_answers": 1, "relation": ADD}

    def above(generator: Generator | None = None) -> m.AboveThreshold:
        return m.AboveThreshold(threshold_epsilon=2.0, comparison_epsilon=2.0, generator=generator, **terms)

    def sparse(generator: Generator | None = None) -> m.SparseVector:
        return m.SparseVector(
            threshold_epsilon=1.5, comparison_epsilon=1.5, answer_epsilon=1.0, generator=generator, **terms
        )

    return (_asking("AboveThreshold", above), _asking("SparseVector", sparse))


def _asking(name: str, begin: Callable[..., Any]) -> Case:
    def run(values: Sequence[float], generator: Generator) -> tuple[object, ...]:
        asked = begin(generator)
        return tuple(asked.ask(value) for value in values if asked.answers_left)

    first, second = _ASKED
    claim = claim_of(begin())
    return Case(subject=name, audits=name, run=run, first=first, second=second, claim=claim)


def _local() -> tuple[Case, ...]:
    answers = m.RandomizedResponse.calibrated(epsilon=1.0, num_buckets=3)
    encoded = [m.UnaryEncoding(epsilon=1.0, num_buckets=3, encoding=encoding) for encoding in m.Encoding]
    return tuple(_reporting(mechanism) for mechanism in (answers, *encoded))


def _reporting(mechanism: m.RandomizedResponse | m.UnaryEncoding) -> Case:
    """Return the case of one answer, replaced: each person's report is a run."""
    kind = f", {mechanism.encoding.value}" if isinstance(mechanism, m.UnaryEncoding) else ""
    case = released(mechanism, 0, 1, subject=f"{type(mechanism).__name__}{kind}")

    def many(answer: int, count: int, generator: Generator) -> Any:
        return mechanism.release(np.full(count, answer), generator=generator)

    return replace(case, run=Vectorized(many), exact=mechanism)


def _sensitive() -> tuple[Case, ...]:
    tested = m.ProposeTestRelease(
        proposed_sensitivity=0.5, test_epsilon=0.5, release_epsilon=0.5, delta=DELTA
    )
    far = tested.distance_needed
    proposed = released(tested, (0.0, far), (0.5, far - 1), delta=DELTA)
    medians = ([0.0, 0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0, 1.0])

    def run(data: tuple[float, int], generator: Generator) -> object:
        return tested.release(data[0], distance=data[1], generator=generator)

    return (
        replace(proposed, run=run),
        released(m.SmoothMedian(epsilon=1.0, bounds=_UNIT), *medians),
        released(
            m.SmoothMedian(epsilon=1.0, bounds=_UNIT, delta=DELTA),
            *medians,
            delta=DELTA,
            subject="SmoothMedian, with delta",
        ),
    )


# --- statistics -------------------------------------------------------------------------------------------


def _asked(question: Question[Any], first: Any, second: Any, *, share: float = 1.0, note: str = "") -> Case:
    """Return the case of a question, asked of two data sets."""
    name = type(question).__name__
    return Case(
        subject=f"{name}{note}",
        audits=name,
        run=lambda data, generator: question.answer(data, generator=generator).value,
        first=first,
        second=second,
        claim=Query(question, first).guarantee,
        share=share,
    )


def statistic_cases() -> tuple[Case, ...]:
    """Return the cases of the questions of `sfumato.statistics`.

    Returns:
        The cases.
    """
    return (*_of_columns(), *_of_categories(), *_of_ranks(), *_of_rows())


def _of_columns() -> tuple[Case, ...]:
    few, more = s.column_of([0.0, 1.0, 0.5]), s.column_of([0.0, 1.0, 0.5, 1.0])
    low, high = s.column_of([0.0, 0.0]), s.column_of([0.0, 1.0])
    middle, spread = s.column_of([0.5] * 20), s.column_of([0.5] * 20 + [1.0])
    large, larger = s.column_of([1000.0] * 8), s.column_of([1000.0] * 9)
    terms: dict[str, Any] = {"bounds": _UNIT, "epsilon": 1.0}
    return (
        _asked(s.Count(epsilon=1.0), few, more),
        _asked(s.Count(epsilon=1.0, delta=DELTA), few, more, note=", Gaussian"),
        _asked(s.Sum(**terms), few, more),
        _asked(s.Sum(**terms, delta=DELTA), few, more, note=", Gaussian"),
        _asked(s.Sum(**terms, relation=REPLACE), low, high, note=", replace-one"),
        _asked(s.Mean(**terms), few, more),
        _asked(s.Mean(**terms, delta=DELTA), few, more, note=", Gaussian"),
        _asked(s.Variance(bounds=_UNIT, epsilon=4.0), middle, spread),
        _asked(s.StandardDeviation(bounds=_UNIT, epsilon=4.0), middle, spread),
        _asked(s.ClippedShare(**terms), few, s.column_of([0.0, 1.0, 0.5, 2.0])),
        _asked(s.BinCounts(edges=(0.0, 0.5, 1.0), epsilon=1.0), few, more),
        _asked(s.AutomaticBounds(epsilon=1.0), large, larger),
    )


def _of_categories() -> tuple[Case, ...]:
    words, more = s.categories_of(["tea"] * 7), s.categories_of(["tea"] * 8)
    known = ("tea", "milk", *range(6))
    return (
        _asked(s.CategoryCounts(categories=known, epsilon=1.0), words, more),
        _asked(s.StableCounts(epsilon=1.0, delta=DELTA), words, more),
        _asked(
            s.TopK(k=1, categories=known, epsilon=1.0),
            s.categories_of(["tea"]),
            s.categories_of(["tea", "milk"]),
        ),
    )


def _of_ranks() -> tuple[Case, ...]:
    few, more = s.column_of([0.2, 0.2]), s.column_of([0.2, 0.2, 1.0])
    quarters = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
    none, one = s.column_of(np.empty(0)), s.column_of([0.1])
    return (
        _asked(s.Quantile(q=0.5, bounds=_UNIT, epsilon=1.0), few, more),
        _asked(s.Quantiles(qs=(0.25, 0.75), bounds=_UNIT, epsilon=4.0), few, more),
        _asked(s.FirstAbove(ranges=quarters, threshold=1.0, epsilon=4.0), none, one),
    )


def _of_rows() -> tuple[Case, ...]:
    values = np.linspace(0.0, 1.0, 60)
    table = np.stack([values, values[::-1]], axis=1)
    one, two = s.column_of(values), s.column_of(np.append(values, 1.0))
    rows, more = s.rows_of(table), s.rows_of(np.concatenate([table, [[1.0, 1.0]]]))
    budget: dict[str, Any] = {"epsilon": 4.0, "delta": DELTA}
    box: dict[str, Any] = {"bounds": (_UNIT, _UNIT)} | budget
    named: dict[str, Any] = {"columns": rows.names} | box
    press = s.CoinPressMeans(**box, stddev=(0.3, 0.3))
    single = s.CoinPressMean(terms=s.CoinPressMeans(**budget, bounds=(_UNIT,), stddev=(0.3,)))
    cases = (
        (s.Covariance(**named), rows, more),
        (s.Correlation(**named), rows, more),
        (s.PrincipalComponents(**named, components=1), rows, more),
        (press, rows, more),
        (single, one, two),
        (s.CoinPressCovariance(**box, stddev=(0.3, 0.3)), rows, more),
        (s.KarwaVadhanMean(**budget, bounds=_UNIT, stddev=0.3), one, two),
    )
    return tuple(_asked(question, first, second, share=0.5) for question, first, second in cases)
