# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import chisquare

from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.labels.methods.prior_response import RRWithPrior
from sfumato.labels.methods.randomized_response import report, response
from sfumato.testing import seeded

ALPHA = 1e-6

weights = st.lists(st.floats(0, 1) | st.just(0.0), min_size=2, max_size=5)


class Scripted:
    """A generator that gives the words it was told to give."""

    secure, seeded = False, True

    def __init__(self, *told):
        self.told = list(told)

    def fill(self, out):
        for start in range(0, len(out), 8):
            out[start : start + 8] = self.told.pop(0).to_bytes(8, "little")


def sampled_law(mechanism, prior):
    """P[label, report] of the sampler itself: every path through its draws, with the chance of that path."""
    size = int(mechanism.sizes([prior])[0])
    found = np.zeros((mechanism.classes, mechanism.classes))
    if size == 1:
        for label in range(mechanism.classes):
            found[label, int(mechanism.release([label], prior=prior, generator=Scripted()))] = 1
        return found
    threshold = math.ceil(math.ldexp(response(epsilon=mechanism.epsilon, classes=size).noise_parameter, 64))
    coins = {threshold - 1: threshold / 2**64, threshold: 1 - threshold / 2**64}
    for label, evenly, coin, noise in itertools.product(
        range(mechanism.classes), range(size), coins, range(size)
    ):
        seen = mechanism.release([label], prior=prior, generator=Scripted(evenly, coin, noise))
        found[label, int(seen)] += coins[coin] / size**2
    return found


@settings(max_examples=60, deadline=None)
@given(weights, st.floats(0.01, 8))
def test_no_report_is_more_than_e_to_the_epsilon_times_likelier_for_any_prior(prior, epsilon):
    assume(sum(prior) > 1e-300)
    mechanism = RRWithPrior(epsilon=epsilon, classes=len(prior))
    law = sampled_law(mechanism, prior)
    assert law.sum(1) == pytest.approx(np.ones(len(prior)))
    reported = law.max(0) > 0
    ratios = law[:, reported].max(0) / law[:, reported].min(0)
    assert ratios.max() <= math.exp(epsilon) * (1 + 1e-12)
    if reported.sum() > 1:
        assert ratios.max() == pytest.approx(math.exp(epsilon), rel=1e-6)  # tight
    for seen in np.flatnonzero(reported):
        known = mechanism.likelihoods(torch.tensor([seen]), prior=prior).exp()[0]
        assert known.numpy() == pytest.approx(law[:, seen], rel=1e-12)


def right(prior, epsilon, size):
    """P[report = label] where a label is drawn from the prior, and `size` classes are reported."""
    return sum(sorted(prior, reverse=True)[:size]) * math.exp(epsilon) / (math.exp(epsilon) + size - 1)


@settings(deadline=None)
@given(weights, st.floats(0.01, 8))
def test_the_best_number_of_classes_is_chosen(prior, epsilon):
    assume(sum(prior) > 1e-6)
    chosen = int(RRWithPrior(epsilon=epsilon, classes=len(prior)).sizes([prior])[0])
    best = max(right(prior, epsilon, size) for size in range(1, len(prior) + 1))
    assert right(prior, epsilon, chosen) == pytest.approx(best, rel=1e-12)


def best_of_all_private_reports(prior, epsilon):
    """The largest P[report = label] of any epsilon-private report, by linear programming."""
    k = len(prior)
    place = np.arange(k * k).reshape(k, k)  # [label, report]
    rows = []
    for one, other, seen in itertools.product(range(k), range(k), range(k)):
        if one != other:
            row = np.zeros(k * k)
            row[place[one, seen]], row[place[other, seen]] = 1, -math.exp(epsilon)
            rows.append(row)
    sums = np.zeros((k, k * k))
    for label in range(k):
        sums[label, place[label]] = 1
    gain = np.zeros(k * k)
    gain[np.diag(place)] = prior
    return -linprog(-gain, A_ub=np.array(rows), b_ub=np.zeros(len(rows)), A_eq=sums, b_eq=np.ones(k)).fun


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(
    "prior", [(0.5, 0.3, 0.15, 0.05), (0.25,) * 4, (0.9, 0.1, 0.0), (0.4, 0.4, 0.2)], ids=str
)
def test_no_private_report_is_right_more_often(prior, epsilon):
    law = sampled_law(RRWithPrior(epsilon=epsilon, classes=len(prior)), list(prior))
    found = float(np.diag(law) @ np.array(prior))
    assert found == pytest.approx(best_of_all_private_reports(prior, epsilon), rel=1e-7)


def test_the_stated_example_holds():
    # epsilon = ln 3: k = 1 is right with 0.5, k = 2 with 3/4 * 0.82 = 0.615, k = 3 with 3/5 = 0.6.
    mechanism = RRWithPrior(epsilon=math.log(3), classes=3)
    prior = [0.18, 0.5, 0.32]
    assert mechanism.sizes([prior, [0.26, 0.48, 0.26]]).tolist() == [2, 3]
    golden = [[0.0, 0.5, 0.5], [0.0, 0.75, 0.25], [0.0, 0.25, 0.75]]
    assert sampled_law(mechanism, prior) == pytest.approx(np.array(golden), abs=1e-12)


def test_an_even_prior_is_plain_randomized_response():
    mechanism = RRWithPrior(epsilon=1.0, classes=4)
    assert mechanism.sizes([[1.0] * 4]).tolist() == [4]
    plain = math.e / (math.e + 3) * np.eye(4) + (1 - np.eye(4)) / (math.e + 3)
    assert sampled_law(mechanism, [1.0] * 4) == pytest.approx(plain, rel=1e-12)


def test_reports_have_the_stated_law():
    mechanism = RRWithPrior(epsilon=1.0, classes=5)
    prior = [0.4, 0.35, 0.2, 0.03, 0.02]
    size = int(mechanism.sizes([prior])[0])
    assert size == 2
    for label, odds in ((1, math.e), (4, 1.0)):
        reports = mechanism.release([label] * 50_000, prior=prior, generator=seeded(label))
        counts = np.bincount(reports.numpy(), minlength=5)
        assert counts[2:].sum() == 0
        for wrong in (1.0, 1.1):
            chances = np.array([1.0, odds * wrong]) / (1 + odds * wrong) * 50_000
            assert (chisquare(counts[:2], chances).pvalue > ALPHA) == (wrong == 1.0)


def test_only_the_report_of_the_changed_label_changes():
    mechanism = RRWithPrior(epsilon=1.0, classes=6)
    draws = torch.Generator().manual_seed(0)
    prior = torch.rand(300, 6, generator=draws) ** 4
    labels = torch.randint(6, (300,), generator=draws)
    changed = 0
    for row in range(0, 300, 10):
        neighbor = labels.clone()
        neighbor[row] = (labels[row] + 1) % 6
        before, after = (mechanism.release(y, prior=prior, generator=seeded(5)) for y in (labels, neighbor))
        assert torch.nonzero(before != after).flatten().tolist() in ([], [row])
        changed += int((before != after).sum())
    assert changed > 0  # else the replay would show nothing


def test_the_cost_is_epsilon_for_labels():
    mechanism = RRWithPrior(epsilon=0.5, classes=3)
    assert mechanism.event() == PureDpEvent(0.5) and mechanism.relation is Relation.REPLACE_LABEL


def test_no_labels_give_no_reports_and_a_large_epsilon_the_truth():
    assert RRWithPrior(epsilon=1.0, classes=3).release([], prior=[1, 1, 1]).shape == (0,)
    labels = torch.tensor([2, 0, 1])
    assert RRWithPrior(epsilon=800.0, classes=3).release(labels, prior=[1, 1, 1]).equal(labels)
    assert report(response(epsilon=800.0, classes=3), labels).equal(labels)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e-17])
def test_an_epsilon_that_makes_no_sense_is_refused(epsilon):
    with pytest.raises(InvalidParameterError, match="epsilon"):
        RRWithPrior(epsilon=epsilon, classes=3)
