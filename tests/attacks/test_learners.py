# SPDX-License-Identifier: Apache-2.0
"""Every estimator and every label method is attacked fairly, and none of their claims is contradicted."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks.learners import estimator_cases, label_cases
from attacks.releases import DELTA
from sfumato import estimators, labels
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.mechanisms.outputs import read
from sfumato.audit.mechanisms.replay import replay
from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.labels.methods import released_labels
from sfumato.testing import seeded

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

SEEDS = 15  # that everybody knows
CASES = {case.subject: case for case in (*estimator_cases(), *label_cases())}
LABELS = [case.subject for case in label_cases()]
BY_STEPS = ["SelfConv", "SelfSpan"]
QUICK = [subject for subject in LABELS if subject not in BY_STEPS] + ["TheilSen"]
STRONG = {"RandomizedLabels": 2500, "TukeyEM": 500, "PCA": 500}  # runs that show 0.1
REPLAYED = ["NoisyStats", "TheilSen", "AdaSSP", "StandardScaler", "StandardScaler, Gaussian"]
REPLAYED += ["RandomizedLabels", "PriorLabels", "ClusterLabels", "ClusterLabels, Gaussian"]


@pytest.mark.parametrize("subject", QUICK)
def test_no_claim_is_contradicted(attacked, subject):
    result = attacked(CASES[subject], 200)
    assert result.subject == subject
    assert not result.refuted


@pytest.mark.parametrize("subject", STRONG)
def test_a_claim_that_is_too_small_is_contradicted(attacked, subject):
    case = CASES[subject]
    small = Guarantee(epsilon=0.1, delta=case.claim.delta, relation=case.claim.relation, privacy_unit="row")
    assert attacked(replace(case, claim=small), STRONG[subject]).refuted


@pytest.mark.parametrize("subject", ["RandomizedLabels", "PriorLabels", "MultiStage", "Alibi"])
def test_labels_with_too_little_noise_are_found_out(attacked, monkeypatch, subject):
    monkeypatch.setattr(released_labels, "label_share", lambda epsilon, contribution_bound: 6 * epsilon)
    assert attacked(CASES[subject], 400).refuted


def test_an_estimator_with_too_little_noise_is_found_out(attacked, monkeypatch):
    monkeypatch.setattr(estimators.PCA, "_noise", lambda estimator: 0.02 / estimator.epsilon)
    assert attacked(CASES["PCA"], 1000).refuted


@pytest.mark.parametrize("subject", list(CASES))
def test_noise_that_can_be_told_in_advance_is_found_out(with_known_noise, subject):
    assert with_known_noise(CASES[subject], SEEDS).refuted


@pytest.mark.parametrize("subject", ["PCA", "TukeyEM", "MultiStage", "ClusterLabels"])
def test_a_case_whose_data_sets_are_the_same_would_be_noticed(with_known_noise, subject):
    case = CASES[subject]
    assert not with_known_noise(replace(case, second=case.first), SEEDS).refuted


@pytest.mark.parametrize("subject", list(CASES))
def test_a_case_draws_all_its_noise_from_the_generator_it_is_given(subject):
    case = CASES[subject]
    for data in (case.first, case.second):
        again = [case.run(data, seeded(1)) for _ in range(2)]
        assert len(set(read(again).keys())) == 1
    drawn = [case.run(case.second, seeded(seed)) for seed in range(10)]
    assert len(set(read(drawn).keys())) > 1  # there is noise


def rows_of(data):
    """Return rows of numbers, whatever is given: X and y, X alone, or labels."""
    parts = data if isinstance(data, tuple) else (data,)
    return np.concatenate([np.asarray(part, dtype=float).reshape(len(part), -1) for part in parts], axis=1)


@pytest.mark.parametrize("subject", list(CASES))
def test_the_data_sets_of_a_case_are_neighbors(subject):
    case = CASES[subject]
    first, second = rows_of(case.first), rows_of(case.second)
    if case.claim.relation is Relation.ADD_REMOVE:
        assert len(second) == len(first) + 1 and np.array_equal(second[:-1], first)
    else:
        changed = int((first != second).any(axis=1).sum())
        assert changed == (2 if subject.endswith("a user's") else 1)
    assert (case.claim.relation is Relation.REPLACE_LABEL) == (subject in LABELS)


@pytest.mark.parametrize("subject", REPLAYED)
def test_the_data_sets_of_a_case_are_neighbors_to_every_mechanism(subject):
    case = CASES[subject]
    assert replay(case.run, case.first, case.second)
    assert replay(case.run, case.second, case.first)


def test_a_minimum_moves_by_half_of_what_it_may():
    # A row's slope is 1/2 where nothing is learned yet, and hardly any data makes it 1.
    case = CASES["LogisticRegression, output"]
    moved = check_sensitivity(case.run, case.first, case.second, sensitivity=0.1)
    assert moved == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("subject", list(CASES))
def test_a_case_claims_what_it_was_made_for(subject):
    case = CASES[subject]
    made = 2.0 if subject in BY_STEPS else 1.0 if subject in LABELS else 4.0
    assert case.claim.epsilon == pytest.approx(made, rel=1e-3)
    assert case.claim.delta in (0.0, DELTA)
    assert case.share == 1.0 or subject in [*BY_STEPS, "LogisticRegression, DP-SGD", "Search"]


PRICED = {
    "LogisticRegression, objective, Gaussian": estimators.LogisticRegression(
        epsilon=4.0, delta=DELTA, clip_norm=1.0, classes=(0, 1), fit_intercept=False, regularization=1.0
    ),
    "TukeyEM": estimators.TukeyEM(
        epsilon=4.0, delta=DELTA, num_models=33, fit_intercept=False, relation="replace-one"
    ),
}


@pytest.mark.parametrize("subject", PRICED)
def test_what_was_priced_beforehand_runs_as_its_estimator_does(subject):
    case, estimator = CASES[subject], PRICED[subject]
    for data in (case.first, case.second):
        fitted = estimator.set_params(random_state=seeded(2)).fit(*data)
        told = case.run(data, seeded(2))
        coefficients = told[0] if isinstance(told, tuple) else told
        assert np.array_equal(np.ravel(fitted.coef_), np.ravel(coefficients), equal_nan=True)
    assert fitted.guarantee_ == case.claim


def test_all_estimators_are_in_the_catalogue():
    public = (getattr(estimators, name) for name in estimators.__all__)
    kinds = {
        kind for kind in public if inspect.isclass(kind) and issubclass(kind, estimators.PrivateEstimator)
    }
    names = {kind.__name__ for kind in kinds} - {"PrivateEstimator"}
    assert {case.audits for case in estimator_cases()} == names


def test_all_methods_for_labels_are_in_the_catalogue():
    public = {name: getattr(labels, name) for name in labels.__all__}
    methods = {name for name, kind in public.items() if inspect.isclass(kind) and hasattr(kind, "event")}
    by_canaries = {"NoisyGradients", "AltConv", "LabelDpSgd"}  # `test_trainers` has these; one is a base
    assert {case.audits for case in label_cases()} == methods - by_canaries


def test_subjects_are_different():
    assert len(CASES) == len(estimator_cases()) + len(label_cases())
