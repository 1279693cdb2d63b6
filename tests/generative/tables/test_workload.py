# SPDX-License-Identifier: Apache-2.0
"""Workloads list marginals, and weights count shared columns."""

from sfumato.generative.tables.workload import all_marginals, candidates, target_marginals


def test_all_pairs_of_five_columns_are_ten():
    assert len(all_marginals(5, 2)) == 10 and all_marginals(1, 2) == [(0,)]


def test_a_target_adds_triples_with_it():
    found = target_marginals(4, 2, 3)
    assert (0, 1, 3) in found and (0, 1, 2) not in found and len(found) == 6 + 3


def test_weights_count_the_columns_shared_with_the_workload():
    weights = candidates(all_marginals(4, 2))
    assert weights[(0,)] == 3 and weights[(0, 1)] == 2 + 2 * 2
    assert all(isinstance(weight, int) and weight > 0 for weight in weights.values())
