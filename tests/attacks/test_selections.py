# SPDX-License-Identifier: Apache-2.0
"""Selections are attacked where one candidate leads, at leads that leave no gap."""

from itertools import pairwise

import pytest

from attacks import catalogue
from attacks.selections import MARGINS, margin_cases
from sfumato.audit.mechanisms.replay import replay
from sfumato.testing import seeded

CASES = {case.subject: case for case in margin_cases()}
SELECTIONS = {
    "Exponential",
    "PermuteAndFlip",
    "NoisyMax",
    "IntervalExponential",
    "AboveThreshold",
    "SparseVector",
}


def leads(case):
    """Return the lead of the first candidate, or the value asked, of both data sets."""
    return tuple(scores[0] - max(scores[1:], default=0.0) for scores in (case.first, case.second))


def test_all_selections_are_attacked_at_all_margins():
    assert {case.audits for case in CASES.values()} == SELECTIONS
    for kind in ("Exponential", "PermuteAndFlip", "NoisyMax", "IntervalExponential"):
        assert all(f"{kind}, ahead by {margin}" in CASES for margin in MARGINS)


@pytest.mark.parametrize("kind", sorted(SELECTIONS))
def test_no_lead_is_left_out_between_the_pairs(kind):
    for monotonic in (False, True):
        pairs = sorted(
            leads(case)
            for name, case in CASES.items()
            if case.audits == kind and " by " in name and ("monotonic" in name) == monotonic
        )
        assert all(before[1] == after[0] for before, after in pairwise(pairs))


@pytest.mark.parametrize("subject", list(CASES))
def test_the_data_sets_of_a_pair_are_neighbors(subject):
    case = CASES[subject]
    assert replay(case.run, case.first, case.second)


@pytest.mark.parametrize("subject", [name for name in CASES if name.endswith(("by 3", "by 3.5"))])
def test_no_claim_is_contradicted_at_a_margin(subject):
    assert not catalogue._attacked(CASES[subject], 200, 0.999, seeded(0)).refuted
