# SPDX-License-Identifier: Apache-2.0
"""Marginals of any columns are those of the joint distribution, also across cliques."""

from itertools import permutations

import numpy as np
from hypothesis import given

from sfumato.generative.tables.model.belief_propagation import Propagation, summed_to
from sfumato.generative.tables.model.clique_marginals import MarginalQueries
from sfumato.generative.tables.model.junction_tree import junction_tree
from tests.generative.tables.model.joint import joint_of, models


@given(models(scale=5.0))
def test_every_marginal_is_that_of_the_joint_distribution(model):
    sizes, potentials = model
    joint, _ = joint_of(sizes, potentials)
    beliefs = Propagation(junction_tree(sizes, potentials), sizes, tuple(potentials)).run(potentials)
    queries = MarginalQueries(beliefs, sizes)
    for degree in range(1, min(3, len(sizes)) + 1):
        for columns in permutations(range(len(sizes)), degree):
            expected = summed_to(joint, tuple(range(len(sizes))), columns)
            np.testing.assert_allclose(queries.marginal(columns), expected, atol=1e-12)


def test_a_chain_of_sixty_columns_has_marginals_of_its_ends():
    sizes, weights = (2,) * 60, np.log([[0.9, 0.1], [0.1, 0.9]])
    potentials = {(place, place + 1): weights for place in range(59)}
    beliefs = Propagation(junction_tree(sizes, potentials), sizes, tuple(potentials)).run(potentials)
    expected = np.linalg.matrix_power(np.array([[0.9, 0.1], [0.1, 0.9]]), 59) / 2
    np.testing.assert_allclose(MarginalQueries(beliefs, sizes).marginal((0, 59)), expected, atol=1e-12)
