# SPDX-License-Identifier: Apache-2.0
"""Contributions within their bound are not accused, and others are found by their mean or their largest."""

import numpy as np
import pytest

from sfumato.audit.runs.contribution_log import ContributionLog

ALPHA = 1e-6
STEPS, COUNT, NOISE = 10, 50, 2.0


def logged(change=lambda step, beyond: beyond, stray=0.0, seed=0):
    log, draws = ContributionLog("canaries"), np.random.default_rng(seed)
    for step in range(STEPS):
        others = draws.normal(size=COUNT)
        others[3] += stray
        log.add(change(step, draws.normal(size=COUNT)), others, noise=NOISE)
    return log


def worst(log):
    return min(log.findings(), key=lambda finding: finding.p_value)


def test_p_values_of_right_contributions_are_no_smaller_than_chance_allows():
    found = np.array([min(1.0, 3 * worst(logged(seed=seed)).p_value) for seed in range(200)])
    for p in (0.02, 0.1, 0.3):
        assert np.mean(found <= p) <= p + 4 * np.sqrt(p / 200)


def test_contributions_below_the_bound_are_no_mistake():
    assert worst(logged(lambda step, beyond: beyond - 0.4)).p_value > ALPHA


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda step, beyond: beyond + 0.5, "over all steps: 2 times"),  # 1 + 0.5 * noise, about
        (lambda step, beyond: beyond + 3.0 * (step == 4), "in step 5"),
        (lambda step, beyond: beyond + 1e5 * ((step == 4) & (np.arange(COUNT) == 9)), "step 5"),
    ],
    ids=["all", "a step", "one"],
)
def test_a_mistake_is_found_and_named(change, says):
    found = worst(logged(change))
    assert found.p_value < ALPHA and says.split(":")[0] in found.message


def test_what_is_too_much_is_said_to_be_more_than_allowed():
    """Steps with more noise weigh less in the test, and so in what is said."""
    log, draws = ContributionLog("canaries"), np.random.default_rng(0)
    for noise, excess in ((1.0, 0.5), (10.0, -0.1)) * STEPS:
        log.add(draws.normal(size=COUNT) + excess, np.zeros(0), noise=noise)
    _, found, _ = log.findings()
    told = float(found.message.split("on average about ")[1].split()[0])
    assert found.p_value < ALPHA and 1 < told < 1.5 and log.mean() < 1


@pytest.mark.parametrize("stray", [50.0, -50.0])
def test_who_is_not_in_a_batch_moves_nothing(stray):
    assert worst(logged(stray=stray)).p_value < ALPHA


def test_a_log_goes_on_where_it_was():
    again = ContributionLog("canaries")
    again.load_state_dict(logged().state_dict())
    assert again.findings() == logged().findings()


def test_without_canaries_in_batches_nothing_is_found():
    log = ContributionLog("canaries")
    log.add(np.zeros(0), np.zeros(5), noise=1.0)
    assert log.findings() == [] and log.mean() is None and log.sees(1e-6).startswith("nothing")
