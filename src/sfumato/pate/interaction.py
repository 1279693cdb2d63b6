# SPDX-License-Identifier: Apache-2.0
"""Answers in rounds: between two rounds a student learns, and teachers answer where they disagree with it.

Guarantee  Each round is a part of one job, whose noise and number of queries were fixed before the first.
           The student sees answers alone, so what it predicts is post-processing.
Edge cases Before the first round the student knows nothing: all classes are equally likely.
Source     Papernot et al. 2018, arXiv:1802.08908, Algorithm 2.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.pate.aggregators import NO_ANSWER, Answers, Counts, InteractiveGNMax

__all__ = ["Predict", "interactive_answers"]

# From the answers so far, in the order of queries, to probabilities of the classes of all queries.
Predict = Callable[[Answers], npt.NDArray[np.float64]]


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
