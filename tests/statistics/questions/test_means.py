# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import FastGenerator, Laplace
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.questions.means import Mean, mean
from sfumato.statistics.questions.variances import variance
from sfumato.statistics.release import Covers
from sfumato.testing import seeded

LIMITS = (0.0, 100.0)


SAMPLE = np.random.default_rng(5).beta(2, 5, 800) * 100


@pytest.mark.parametrize(
    ("size", "terms"),
    [
        (800, {"epsilon": 0.1}),
        (800, {"epsilon": 1.0}),
        (60, {"epsilon": 1.0}),
        (800, {"epsilon": 0.5, "delta": 1e-6}),
        (800, {"epsilon": 0.5, "public_size": 800}),
        (2000, {"epsilon": 5.0}),
    ],
    ids=str,
)
def test_an_interval_for_the_population_covers_its_mean_as_often_as_it_says(check_coverage, size, terms):
    question = Mean(bounds=LIMITS, population=True, **terms)
    generator, rng = FastGenerator(2), np.random.default_rng(6)

    def contains(_: int) -> bool:
        answer = question.answer(column_of(rng.beta(2, 5, size) * 100), generator=generator)
        return answer.value is not None and 200 / 7 in answer.interval

    check_coverage(contains)


def test_an_interval_for_noise_alone_would_miss_the_population():
    question, generator, rng = Mean(bounds=LIMITS, epsilon=5.0), FastGenerator(3), np.random.default_rng(7)
    found = [
        200 / 7 in question.answer(column_of(rng.beta(2, 5, 800) * 100), generator=generator).interval
        for _ in range(200)
    ]
    assert np.mean(found) < 0.5


def test_sharing_rows_out_beats_splitting_epsilon():
    data, runs, generator = column_of(SAMPLE), 400, FastGenerator(5)
    question = Mean(bounds=LIMITS, epsilon=0.2)
    shared = [question.answer(data, generator=generator).value for _ in range(runs)]
    sums = Laplace.calibrated(epsilon=0.1, sensitivity=50.0, relation=Relation.ADD_REMOVE)
    counts = Laplace.calibrated(epsilon=0.1, sensitivity=1.0, relation=Relation.ADD_REMOVE)
    split = [
        50 + sums.release(float((SAMPLE - 50).sum()), generator=generator)
        / counts.release(800.0, generator=generator)
        for _ in range(runs)
    ]  # fmt: skip
    assert np.var(shared) < 0.65 * np.var(split)  # in theory 0.5


def test_intervals_say_what_they_cover():
    values = SAMPLE.tolist()
    assert mean(values, bounds=LIMITS, epsilon=1.0).interval.covers == (Covers.NOISE,)
    sampled = mean(values, bounds=LIMITS, epsilon=1.0, population=True).interval.covers
    assert sampled == (Covers.NOISE, Covers.SAMPLING)
    assert variance(values, bounds=LIMITS, epsilon=1.0).interval.covers == (Covers.NOISE,)


def test_too_few_rows_fail_having_spent(account):
    release = mean([], bounds=(0, 1), epsilon=0.001, account=account, generator=seeded(0))
    while release.value is not None:
        release = mean([], bounds=(0, 1), epsilon=0.001, account=account)
    assert account.spent().epsilon >= 0.001
    assert str(release).startswith("mean of values: failed")


def test_rows_of_one_owner_are_no_independent_draws():
    data = column_of([1.0, 2.0], owners=["a", "a"], contribution_bound=2)
    with pytest.raises(InvalidParameterError, match="independent"):
        mean(data, bounds=(0, 1), epsilon=1.0, population=True)
