# SPDX-License-Identifier: Apache-2.0
"""The sparse vector technique: many questions, few answers.

The threshold gets Laplace(S / e1), once for the whole run. A comparison gets Laplace(2 c S / e2), or c S / e2
if monotonic, fresh each time. A numeric answer gets fresh Laplace(c S / e3), never the noise of the
comparison: that mistake made published variants non-private. All noise is in whole steps of a public grid,
drawn exactly.

Guarantee  However many values are asked about, adaptively, a run costs threshold_epsilon +
           comparison_epsilon + answer_epsilon: what is below the threshold is free, and the run ends after
           `max_answers` values above it.
Neighbors  One unit moves each value by at most `sensitivity` under `relation`. `monotonic=True` says that a
           unit moves all values in one direction; it halves the comparison noise and needs add-or-remove or
           zero-out neighbors.
Edge cases A value that is NaN or infinite is refused, without being shown, and the run continues. After the
           last answer every question raises `AnswersSpentError`. A run cannot be copied, pickled or used in a
           forked process: a copy would answer under the same threshold noise again. Threads may share one.
Source     Lyu, Su and Li 2017, arXiv:1603.01699, Algorithm 7, Theorems 4 and 5.
"""

import threading

from sfumato import _check
from sfumato.accounting.events import SparseVectorDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import DpEvent
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.mechanisms import inputs
from sfumato.mechanisms.grid import Grid
from sfumato.mechanisms.random import Generator, process_token, refuse_copy

__all__ = ["AboveThreshold", "AnswersSpentError", "SparseVector"]


class AnswersSpentError(SfumatoError, RuntimeError):
    """A sparse vector run has given all its answers. Further questions need a new run, at a new cost."""


class AboveThreshold:
    """Report for each value whether it is above a threshold, until enough were.

    Args:
        threshold: The threshold, public.
        threshold_epsilon: The epsilon of the noisy threshold.
        comparison_epsilon: The epsilon of all comparisons together.
        sensitivity: The most that one privacy unit can move any value under `relation`.
        max_answers: How many values may be found above the threshold before the run ends.
        relation: Which data sets are neighbors.
        monotonic: Whether one unit moves all values in the same direction, as with counts. It halves the
            noise.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `monotonic` cannot hold under the relation.

    >>> run = AboveThreshold(threshold=0.0, threshold_epsilon=0.5, comparison_epsilon=0.5, sensitivity=1.0,
    ...                      max_answers=1, relation=Relation.ADD_REMOVE)
    >>> run.ask(-900.0), run.ask(900.0), run.answers_left
    (False, True, 0)
    """

    __reduce_ex__ = refuse_copy  # type: ignore[assignment]  # refuses, so its result type does not matter

    def __init__(
        self,
        *,
        threshold: float,
        threshold_epsilon: float,
        comparison_epsilon: float,
        sensitivity: float,
        max_answers: int,
        relation: Relation,
        monotonic: bool = False,
        generator: Generator | None = None,
    ) -> None:
        _check.finite(threshold=threshold)
        _check.positive(threshold_epsilon=threshold_epsilon, comparison_epsilon=comparison_epsilon)
        _check.count(max_answers=max_answers)
        _check_monotonic(relation, monotonic)
        self._grid = Grid(sensitivity)
        self._epsilons = (
            inputs.parameter("threshold_epsilon", threshold_epsilon),
            inputs.parameter("comparison_epsilon", comparison_epsilon),
        )
        self._max_answers = self._left = int(max_answers)
        self._multiple = self._max_answers * (1 if monotonic else 2)
        self._grid.spread(multiple=self._multiple, epsilon=self._epsilons[1])
        self._relation, self._generator = relation, generator
        self._lock, self._process = threading.Lock(), process_token()
        self._bar = int(self._grid.place([threshold])[0]) + self._laplace(1, self._epsilons[0])

    @property
    def relation(self) -> Relation:
        """Return the relation that the sensitivity and the cost are stated for."""
        return self._relation

    @property
    def answers_left(self) -> int:
        """Return how many more values may be found above the threshold."""
        return self._left

    def ask(self, value: float) -> bool:
        """Report whether a value is above the threshold, both with noise.

        Args:
            value: The private value.

        Returns:
            Whether it is above.

        Raises:
            InvalidParameterError: If the value is not finite. The message does not show it, and the run
                continues.
            AnswersSpentError: If all answers were given.
        """
        if self._process != process_token():
            raise AnswersSpentError("this run belongs to another process. Start a new run, at its own cost.")
        step = int(self._grid.place([inputs.number(value)])[0])
        with self._lock:
            if self._left == 0:
                raise AnswersSpentError(
                    f"all {self._max_answers} answers of this run were given. "
                    "Start a new run, at its own cost."
                )
            above = step + self._laplace(self._multiple, self._epsilons[1]) >= self._bar
            self._left -= above
        return above

    def event(self) -> DpEvent:
        """Return the event of the whole run, whatever the number of questions.

        Returns:
            The event.
        """
        return SparseVectorDpEvent(*self._epsilons)

    def _laplace(self, multiple: int, epsilon: float) -> int:
        noise = self._grid.laplace(1, multiple=multiple, epsilon=epsilon, generator=self._generator)
        return int(noise[0])


class SparseVector:
    """Release a noisy value for each of the first values above a threshold, and None below it.

    Args:
        threshold: The threshold, public.
        threshold_epsilon: The epsilon of the noisy threshold.
        comparison_epsilon: The epsilon of all comparisons together.
        answer_epsilon: The epsilon of all numeric answers together.
        sensitivity: The most that one privacy unit can move any value under `relation`.
        max_answers: How many values may be answered before the run ends.
        relation: Which data sets are neighbors.
        monotonic: Whether one unit moves all values in the same direction, as with counts. It halves the
            noise.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `monotonic` cannot hold under the relation.

    >>> run = SparseVector(threshold=0.0, threshold_epsilon=0.4, comparison_epsilon=0.4, answer_epsilon=0.2,
    ...                    sensitivity=1.0, max_answers=1, relation=Relation.ADD_REMOVE)
    >>> run.ask(-900.0) is None, run.ask(900.0) is None
    (True, False)
    """

    __reduce_ex__ = refuse_copy  # type: ignore[assignment]  # refuses, so its result type does not matter

    def __init__(
        self,
        *,
        threshold: float,
        threshold_epsilon: float,
        comparison_epsilon: float,
        answer_epsilon: float,
        sensitivity: float,
        max_answers: int,
        relation: Relation,
        monotonic: bool = False,
        generator: Generator | None = None,
    ) -> None:
        _check.positive(answer_epsilon=answer_epsilon)
        self._test = AboveThreshold(
            threshold=threshold,
            threshold_epsilon=threshold_epsilon,
            comparison_epsilon=comparison_epsilon,
            sensitivity=sensitivity,
            max_answers=max_answers,
            relation=relation,
            monotonic=monotonic,
            generator=generator,
        )
        self._event = SparseVectorDpEvent(
            float(threshold_epsilon),
            float(comparison_epsilon),
            inputs.parameter("answer_epsilon", answer_epsilon),
        )
        self._grid = Grid(sensitivity)
        self._max_answers = int(max_answers)
        self._grid.spread(multiple=self._max_answers, epsilon=self._event.answer_epsilon)
        self._generator = generator

    @property
    def relation(self) -> Relation:
        """Return the relation that the sensitivity and the cost are stated for."""
        return self._test.relation

    @property
    def answers_left(self) -> int:
        """Return how many more values may be answered."""
        return self._test.answers_left

    def ask(self, value: float) -> float | None:
        """Release a value with fresh noise if it is above the threshold, else None.

        Args:
            value: The private value.

        Returns:
            The value with noise, or None.

        Raises:
            InvalidParameterError: If the value is not finite. The message does not show it, and the run
                continues.
            AnswersSpentError: If all answers were given.
        """
        if not self._test.ask(value):
            return None
        epsilon = self._event.answer_epsilon
        noise = self._grid.laplace(1, multiple=self._max_answers, epsilon=epsilon, generator=self._generator)
        return float((int(self._grid.place([inputs.number(value)])[0]) + int(noise[0])) * self._grid.step)

    def event(self) -> DpEvent:
        """Return the event of the whole run, whatever the number of questions.

        Returns:
            The event.
        """
        return self._event


def _check_monotonic(relation: Relation, monotonic: bool) -> None:
    inputs.check_relation(relation)
    if monotonic and relation.replaces:
        raise InvalidParameterError(
            f"monotonic=True cannot hold under {relation.value} neighbors: a replaced unit moves some values "
            "up and others down. Leave it out."
        )
