# SPDX-License-Identifier: Apache-2.0
"""Answers to queries that come in rounds, of one labeling job that was paid for beforehand.

Guarantee  No more queries are answered than the job has, and no more answers given than its aggregator
           allows, whatever is asked and in however many rounds. Each query gets noise of its own. Queries of
           a round may depend on earlier answers: Gaussian mechanisms compose adaptively.
Failure    A query beyond the job is an error of the code, and raises before its votes are counted.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, resolve
from sfumato.pate.votes.aggregators import NO_ANSWER, ConfidentGNMax
from sfumato.pate.votes.labeling import Labeling

__all__ = ["PaidVotes"]

Counts = npt.NDArray[np.float64]


class PaidVotes:
    """The queries of a job, as far as they are not used up.

    Args:
        job: The job, whose event was charged.
        aggregator: Its aggregator.
        generator: The source of noise. None uses the secure one.
    """

    def __init__(self, job: Labeling, aggregator: ConfidentGNMax, generator: Generator | None) -> None:
        self._job, self._aggregator, self._generator = job, aggregator, resolve(generator)
        self.asked, self.answered = 0, 0

    @property
    def left(self) -> int:
        """How many queries are left; 0 after the last answer that the aggregator allows."""
        most = self._aggregator.max_answers
        if most is not None and self.answered >= most:
            return 0
        return self._job.queries - self.asked

    def answer(self, queries: int, counts: Callable[[], Counts]) -> npt.NDArray[np.int64]:
        """Answer the queries of a round.

        Args:
            queries: How many.
            counts: Counts the votes, [queries, 2]. They do not leave this function.

        Returns:
            The class of each query, or `NO_ANSWER`.

        Raises:
            InvalidParameterError: If there are more queries than are left.
        """
        if queries > self.left:
            raise InvalidParameterError(f"{queries} queries were asked, but {self.left} are left of the job.")
        stream = self._generator.fork("votes", self.asked)
        most, self.asked = self._aggregator.max_answers, self.asked + queries
        allowed = None if most is None else most - self.answered
        votes = counts()
        if len(votes) != queries:
            raise InvalidParameterError(
                f"votes of {queries} queries were announced, but others were counted."
            )
        found = replace(self._aggregator, max_answers=allowed).answer(votes, generator=stream)
        self.answered += int((found != NO_ANSWER).sum())
        return found
