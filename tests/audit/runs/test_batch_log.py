# SPDX-License-Identifier: Apache-2.0
"""Batches that are Poisson samples are not accused, and other batches are found out."""

import numpy as np
import pytest

from sfumato.audit.runs.batch_log import BatchLog

RATE, STEPS, COUNT = 0.1, 20, 500
ALPHA = 1e-6


def coins(seed=0, rate=RATE):
    return np.random.default_rng(seed).random((STEPS, COUNT)) < rate


def worst(batches, rate=RATE):
    log = BatchLog(rate)
    for taken in batches:
        log.add(taken)
    return min(log.findings(), key=lambda finding: finding.p_value)


def test_p_values_of_poisson_samples_are_no_smaller_than_chance_allows():
    found = np.array([min(1.0, 5 * worst(coins(seed)).p_value) for seed in range(200)])
    for p in (0.02, 0.1, 0.3):
        assert np.mean(found <= p) <= p + 4 * np.sqrt(p / 200)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_canaries_are_no_batches_of_one_size(count):
    draws = np.random.default_rng(0)
    found = worst(draws.random((STEPS, count)) < 0.5, rate=0.5)
    assert found.p_value > 1e-3


def shuffled():
    order = np.random.default_rng(0).permuted(np.tile(np.arange(10), (2, COUNT // 10)), axis=1)
    return [order[step // 10] == step % 10 for step in range(STEPS)]


def fixed():
    draws = np.random.default_rng(0)
    return [np.isin(np.arange(COUNT), draws.permutation(COUNT)[: COUNT // 10]) for _ in range(STEPS)]


CASES = {
    "too often": (coins(rate=0.13), "at a rate of"),
    "too seldom": (coins(rate=0.07), "at a rate of"),
    "one batch": (np.tile(coins()[0], (STEPS, 1)), "not drawn anew|in common"),
    "twice each": (np.repeat(coins()[::2], 2, axis=0), "in common"),
    "shuffled": (shuffled(), "not drawn anew"),
    "some always": (coins() | (np.arange(COUNT) % 100 == 0), "not drawn anew"),
    "of one size": (fixed(), "not Poisson"),
    "neighbors together": (np.repeat(coins()[:, ::2], 2, axis=1), "together"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_found_and_named(case):
    batches, says = CASES[case]
    found = worst(batches)
    assert found.p_value < ALPHA and any(said in found.message for said in says.split("|"))


def test_where_all_are_in_each_batch_there_is_nothing_to_find():
    log = BatchLog(1.0)
    log.add(np.ones(COUNT, dtype=bool))
    assert log.findings() == [] and log.sees(1e-6).startswith("nothing")


def test_a_log_goes_on_where_it_was():
    whole, first, second = (BatchLog(RATE) for _ in range(3))
    for index, taken in enumerate(coins()):
        whole.add(taken)
        if index < 7:
            first.add(taken)
    second.load_state_dict(first.state_dict())
    for taken in coins()[7:]:
        second.add(taken)
    assert second.findings() == whole.findings()
