# SPDX-License-Identifier: Apache-2.0
"""Every generator is attacked, none of their claims is contradicted, and noise that is missing is found."""

from dataclasses import replace

import pytest
import torch

from attacks import catalogue
from attacks.generators import FITS, audited_fits, generator_cases
from sfumato import generative
from sfumato.accounting.guarantee import Guarantee
from sfumato.audit.runs.canaries import Canaries
from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.count_noise import NoiseBudget
from sfumato.mechanisms import tensors
from sfumato.testing import seeded
from sfumato.training.privacy.noise import IndependentNoise

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

SEEDS = 15  # that everybody knows
CASES = {case.subject: case for case in generator_cases()}
QUICK = ["KernelMean", "near_copies"]  # whose epsilon is 1: others need many runs, each of milliseconds
CANARIES = Canaries(count=200, confidence=0.999)

slowly = pytest.mark.slow


@pytest.mark.parametrize(
    "subject", [name if name in QUICK else pytest.param(name, marks=slowly) for name in CASES]
)
def test_no_claim_is_contradicted(attacked, subject):
    assert not attacked(CASES[subject], 200).refuted


@pytest.mark.parametrize("subject", ["near_copies", pytest.param("KernelMean", marks=slowly)])
def test_a_claim_that_is_too_small_is_contradicted(attacked, subject):
    case = CASES[subject]
    small = Guarantee(epsilon=0.05, delta=case.claim.delta, relation=case.claim.relation, privacy_unit="row")
    assert attacked(replace(case, claim=small), 1000 if subject == "near_copies" else 4000).refuted


@pytest.mark.parametrize("subject", list(CASES))
def test_noise_that_can_be_told_in_advance_is_found_out(with_known_noise, subject):
    # A vote has three outcomes: with few seeds one of them would have to be impossible for one data set.
    known = with_known_noise(CASES[subject], 40 if subject.startswith("PateCGAN") else SEEDS)
    assert known.refuted


@pytest.mark.parametrize("subject", ["KernelMean", pytest.param("NoisyMixtures", marks=slowly)])
def test_sums_with_too_little_noise_are_found_out(attacked, monkeypatch, subject):
    original = tensors.add_gaussian_

    def less(tensor, *, stddev, generator):
        return original(tensor, stddev=stddev / 100, generator=generator)

    monkeypatch.setattr(tensors, "add_gaussian_", less)
    assert attacked(CASES[subject], 400).refuted


@slowly
def test_marginals_with_too_little_noise_are_found_out(attacked, monkeypatch):
    original = NoiseBudget.noise

    def less(self, share):
        found = original(self, share)
        return replace(found, stddev=found.stddev / 100)

    monkeypatch.setattr(NoiseBudget, "noise", less)
    assert attacked(CASES["NoisyMarginals"], 1000).refuted


def test_every_generator_is_attacked():
    attacked = {case.audits for case in CASES.values()} | {type(how).__name__ for how in FITS}
    fitted = {name for name in generative.__all__ if hasattr(getattr(generative, name), "fit")}
    assert attacked == fitted | {"near_copies"}


@slowly
@pytest.mark.parametrize("missing", [False, True])
def test_canaries_audit_whole_fits(monkeypatch, missing):
    original = IndependentNoise.add_

    def less(self, sums, *, stddev, step):
        original(self, sums, stddev=stddev / 3, step=step)

    if missing:
        monkeypatch.setattr(IndependentNoise, "add_", less)
    found = list(audited_fits(CANARIES, generator=seeded(1)))
    assert [result.subject for result in found] == [f"{type(how).__name__}, a whole fit" for how in FITS]
    assert [result.refuted for result in found] == [missing] * len(FITS)


def test_the_bounds_of_the_catalogue_hold_together():
    first = next(catalogue.generators(100, confidence=0.9, generator=seeded(0)))
    assert first.best.confidence == pytest.approx(1 - 0.1 / (len(CASES) + len(FITS)))


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"canaries": 0}, {"canaries": 1.5}])
def test_numbers_that_are_none_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        next(catalogue.generators(**wrong))


@slowly
def test_the_whole_catalogue_stands():
    found = list(catalogue.generators(generator=seeded(1)))
    assert len(found) == len(CASES) + len(FITS)
    assert [result.subject for result in found if result.refuted] == []
