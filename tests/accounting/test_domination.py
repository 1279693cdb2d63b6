# SPDX-License-Identifier: Apache-2.0
"""A Gaussian that is said to dominate an event does, at every epsilon."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from scipy.special import ndtri_exp

from sfumato.accounting import events, gaussian
from sfumato.accounting.domination import gaussian_mu, statements
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import quick_epsilon

ADD_REMOVE = Relation.ADD_REMOVE


def _delta_of_randomized_response(epsilon: float, delta: float, x: float) -> float:
    """Return sup_S P(S) - x Q(S), for the worst (epsilon, delta)-DP mechanism."""
    high = (1 - delta) / (1 + math.exp(-epsilon))
    low = (1 - delta) / (1 + math.exp(epsilon))
    return delta + max(0.0, high - x * low) + max(0.0, low - x * high)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 4.0])
@pytest.mark.parametrize(("delta", "slack"), [(0.0, 0.0), (0.0, 1e-3), (1e-3, 1e-3), (1e-3, 2e-3)])
def test_the_gaussian_of_a_statement_dominates_it_and_a_smaller_one_does_not(
    epsilon: float, delta: float, slack: float
) -> None:
    mu = gaussian_mu([(epsilon, delta)], slack=slack)

    def covered(mu: float) -> bool:
        return all(
            _delta_of_randomized_response(epsilon, delta, math.exp(e))
            <= slack + (1 - slack) * gaussian.delta(mu, e) + 1e-9 * mu
            for e in np.linspace(0, 2 * epsilon, 4001)
        )

    assert covered(mu)
    assert not covered(0.99 * mu)


def test_statements_of_a_gaussian_give_the_gaussian_back() -> None:
    for mu in (0.2, 0.7, 2.0):
        proven = statements(dp.GaussianDpEvent(1 / mu), slack=1e-6, relation=ADD_REMOVE)
        assert 0.99 * mu < gaussian_mu(proven, slack=1e-6) < 1.01 * mu


@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_the_gaussian_of_a_run_dominates_it_at_every_epsilon(rate: float) -> None:
    run = events.dp_sgd(noise_multiplier=1.0, sampling_rate=rate, steps=100)
    slack = 1e-6
    mu = gaussian_mu(statements(run, slack=slack, relation=ADD_REMOVE), slack=slack)
    for delta in np.geomspace(2e-6, 0.2, 60):
        epsilon = quick_epsilon(run, delta=float(delta), relation=ADD_REMOVE)
        assert delta <= slack + gaussian.delta(mu, epsilon) * (1 + 1e-3) or epsilon == 0


def test_without_a_statement_for_the_slack_there_is_no_gaussian() -> None:
    assert gaussian_mu([(1.0, 1e-3)], slack=1e-4) == math.inf
    assert gaussian_mu([], slack=0.5) == math.inf
    assert gaussian_mu([(math.inf, 1e-9), (math.nan, 0.0)], slack=1e-4) == math.inf


def test_what_reveals_nothing_is_a_gaussian_of_nothing() -> None:
    assert gaussian_mu([(0.0, 0.0)], slack=0.0) == 0


def test_more_statements_never_need_a_larger_gaussian() -> None:
    few = [(2.0, 1e-6), (0.5, 0.1)]
    assert gaussian_mu([*few, (1.2, 1e-3)], slack=1e-6) < gaussian_mu(few, slack=1e-6)


@pytest.mark.parametrize("epsilon", [20.0, 36.0, 37.0, 40.0, 100.0, 600.0])
def test_a_large_epsilon_has_the_mu_of_its_randomized_response(epsilon: float) -> None:
    # It lies with probability 1 / (1 + e^epsilon), which 1 - x in float64 does not know beyond epsilon 37.
    exact = -2 * float(ndtri_exp(-np.logaddexp(0.0, epsilon)))
    assert exact <= gaussian_mu([(epsilon, 0.0)], slack=0.0) <= exact * (1 + 1e-8)
