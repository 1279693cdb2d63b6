# SPDX-License-Identifier: Apache-2.0
"""Every mechanism and every statistic is attacked, and none of their claims is contradicted."""

import inspect
from dataclasses import replace

import pytest

from attacks import catalogue
from attacks.catalogue import table
from attacks.learners import estimator_cases, label_cases
from attacks.releases import mechanism_cases, statistic_cases
from attacks.selections import margin_cases
from attacks.workloads import workload_cases
from sfumato import mechanisms, statistics
from sfumato.accounting.guarantee import Guarantee
from sfumato.audit.mechanisms.exact_discrete import audit_laws
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded

SEEDS = 100  # that everybody knows: with many of them a choice among few stays the same
CASES = {case.subject: case for case in (*mechanism_cases(), *statistic_cases())}
FUNCTIONS = {"gaussian", "laplace", "discrete_gaussian", "discrete_laplace"}
FUNCTIONS |= {"add_gaussian_", "add_gaussian_many_", "add_laplace_"}
QUICK = [case.subject for case in mechanism_cases()]
QUICK += ["Count", "Count, Gaussian", "Mean", "BinCounts", "CategoryCounts", "TopK", "Quantile"]
STRONG = {"Laplace": 2500, "Gaussian": 5000, "DiscreteLaplace": 2500, "RandomizedResponse": 2500}
STRONG |= {"PermuteAndFlip": 2500}  # runs that show 0.1 of an epsilon of 1


@pytest.mark.parametrize("subject", QUICK)
def test_no_claim_is_contradicted(attacked, subject):
    result = attacked(CASES[subject], 200)
    assert result.subject == subject
    assert not result.refuted


@pytest.mark.parametrize("subject", STRONG)
def test_a_claim_that_is_too_small_is_contradicted(attacked, subject):
    case = CASES[subject]
    small = Guarantee(epsilon=0.1, delta=case.claim.delta, relation=case.claim.relation, privacy_unit="unit")
    assert attacked(replace(case, claim=small), STRONG[subject]).refuted


@pytest.mark.parametrize("subject", list(CASES))
def test_noise_that_can_be_told_in_advance_is_found_out(with_known_noise, subject):
    assert with_known_noise(CASES[subject], SEEDS).refuted


@pytest.mark.parametrize("subject", ["Laplace", "Exponential", "gaussian, in a tensor", "Count", "TopK"])
def test_a_case_whose_data_sets_are_the_same_would_be_noticed(with_known_noise, subject):
    case = CASES[subject]
    assert not with_known_noise(replace(case, second=case.first), SEEDS).refuted


def test_all_mechanisms_are_in_the_catalogue():
    noisy = {name for name in mechanisms.__all__ if hasattr(getattr(mechanisms, name), "event")}
    assert {case.audits for case in mechanism_cases()} == noisy | FUNCTIONS


def test_all_statistics_are_in_the_catalogue():
    public = {name: getattr(statistics, name) for name in statistics.__all__}
    asked = {name for name, kind in public.items() if inspect.isclass(kind) and hasattr(kind, "answer")}
    assert {case.audits for case in statistic_cases()} == asked - {"Question"}


def test_subjects_are_different():
    assert len(CASES) == len(mechanism_cases()) + len(statistic_cases())


@pytest.mark.parametrize("catalogued", [catalogue.mechanisms, catalogue.learners])
def test_the_bounds_of_a_catalogue_hold_together(catalogued):
    attacked = (*CASES, *margin_cases(), *workload_cases()), (*label_cases(), *estimator_cases())
    count = len(attacked[0] if catalogued is catalogue.mechanisms else attacked[1])
    first = next(catalogued(100, confidence=0.9, generator=seeded(0)))
    assert first.best.confidence == pytest.approx(1 - 0.1 / count)


@pytest.mark.parametrize("wrong", [0, -1, 1.5])
@pytest.mark.parametrize("catalogued", [catalogue.mechanisms, catalogue.learners])
def test_numbers_of_trials_that_are_none_are_refused(catalogued, wrong):
    with pytest.raises(InvalidParameterError):
        next(catalogued(wrong))


def test_a_table_marks_what_is_false():
    claim = CASES["Laplace"].claim
    told = audit_laws({"a": 1.0}, {"a": 0.5, "b": 0.5}, claim=claim, subject="a secret")
    kept = audit_laws({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}, claim=claim, subject="a coin")
    lines = table([told, kept]).splitlines()
    assert lines[2] == "| a secret | 1 **FALSE** | 0 | inf | every outcome, exactly |"
    assert lines[3] == "| a coin | 1 | 0 | 0 | every outcome, exactly |"


@pytest.mark.slow
@pytest.mark.parametrize("catalogued", [catalogue.mechanisms, catalogue.learners])
def test_the_whole_catalogue_stands(catalogued):
    refuted = [result.subject for result in catalogued(generator=seeded(1)) if result.refuted]
    assert refuted == []
