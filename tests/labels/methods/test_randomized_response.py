# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sfumato.accounting.guarantee import Relation
from sfumato.labels.learning import soft_cross_entropy
from sfumato.labels.methods.randomized_response import (
    backward_loss,
    likelihoods,
    marginal_loss,
    report,
    response,
)
from sfumato.testing import seeded

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

ALPHA = 1e-6


def law(mechanism):
    """P[report | label], from the definition."""
    k, noise = mechanism.num_buckets, mechanism.noise_parameter
    return (1 - noise) * torch.eye(k, dtype=torch.float64) + noise / k


@settings(deadline=None)
@given(st.floats(0.01, 20), st.integers(2, 12))
def test_every_report_is_at_most_e_to_the_epsilon_times_likelier(epsilon, classes):
    found = likelihoods(response(epsilon=epsilon, classes=classes), torch.arange(classes))  # [report, label]
    ratios = (found.amax(1) - found.amin(1)).max().item()
    assert epsilon * (1 - 1e-6) - 1e-6 <= ratios <= epsilon * (1 + 1e-12)
    assert torch.allclose(found.exp().sum(0), torch.ones(classes, dtype=torch.float64))


def test_the_response_is_stated_for_labels():
    mechanism = response(epsilon=1.0, classes=10)
    assert mechanism.relation is Relation.REPLACE_LABEL
    assert mechanism.event() == dp.RandomizedResponseDpEvent(mechanism.noise_parameter, 10)
    # 1 - p + p / k = e / (e + 9)
    truth = 1 - mechanism.noise_parameter * 0.9
    assert truth == pytest.approx(math.e / (math.e + 9), rel=1e-12)


def test_reports_have_the_stated_law():
    reports = report(response(epsilon=1.0, classes=4), torch.full((50_000,), 2), generator=seeded(1))
    counts = np.bincount(reports.numpy(), minlength=4)
    for epsilon, right in ((1.0, True), (1.1, False)):
        weights = np.where(np.arange(4) == 2, math.exp(epsilon), 1.0)
        assert (chisquare(counts, weights / weights.sum() * 50_000).pvalue > ALPHA) == right


def test_only_the_report_of_the_changed_label_changes():
    mechanism = response(epsilon=1.0, classes=5)
    labels = torch.arange(200) % 5
    neighbor = labels.clone()
    neighbor[77] = (labels[77] + 1) % 5
    before, after = (report(mechanism, y, generator=seeded(3)) for y in (labels, neighbor))
    assert torch.nonzero(before != after).flatten().tolist() in ([], [77])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 8), st.integers(2, 6))
def test_the_backward_loss_is_unbiased_exactly(seed, epsilon, classes):
    mechanism = response(epsilon=epsilon, classes=classes)
    logits = 3 * torch.randn(classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    every = logits.expand(classes, -1)
    expected = law(mechanism) @ backward_loss(mechanism)(every, torch.arange(classes))  # over the report
    assert torch.allclose(expected, soft_cross_entropy(every, torch.arange(classes)), rtol=1e-9, atol=1e-9)
    plain = law(mechanism) @ soft_cross_entropy(every, torch.arange(classes))
    assert not torch.allclose(plain, soft_cross_entropy(every, torch.arange(classes)), rtol=1e-9, atol=1e-9)


def test_the_backward_loss_has_the_stated_value():
    mechanism = response(epsilon=math.log(3), classes=2)  # the truth with chance 3/4, noise with 1/2
    logits = torch.tensor([[0.0, math.log(3)]], dtype=torch.float64)  # probabilities 1/4, 3/4
    of_one, of_zero = -math.log(3 / 4), -math.log(1 / 4)
    golden = (0.75 * of_one - 0.25 * of_zero) / 0.5
    assert backward_loss(mechanism)(logits, torch.tensor([1])).item() == pytest.approx(golden, rel=1e-9)


def test_the_marginal_loss_is_the_chance_of_the_report():
    mechanism = response(epsilon=1.0, classes=3)
    probabilities = torch.tensor([[0.2, 0.7, 0.1]], dtype=torch.float64)
    for seen in range(3):
        chance = (probabilities @ law(mechanism))[0, seen]
        found = marginal_loss(probabilities.log(), likelihoods(mechanism, torch.tensor([seen])))
        assert found.item() == pytest.approx(-math.log(chance), rel=1e-12)


def test_the_marginal_loss_is_least_at_the_true_probabilities():
    mechanism = response(epsilon=1.0, classes=3)
    truth = torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64)
    logits = truth.log().clone().requires_grad_()
    losses = marginal_loss(logits.expand(3, -1), likelihoods(mechanism, torch.arange(3)))
    (truth @ law(mechanism) @ losses).backward()
    assert logits.grad.abs().max() < 1e-12
