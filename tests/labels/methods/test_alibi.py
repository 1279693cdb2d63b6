# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, laplace

from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.labels.learning import soft_cross_entropy
from sfumato.labels.methods.alibi import BayesTargets, NoisyOneHot
from sfumato.labels.methods.randomized_response import marginal_loss
from sfumato.testing import seeded

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

ALPHA = 1e-6


@settings(deadline=None)
@given(
    st.lists(st.integers(-(10**7), 10**7), min_size=2, max_size=6),
    st.floats(0.01, 20),
    st.data(),
)
def test_every_output_is_at_most_e_to_the_epsilon_times_likelier(steps, epsilon, data):
    # The law of an entry is exp(-|x| / scale) on the grid: the log ratio of two labels, in exact arithmetic.
    mechanism = NoisyOneHot(epsilon=epsilon, classes=len(steps))
    one, other = data.draw(st.permutations(range(len(steps))))[:2]
    scale = Fraction(mechanism.scale) * 1024

    def distance(label):
        return sum(abs(x - 1024 * (i == label)) for i, x in enumerate(steps))

    assert (distance(other) - distance(one)) / scale <= Fraction(epsilon)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_bound_is_reached(epsilon):
    mechanism = NoisyOneHot(epsilon=epsilon, classes=3)
    found = mechanism.likelihoods(torch.tensor([[2.0, -1.0, 0.3]], dtype=torch.float64))[0]
    assert (found[0] - found[1]).item() == pytest.approx(epsilon, rel=1e-12)


def test_likelihoods_are_those_of_the_noise():
    mechanism = NoisyOneHot(epsilon=1.3, classes=4)
    noisy = mechanism.release([1, 3, 0], generator=seeded(0)).double()
    distances = (noisy.unsqueeze(1) - torch.eye(4)).abs().sum(2)  # [rows, classes]
    slow = -distances / mechanism.scale
    found = mechanism.likelihoods(noisy)
    assert torch.allclose(found.softmax(1), slow.softmax(1))


def test_the_event_is_two_entries_and_costs_epsilon():
    mechanism = NoisyOneHot(epsilon=1.0, classes=10)
    assert mechanism.relation is Relation.REPLACE_LABEL and mechanism.scale == 2.0
    assert isinstance(mechanism.event(), dp.SelfComposedDpEvent) and mechanism.event().count == 2
    cost = price(mechanism.event(), relation=Relation.REPLACE_LABEL, delta=1e-12).upper
    assert cost == pytest.approx(1.0, rel=1e-3) and cost <= 1.0 + 1e-9


def test_noise_has_the_stated_law():
    mechanism = NoisyOneHot(epsilon=0.5, classes=5)
    noise = mechanism.release([3] * 10_000, generator=seeded(2)) - torch.eye(5)[3]
    noise = (
        noise.flatten().numpy() + (np.arange(50_000) % 997 / 997 - 0.5) / 1024
    )  # off the grid, for the test
    assert kstest(noise, laplace(scale=4.0).cdf).pvalue > ALPHA
    assert kstest(noise, laplace(scale=4.4).cdf).pvalue < ALPHA  # 10% off is caught


def test_only_the_row_of_the_changed_label_changes_and_by_two_entries_of_one():
    mechanism = NoisyOneHot(epsilon=0.7, classes=4)
    labels = torch.arange(60) % 4
    neighbor = labels.clone()
    neighbor[13] = (labels[13] + 2) % 4
    before, after = (mechanism.release(y, generator=seeded(4)).double() for y in (labels, neighbor))
    moved = before - after
    assert moved.abs().sum().item() == 2.0 and moved[13].abs().sum().item() == 2.0


def test_posteriors_follow_bayes():
    mechanism = NoisyOneHot(epsilon=2.0, classes=3)  # scale 1
    likelihoods = mechanism.likelihoods(torch.tensor([[0.5, 2.0, -1.0]]))  # 0, 1, -1
    targets = BayesTargets(likelihoods, prior_decay=0.75)
    said = torch.tensor([[0.7, 0.2, 0.1]])
    prior = 0.75 / 3 + 0.25 * said
    golden = prior * torch.tensor([1.0, math.e, 1 / math.e])
    found = targets.at(torch.tensor([0]), said.log())
    assert torch.allclose(found, golden / golden.sum())
    again = 0.75 * prior + 0.25 * said  # the prior moves on
    golden = again * torch.tensor([1.0, math.e, 1 / math.e])
    assert torch.allclose(targets.at(torch.tensor([0]), said.log()), golden / golden.sum())


def test_without_memory_the_gradient_is_that_of_the_marginal_likelihood():
    # Fisher's identity: one step towards posteriors under the model's own prior climbs the likelihood.
    draws = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=draws, dtype=torch.float64, requires_grad=True)
    likelihoods = torch.randn(6, 4, generator=draws, dtype=torch.float64)
    posterior = BayesTargets(likelihoods, prior_decay=0.0).at(torch.arange(6), logits)
    (towards,) = torch.autograd.grad(soft_cross_entropy(logits, posterior).sum(), logits)
    (marginal,) = torch.autograd.grad(marginal_loss(logits, likelihoods).sum(), logits)
    assert torch.allclose(towards, marginal)


@pytest.mark.parametrize("decay", [1.0, -0.1, math.nan])
def test_a_decay_that_makes_no_sense_is_refused(decay):
    with pytest.raises(InvalidParameterError, match="prior_decay"):
        BayesTargets(torch.zeros(1, 2), prior_decay=decay)


@pytest.mark.parametrize("epsilon", [0.0, math.nan, math.inf, 1e-300])
def test_an_epsilon_that_makes_no_sense_is_refused(epsilon):
    with pytest.raises(InvalidParameterError, match=r"epsilon|scale"):
        NoisyOneHot(epsilon=epsilon, classes=3)
