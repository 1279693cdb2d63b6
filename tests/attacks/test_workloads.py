# SPDX-License-Identifier: Apache-2.0
"""Queries are attacked, and none of their claims is contradicted; one with too little noise would be."""

from dataclasses import replace

import pytest

from attacks.workloads import workload_cases
from sfumato.accounting.guarantee import Guarantee

CASES = {case.subject: case for case in workload_cases()}


def test_the_claim_of_ranges_is_not_contradicted(attacked):
    assert not attacked(CASES["ranges"], 200).refuted


@pytest.mark.slow
@pytest.mark.parametrize("subject", CASES)
def test_no_claim_is_contradicted(attacked, subject):
    assert not attacked(CASES[subject], 100).refuted


def test_a_claim_of_ranges_that_is_too_small_is_contradicted(attacked):
    case = CASES["ranges"]
    small = Guarantee(epsilon=0.05, delta=0.0, relation=case.claim.relation, privacy_unit="unit")
    assert attacked(replace(case, claim=small), 4000).refuted


@pytest.mark.slow
@pytest.mark.parametrize("subject", CASES)
def test_noise_that_can_be_told_in_advance_is_found_out(with_known_noise, subject):
    assert with_known_noise(CASES[subject], 100).refuted
