# SPDX-License-Identifier: Apache-2.0
"""Each case is a fair attack: real neighbors, as far apart as they may be, noise from the generator given."""

from dataclasses import replace

import pytest

from attacks.releases import DELTA, Case, mechanism_cases, statistic_cases
from sfumato import mechanisms as m
from sfumato.accounting.guarantee import Relation
from sfumato.audit.mechanisms.exact_discrete import audit_discrete
from sfumato.audit.mechanisms.mechanism_attack import Vectorized
from sfumato.audit.mechanisms.outputs import read
from sfumato.audit.mechanisms.replay import LeakError, replay
from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.testing import seeded

CASES = {case.subject: case for case in (*mechanism_cases(), *statistic_cases())}
TENSORS = [subject for subject in CASES if subject.endswith("in a tensor")]
REPLAYED = [subject for subject in CASES if subject not in TENSORS]
ADDITIVE = ["Laplace", "Gaussian", "DiscreteLaplace", "DiscreteLaplace, replace-one", "DiscreteGaussian"]
# What costs something else than the round number that its case is made for.
PRICED = {"DiscreteGaussian": 0.9079, "discrete_gaussian, in a tensor": 0.9079}
PRICED |= {"GridGaussian, contributions rounded": 1.13, "GridGaussian, sum rounded": 1.131}
SEVERAL_STEPS = ["Variance", "StandardDeviation", "Quantiles", "FirstAbove", "AboveThreshold", "SparseVector"]


def once(case: Case):
    """Return a case's run as a release: one output."""
    if isinstance(case.run, Vectorized):
        many = case.run.run_many
        return lambda data, generator: many(data, 1, generator)[0]
    return case.run


@pytest.mark.parametrize("subject", list(CASES))
def test_a_case_draws_all_its_noise_from_the_generator_it_is_given(subject):
    case = CASES[subject]
    for data in (case.first, case.second):
        again = [once(case)(data, seeded(1)) for _ in range(2)]
        assert len(set(read(again).keys())) == 1
    drawn = [once(case)(case.first, seeded(seed)) for seed in range(60)]
    assert len(set(read(drawn).keys())) > 1  # there is noise


@pytest.mark.parametrize("subject", REPLAYED)
def test_the_data_sets_of_a_case_are_neighbors_to_every_mechanism(subject):
    case = CASES[subject]
    assert replay(once(case), case.first, case.second)
    assert replay(once(case), case.second, case.first)


@pytest.mark.parametrize("subject", TENSORS)
def test_the_data_sets_of_a_tensor_case_are_as_far_apart_as_they_may_be(subject):
    case = CASES[subject]
    moved = check_sensitivity(once(case), case.first, case.second, sensitivity=1.0)
    assert moved == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("subject", ADDITIVE)
def test_the_data_sets_of_an_additive_case_are_as_far_apart_as_they_may_be(subject):
    case = CASES[subject]
    (call,) = replay(case.run, case.first, case.second)
    assert abs(case.first - case.second) == call.mechanism.sensitivity


def test_a_case_of_strangers_would_be_noticed():
    case = replace(CASES["Laplace"], second=2.0)
    with pytest.raises(LeakError, match="moves a number by 2"):
        replay(case.run, case.first, case.second)


@pytest.mark.parametrize("subject", list(CASES))
def test_a_case_claims_what_it_was_made_for(subject):
    case = CASES[subject]
    made = 4.0 if subject in SEVERAL_STEPS or case.share < 1 else 1.0
    assert case.claim.epsilon == pytest.approx(PRICED.get(subject, made), rel=1e-3)
    assert case.claim.delta in (0.0, DELTA)


def test_what_replaces_somebody_says_so():
    replacing = {subject for subject, case in CASES.items() if case.claim.relation is Relation.REPLACE_ONE}
    assert {"DiscreteLaplace, replace-one", "Sum, replace-one", "RandomizedResponse"} <= replacing
    assert not {"Laplace", "Count", "Mean"} & replacing


@pytest.mark.parametrize("subject", [s for s, case in CASES.items() if case.exact is not None])
def test_a_case_with_a_known_law_is_run_as_that_law_says(subject):
    case = CASES[subject]
    assert type(case.exact).__name__ == case.audits
    found = audit_discrete(case.exact, case.first, case.second, delta=case.claim.delta, claim=case.claim)
    assert 0.8 * case.claim.epsilon < found.best.epsilon <= case.claim.epsilon


def test_all_mechanisms_of_known_law_have_it_in_their_case():
    known = (m.DiscreteLaplace, m.DiscreteGaussian, m.Exponential, m.PermuteAndFlip)
    known += (m.RandomizedResponse, m.UnaryEncoding)
    with_law = {case.audits for case in CASES.values() if case.exact is not None}
    assert with_law == {kind.__name__ for kind in known}


def test_only_statistics_of_rows_are_run_less_often():
    assert {case.share for case in mechanism_cases()} == {1.0}
    assert {case.audits for case in statistic_cases() if case.share == 0.5} == {
        "Covariance",
        "Correlation",
        "PrincipalComponents",
        "CoinPressMeans",
        "CoinPressMean",
        "CoinPressCovariance",
        "KarwaVadhanMean",
    }
