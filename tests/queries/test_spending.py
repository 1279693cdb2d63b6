# SPDX-License-Identifier: Apache-2.0
"""Norms of one unit, and noise that costs its event."""

import itertools
import math

import numpy as np
import pytest

from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.queries.spending import Noise, Reach, Spend
from sfumato.statistics.noise import Kind
from sfumato.testing import seeded


@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (2, 3), (3, 2)])
def test_norms_bound_every_way_to_spread_rows_over_groups(rows, groups):
    reach = Reach(relation=Relation.REPLACE_ONE, rows=rows, groups=groups, most_groups=groups, unit="who")
    spread = [
        np.array(n) for n in itertools.product(range(rows + 1), repeat=4) if np.count_nonzero(n) <= groups
    ]
    for removed, added in itertools.product(spread[:40], spread):
        change = added - removed
        assert np.abs(change).sum() <= reach.l1
        assert np.linalg.norm(change) <= reach.l2_of_counts * (1 + 1e-12)
        assert np.linalg.norm(added + removed) <= reach.l2_of_sums * (1 + 1e-12)  # values -1 and 1


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_gaussian_noise_of_a_rho_costs_that_rho(relation):
    noise = Noise(spend=Spend(amount=0.5, gaussian=True), relation=relation, kind=Kind.COUNTS, l1=6, l2=4.0)
    assert noise.law.stddev == pytest.approx(4.0)
    alone = price(noise.event(), delta=1e-6, relation=relation).epsilon
    unit = Noise(spend=Spend(amount=0.5, gaussian=True), relation=relation, kind=Kind.STEPS, l1=2, l2=1.0)
    assert alone == pytest.approx(price(unit.event(), delta=1e-6, relation=relation).epsilon)


@pytest.mark.parametrize("gaussian", [False, True])
def test_numbers_beyond_what_noise_can_hold_are_clamped(gaussian):
    noise = Noise(
        spend=Spend(amount=0.5, gaussian=gaussian),
        relation=Relation.ADD_REMOVE,
        kind=Kind.STEPS,
        l1=1,
        l2=1.0,
    )
    found = noise.add([2**70, -(2**70), 5], generator=seeded(0))
    assert np.isfinite(found).all() and abs(found[2] - 5) < 100 and math.isfinite(found[0])
