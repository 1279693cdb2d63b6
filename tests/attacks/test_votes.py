# SPDX-License-Identifier: Apache-2.0
"""Every aggregator and job is attacked, none is contradicted, and claims that are too small are."""

from dataclasses import replace

import pytest

from attacks.votes import LEADS, vote_cases
from sfumato import pate
from sfumato.accounting.guarantee import Guarantee

CASES = {case.subject: case for case in vote_cases()}


def test_all_aggregators_and_jobs_that_test_are_attacked():
    kinds = {"LNMax", "GNMax", "ConfidentGNMax", "InteractiveGNMax", "StableLabeling"}
    assert {case.audits for case in CASES.values()} == kinds <= set(pate.__all__)
    assert len(CASES) == len(vote_cases()) == 4 * len(LEADS) + 6


@pytest.mark.parametrize("subject", [s for s in CASES if "by 0" in s or "by 4" in s or "18" in s])
def test_no_claim_is_contradicted(attacked, subject):
    assert not attacked(CASES[subject], 400).refuted


@pytest.mark.parametrize("subject", ["LNMax, ahead by 0", "GNMax, ahead by 2", "ConfidentGNMax, ahead by 4"])
def test_a_claim_that_is_too_small_is_contradicted(attacked, subject):
    case = CASES[subject]
    small = Guarantee(epsilon=0.05, delta=case.claim.delta, relation=case.claim.relation, privacy_unit="unit")
    assert attacked(replace(case, claim=small), 6000).refuted
