# SPDX-License-Identifier: Apache-2.0
"""Bugs of single mechanisms and of prices, found by running them or from their exact laws."""

import contextlib
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sfumato.accounting import composition
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.mechanisms.exact_discrete import audit_laws, claim_of, law
from sfumato.audit.mechanisms.mechanism_attack import Vectorized, audit_mechanism
from sfumato.labels import RandomizedLabels
from sfumato.mechanisms import (
    AboveThreshold,
    AnswersSpentError,
    Exponential,
    Gaussian,
    Laplace,
    RandomizedResponse,
    SparseVector,
    randomized_response,
    tensors,
)
from sfumato.mechanisms.inputs import number
from sfumato.mechanisms.random import Generator, words
from sfumato.testing import seeded

from .catalogue import CONFIDENCE, Planted

__all__ = ["BUGS"]

ADDED = Relation.ADD_REMOVE


def told_apart(
    run: Any, first: Any, second: Any, promised: Guarantee, *, trials: int
) -> Callable[[int], bool]:
    """Return an audit that looks for an event which tells two neighbors apart."""

    def audit(seed: int) -> bool:
        return audit_mechanism(
            run, first, second, trials=trials, confidence=CONFIDENCE, claim=promised, generator=seeded(seed)
        ).refuted

    return audit


# --- additive noise ---------------------------------------------------------------------------------------


def rate_for_scale(patch: pytest.MonkeyPatch) -> None:
    def release(self, value, *, generator=None):
        noise = tensors.laplace((1,), scale=1 / self.scale, generator=generator, dtype=tensors.torch.float64)
        return number(value) + noise.item()

    patch.setattr(Laplace, "release", release)


def one_sided_noise(patch: pytest.MonkeyPatch) -> None:
    def release(self, value, *, generator=None):
        noise = tensors.gaussian((1,), stddev=self.stddev, generator=generator, dtype=tensors.torch.float64)
        return max(number(value), number(value) + noise.item())  # "the answer must not be too small"

    patch.setattr(Gaussian, "release", release)


_LAPLACE = Laplace(scale=2.0, sensitivity=1.0, relation=ADDED)
_GAUSSIAN = Gaussian(stddev=4.0, sensitivity=1.0, relation=ADDED)


def laplace_at(value: float, generator: Generator) -> float:
    return _LAPLACE.release(value, generator=generator)


def gaussian_at(value: float, generator: Generator) -> float:
    return _GAUSSIAN.release(value, generator=generator)


# --- choices ----------------------------------------------------------------------------------------------


def forget_the_factor_two(patch: pytest.MonkeyPatch) -> None:
    def _rate(self):
        return Fraction(self.epsilon) / Fraction(self.sensitivity)

    patch.setattr(Exponential, "_rate", _rate)


_CHOOSING = Exponential(epsilon=2.0, sensitivity=1.0, relation=Relation.REPLACE_ONE)
_UP, _DOWN = [1.0] + [0.0] * 19, [0.0] + [1.0] * 19  # one candidate falls by 1, all others rise


def one_bit_short(patch: pytest.MonkeyPatch) -> None:
    def _coins(shape, chance, generator):
        threshold = math.ceil(math.ldexp(chance, 63))  # of 64 bits
        return (words(math.prod(shape), generator) < np.uint64(threshold)).reshape(shape)

    patch.setattr(randomized_response, "_coins", _coins)


_RESPONSE = RandomizedResponse.calibrated(epsilon=1.0, num_buckets=2)


def reports(answer: int, count: int, generator: Generator) -> np.ndarray:
    return _RESPONSE.release([answer] * count, generator=generator)


# --- sparse vector ----------------------------------------------------------------------------------------


def never_end(patch: pytest.MonkeyPatch) -> None:
    original = AboveThreshold.ask

    def ask(self, value):
        above = original(self, value)
        self._left = self._max_answers  # "each question is independent"
        return above

    patch.setattr(AboveThreshold, "ask", ask)


_SPARSE = {
    "threshold": 0.0,
    "threshold_epsilon": 0.25,
    "comparison_epsilon": 0.25,
    "answer_epsilon": 1.0,
    "sensitivity": 1.0,
    "max_answers": 1,
    "relation": ADDED,
}


def answers(value: float, generator: Generator) -> float:
    """Ask the same question until the run ends, or long enough; return the sum of the answers."""
    run, total = SparseVector(**_SPARSE, generator=generator), 0.0
    with contextlib.suppress(AnswersSpentError):
        for _ in range(20):
            total += run.ask(value) or 0.0
    return total


# --- prices -----------------------------------------------------------------------------------------------


def ignore_counts(patch: pytest.MonkeyPatch) -> None:
    def basic(event, relation):
        parts = composition._statements(event, relation)
        return math.fsum(e for (e, _), _ in parts), min(1.0, math.fsum(d for (_, d), _ in parts))

    patch.setattr(composition, "basic", basic)


def user_of_three_labels(seed: int) -> bool:
    """Compare the exact laws of all reports of a user who owns three labels, and may change all of them."""
    method = RandomizedLabels(epsilon=1.0 + seed % 7, classes=3, contribution_bound=3)
    one = method._mechanism()
    outcomes = list(itertools.product(range(3), repeat=3))
    laws = [
        {seen: math.prod(law(one, label, range(3))[report] for report in seen) for seen in outcomes}
        for label in (0, 1)
    ]
    return audit_laws(*laws, claim=claim_of(method)).refuted


BUGS = (
    Planted(
        name="rate-for-scale",
        bug="Laplace noise is drawn with one over its scale",
        found_by="event search",
        plant=rate_for_scale,
        audit=told_apart(laplace_at, 0.0, 1.0, claim_of(_LAPLACE), trials=2000),
    ),
    Planted(
        name="noise-on-one-side",
        bug="noise that would lower the answer is left out",
        found_by="event search",
        plant=one_sided_noise,
        audit=told_apart(gaussian_at, 0.0, 1.0, claim_of(_GAUSSIAN, delta=1e-3), trials=1000),
    ),
    Planted(
        name="exponential-without-factor-two",
        bug="the exponential mechanism weighs scores by epsilon, and not by half of it",
        found_by="event search",
        plant=forget_the_factor_two,
        audit=told_apart(
            lambda scores, generator: _CHOOSING.release(scores, generator=generator),
            _UP,
            _DOWN,
            claim_of(_CHOOSING),
            trials=4000,
        ),
    ),
    Planted(
        name="randomized-response-one-bit-short",
        bug="coins are thrown against half their chance: truths are as likely as at twice the epsilon",
        found_by="event search",
        plant=one_bit_short,
        audit=told_apart(Vectorized(reports), 0, 1, claim_of(_RESPONSE), trials=4000),
    ),
    Planted(
        name="sparse-vector-without-end",
        bug="a sparse vector run goes on after its last answer, for free",
        found_by="event search",
        plant=never_end,
        audit=told_apart(answers, 500.0, 501.0, claim_of(SparseVector(**_SPARSE)), trials=400),
    ),
    Planted(
        name="accountant-ignores-a-count",
        bug="basic composition forgets how often a part is repeated",
        found_by="exact laws",
        plant=ignore_counts,
        audit=user_of_three_labels,
    ),
)
