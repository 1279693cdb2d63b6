# SPDX-License-Identifier: Apache-2.0
"""Randomized response and unary encoding: each person randomizes their own answer.

Coins compare 64-bit words with a threshold that is rounded towards more noise: a chance is the stated one or
up to 2^-64 noisier. Uniform buckets are exact.

Guarantee  Whatever one person's true answer is, each report is at most e^epsilon times likelier than under
           any other answer (local differential privacy; no party needs to be trusted).
Neighbors  Replace-one: one person's answer is replaced by another; replace-label where the answer is a label.
           A list holds one answer for each person; a person who answers twice is charged twice. Whether a
           person answers at all is not hidden, so no other relation is offered.
Edge cases Answers outside 0 ... num_buckets - 1 are refused without being shown. No answers give no reports.
Source     Warner 1965; Kairouz, Bonawitz, Ramage 2016 (k-ary); Wang, Blocki, Li, Jha 2017, "Locally
           differentially private protocols for frequency estimation", Sections 4.2 and 4.3 (SUE, OUE).
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import DpEvent
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import inputs
from sfumato.mechanisms.random import Generator, uniform_below, words

__all__ = ["Encoding", "RandomizedResponse", "UnaryEncoding"]

_STEP = 2.0**-53
_ROUNDINGS = 4  # steps added to a chance of noise: more than float64 can lose while computing it


def _towards_noise(chance: float) -> float:
    """Round a chance up, past any error of computing it."""
    return (math.ceil(chance / _STEP) + _ROUNDINGS) * _STEP


def _coins(shape: tuple[int, ...], chance: float, generator: Generator | None) -> npt.NDArray[np.bool_]:
    threshold = math.ceil(math.ldexp(chance, 64))  # ldexp of a float is exact
    coins = words(math.prod(shape), generator) < np.uint64(threshold)
    return coins.reshape(shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomizedResponse:
    """Randomized response: report the truth, or with some probability a bucket drawn uniformly from all.

    With two buckets this is Warner's yes-or-no question.

    Args:
        noise_parameter: The probability that the report is drawn uniformly.
        num_buckets: How many answers there are.
        relation: Which data sets are neighbors.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> RandomizedResponse.calibrated(epsilon=1.0, num_buckets=4).event()
    RandomizedResponseDpEvent(noise_parameter=0.69951..., num_buckets=4)
    """

    noise_parameter: float
    num_buckets: int = 2
    relation: Relation = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        _check.probability(noise_parameter=self.noise_parameter)
        inputs.settle(self, "noise_parameter")
        _check_buckets(self.num_buckets)
        _check_replaces(self.relation)

    @classmethod
    def calibrated(
        cls, *, epsilon: float, num_buckets: int = 2, relation: Relation = Relation.REPLACE_ONE
    ) -> "RandomizedResponse":
        """Return the mechanism whose truth is e^epsilon times likelier than any other answer.

        Args:
            epsilon: The privacy budget of one report.
            num_buckets: How many answers there are.
            relation: Which data sets are neighbors.

        Returns:
            The mechanism.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        _check.positive(epsilon=epsilon)
        epsilon = inputs.parameter("epsilon", epsilon)
        _check_buckets(num_buckets)
        # truth : other = 1 - p + p/k : p/k = e^epsilon : 1; written so that a large epsilon cannot overflow
        chance = num_buckets * math.exp(-epsilon) / (1 + (num_buckets - 1) * math.exp(-epsilon))
        chance = _towards_noise(chance)
        if chance >= 1:
            raise InvalidParameterError(f"epsilon={epsilon!r} is too small: every answer would be noise.")
        return cls(noise_parameter=chance, num_buckets=num_buckets, relation=relation)

    def release(
        self, answers: Sequence[int] | npt.NDArray[np.integer], *, generator: Generator | None = None
    ) -> npt.NDArray[np.int64]:
        """Randomize answers, one report for each.

        Args:
            answers: The true answers, from 0 to num_buckets - 1.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The reports.

        Raises:
            InvalidParameterError: If an answer is out of range. The message does not show it.
        """
        true = _buckets(answers, self.num_buckets)
        noisy = _coins(true.shape, self.noise_parameter, generator)
        return np.where(noisy, uniform_below(self.num_buckets, true.size, generator), true)

    def estimate(self, counts: Sequence[float] | npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
        """Return unbiased estimates of the true counts from the counts of reports.

        Args:
            counts: How often each bucket was reported.

        Returns:
            The estimates, one for each bucket.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        seen = _counts(counts, self.num_buckets)
        background = self.noise_parameter * seen.sum() / self.num_buckets
        return (seen - background) / (1 - self.noise_parameter)

    def event(self) -> DpEvent:
        """Return the event of one report, for the person who gives it.

        Returns:
            The event.
        """
        return dp.RandomizedResponseDpEvent(self.noise_parameter, int(self.num_buckets))


class Encoding(enum.Enum):
    """How unary encoding divides its epsilon between ones and zeros.

    Attributes:
        SYMMETRIC: Both kinds of bit flip equally often (basic RAPPOR).
        OPTIMIZED: Ones are kept half of the time, zeros as often as epsilon allows.
    """

    SYMMETRIC = "symmetric"
    OPTIMIZED = "optimized"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnaryEncoding:
    """Unary encoding: report one bit for each bucket, each randomized on its own.

    Args:
        epsilon: The privacy budget of one report.
        num_buckets: How many answers there are.
        encoding: How epsilon is divided between ones and zeros.
        relation: Which data sets are neighbors.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> UnaryEncoding(epsilon=1.0, num_buckets=5).release([2, 2, 4]).shape
    (3, 5)
    """

    epsilon: float
    num_buckets: int
    encoding: Encoding = Encoding.OPTIMIZED
    relation: Relation = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        inputs.settle(self, "epsilon")
        _check_buckets(self.num_buckets)
        _check_replaces(self.relation)
        if not isinstance(self.encoding, Encoding):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise InvalidParameterError(f"encoding must be an Encoding, but {self.encoding!r} was given.")
        if not self.zero_becomes_one < self.one_stays_one:
            raise InvalidParameterError(f"epsilon={self.epsilon!r} is too small: every bit would be noise.")

    @property
    def zero_becomes_one(self) -> float:
        """Return the chance that a zero is reported as one: 1 / (e^epsilon + 1), or with epsilon / 2."""
        share = self.epsilon / 2 if self.encoding is Encoding.SYMMETRIC else self.epsilon
        return _towards_noise(math.exp(-share) / (1 + math.exp(-share)))

    @property
    def one_stays_one(self) -> float:
        """Return the chance that a one is reported as one."""
        return 1 - self.zero_becomes_one if self.encoding is Encoding.SYMMETRIC else 0.5

    def release(
        self, answers: Sequence[int] | npt.NDArray[np.integer], *, generator: Generator | None = None
    ) -> npt.NDArray[np.bool_]:
        """Randomize answers, one row of bits for each.

        Args:
            answers: The true answers, from 0 to num_buckets - 1.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The reports, as an [answers, buckets] array of bits.

        Raises:
            InvalidParameterError: If an answer is out of range. The message does not show it.
        """
        true = _buckets(answers, self.num_buckets)
        reports = _coins((true.size, self.num_buckets), self.zero_becomes_one, generator)
        # Both chances below one half round towards it: that is the noisy side for ones as for zeros.
        reports[np.arange(true.size), true] = ~_coins((true.size,), 1 - self.one_stays_one, generator)
        return reports

    def estimate(
        self, counts: Sequence[float] | npt.NDArray[np.integer], *, num_reports: int
    ) -> npt.NDArray[np.float64]:
        """Return unbiased estimates of the true counts from the counts of ones.

        Args:
            counts: How often each bit was one.
            num_reports: How many reports there are.

        Returns:
            The estimates, one for each bucket.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        seen = _counts(counts, self.num_buckets)
        _check.non_negative(num_reports=num_reports)
        flips = self.zero_becomes_one
        return (seen - num_reports * flips) / (self.one_stays_one - flips)

    def event(self) -> DpEvent:
        """Return the event of one report, for the person who gives it.

        Returns:
            The event.
        """
        return PureDpEvent(self.epsilon)


def _check_buckets(num_buckets: int) -> None:
    _check.count(num_buckets=num_buckets)
    if num_buckets < 2:
        raise InvalidParameterError(f"num_buckets must be 2 or more, but {num_buckets!r} was given.")


def _check_replaces(relation: Relation) -> None:
    inputs.check_relation(relation)
    if not relation.replaces:
        raise InvalidParameterError(
            f"relation must be one that replaces an answer, but {relation.value} was given: a report shows "
            "that its person answered. Use Relation.REPLACE_ONE, or Relation.REPLACE_LABEL for labels."
        )


def _buckets(answers: Sequence[int] | npt.NDArray[np.integer], num_buckets: int) -> npt.NDArray[np.int64]:
    given = inputs.array(answers, what="answers")
    if given.size == 0:
        return np.empty(0, dtype=np.int64)
    whole = given.ndim == 1 and given.dtype.kind in "iub"
    if not (whole and bool(((given >= 0) & (given < num_buckets)).all())):
        raise InvalidParameterError(
            f"answers must be a list of whole numbers from 0 to {num_buckets - 1}; nothing was released."
        )
    return given.astype(np.int64)


def _counts(counts: Sequence[float] | npt.NDArray[np.integer], num_buckets: int) -> npt.NDArray[np.float64]:
    seen = inputs.numbers(counts, what="counts")
    if seen.shape != (num_buckets,):
        raise InvalidParameterError(f"counts must hold one number for each of the {num_buckets} buckets.")
    return seen
