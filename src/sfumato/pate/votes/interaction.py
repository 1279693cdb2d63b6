# SPDX-License-Identifier: Apache-2.0
"""Interactive-GNMax: answers in rounds, where teachers disagree with a student that learns between rounds.

Guarantee  Each round is a part of one job, whose noise and number of queries were fixed before the first.
           The student sees answers alone, so what it predicts is post-processing.
Edge cases Before the first round the student knows nothing: all classes are equally likely.
Source     Papernot et al. 2018, arXiv:1802.08908, Algorithm 2.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, resolve
from sfumato.pate.votes.aggregators import (
    NO_ANSWER,
    Answers,
    Counts,
    above_threshold,
    before_the_end,
    checked_counts,
    compared_event,
    noisy_counts,
)

__all__ = ["InteractiveGNMax", "Predict", "interactive_answers"]

# From the answers so far, in the order of queries, to probabilities of the classes of all queries.
Predict = Callable[[Answers], npt.NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class InteractiveGNMax:
    """Answers where teachers disagree with a student; elsewhere the prediction of a sure student.

    Args:
        threshold: The smallest noisy surplus of votes over the student's prediction that is answered.
        threshold_stddev: The standard deviation of the noise in the comparison.
        stddev: The standard deviation of the noise in each count of an answer.
        confidence: The student's own prediction is returned if it has at least this probability and the
            comparison found no disagreement.
        max_answers: After so many answers by teachers the job ends. None: as many as there are queries.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> aggregator = InteractiveGNMax(threshold=2000.0, threshold_stddev=50.0, stddev=40.0, confidence=0.9)
    >>> student = np.array([[0.0, 1.0], [0.99, 0.01]])
    >>> aggregator.answer(np.array([[5000.0, 0.0], [5000.0, 0.0]]), student, teachers=5000.0)
    array([0, 0])
    """

    threshold: float
    threshold_stddev: float
    stddev: float
    confidence: float
    max_answers: int | None = None

    def __post_init__(self) -> None:
        _check.finite(threshold=self.threshold)
        _check.positive(threshold_stddev=self.threshold_stddev, stddev=self.stddev)
        _check.in_range(0, 1, confidence=self.confidence)
        if self.max_answers is not None:
            _check.count(max_answers=self.max_answers)

    @property
    def name(self) -> str:
        """The name in statements."""
        return (
            f"Interactive-GNMax (threshold {self.threshold:g} with noise {self.threshold_stddev:g}, answers "
            f"with noise {self.stddev:g}, student sure from {self.confidence:g})"
        )

    def event(self, queries: int, *, weight: float = 1.0) -> DpEvent:
        """Return the event of a job: a comparison for each query, and at most `max_answers` answers.

        Args:
            queries: How many queries are asked.
            weight: The weight of the teacher's vote.

        Returns:
            The event.
        """
        return compared_event(self, queries, weight)

    def answer(
        self,
        counts: Counts,
        predictions: npt.NDArray[np.float64],
        *,
        teachers: float,
        generator: Generator | None = None,
    ) -> Answers:
        """Answer queries, given what a student predicts for them.

        Args:
            counts: The votes for each class, [queries, classes]. They are private.
            predictions: The student's probabilities of the classes, [queries, classes]. They are public.
            teachers: The number of teachers, or the sum of their weights.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The class of each query, or `NO_ANSWER`.

        Raises:
            InvalidParameterError: If the tables are not of one shape, or not finite.
        """
        return self.answers_and_bought(counts, predictions, teachers=teachers, generator=generator)[0]

    def answers_and_bought(
        self,
        counts: Counts,
        predictions: npt.NDArray[np.float64],
        *,
        teachers: float,
        generator: Generator | None = None,
    ) -> tuple[Answers, npt.NDArray[np.bool_]]:
        """Answer queries, and tell which answers are the teachers'. Both are released.

        Args:
            counts: The votes for each class, [queries, classes]. They are private.
            predictions: The student's probabilities of the classes, [queries, classes]. They are public.
            teachers: The number of teachers, or the sum of their weights.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The class of each query, or `NO_ANSWER`; and for which of them teachers voted.

        Raises:
            InvalidParameterError: If the tables are not of one shape, or not finite.
        """
        known, source = checked_counts(counts), resolve(generator)
        student = np.asarray(predictions, dtype=np.float64)
        if student.shape != known.shape or not np.isfinite(student).all():
            raise InvalidParameterError(
                "predictions must be a table of finite numbers, as large as the table of votes."
            )
        above = above_threshold(self, (known - teachers * student).max(axis=1), source)
        chosen = noisy_counts(known, stddev=self.stddev, generator=source).argmax(axis=1)
        sure = (student.max(axis=1) >= self.confidence) & before_the_end(above, self.max_answers)
        return np.where(above, chosen, np.where(sure, student.argmax(axis=1), NO_ANSWER)), above


def interactive_answers(
    aggregator: InteractiveGNMax,
    counts: Counts,
    *,
    teachers: float,
    predict: Predict,
    rounds: int = 4,
    generator: Generator | None = None,
) -> Answers:
    """Answer queries in rounds.

    Args:
        aggregator: The aggregator.
        counts: The votes for each class, [queries, classes]. They are private.
        teachers: The number of teachers, or the sum of their weights.
        predict: Lets a student learn from the answers so far, and returns its probabilities for all queries.
        rounds: In how many rounds, of nearly equal size.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.

    Returns:
        The class of each query, or `NO_ANSWER`.

    Raises:
        InvalidParameterError: If the student's predictions have another shape.

    >>> rule = InteractiveGNMax(threshold=80.0, threshold_stddev=1.0, stddev=1.0, confidence=0.9)
    >>> votes = np.tile([100.0, 0.0], (4, 1))
    >>> sure = np.tile([1.0, 0.0], (4, 1))
    >>> interactive_answers(rule, votes, teachers=100.0, predict=lambda answers: sure, rounds=2)
    array([-1, -1,  0,  0])
    """
    queries, classes = np.asarray(counts).shape
    answers = np.full(queries, NO_ANSWER, dtype=np.int64)
    left = aggregator.max_answers if aggregator.max_answers is not None else queries
    for number, part in enumerate(np.array_split(np.arange(queries), rounds)):
        if left == 0 or len(part) == 0:
            break
        student = np.full((queries, classes), 1 / classes) if number == 0 else np.asarray(predict(answers))
        if student.shape != (queries, classes):
            raise InvalidParameterError(
                f"the student must give a probability for each of {classes} classes of each query."
            )
        bounded = replace(aggregator, max_answers=left)
        found, bought = bounded.answers_and_bought(
            counts[part], student[part], teachers=teachers, generator=generator
        )
        left -= int(bought.sum())
        answers[part] = found
    return answers
