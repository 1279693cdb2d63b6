# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from sfumato.accounting import events, gaussian, perturbation, price, rdp
from sfumato.accounting.events import ObjectivePerturbationDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError

RELATIONS = [Relation.ADD_REMOVE, Relation.REPLACE_ONE]
AXIS = np.linspace(-1.0, 1.0, 241)


def profile(event: ObjectivePerturbationDpEvent, relation: Relation, epsilon: float) -> float:
    """The proof's delta, written out: one Gaussian profile for each corner."""
    m, left = 1 / event.noise_multiplier, epsilon - math.log1p(event.curvature)
    far = 2 * gaussian.delta(m, left) + gaussian.delta(2 * m, left)
    return far if relation.replaces else gaussian.delta(m, left)


def densities(rows, signs, *, regularization, stddev, reach):
    """The density of the exact minimum on a grid of the plane: that of b times the Hessian's determinant."""
    w = np.stack(np.meshgrid(reach * AXIS, reach * AXIS, indexing="ij"), axis=-1)  # [G, G, 2]
    b, hessian = -regularization * w, np.zeros((*w.shape, 2)) + regularization * np.eye(2)
    for x, sign in zip(rows, signs, strict=True):
        likely = expit(sign * (w @ x))
        b = b + ((1 - likely) * sign)[..., None] * x
        hessian = hessian + (likely * (1 - likely))[..., None, None] * np.outer(x, x)
    log_noise = -(b**2).sum(-1) / (2 * stddev**2) - math.log(2 * math.pi * stddev**2)
    cell = (reach * (AXIS[1] - AXIS[0])) ** 2
    return np.exp(log_noise) * np.linalg.det(hessian) * cell


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_the_price_of_one_is_its_proven_profile(relation, delta):
    event = ObjectivePerturbationDpEvent(4.0, 0.1)
    found = price(event, delta=delta, relation=relation)
    assert profile(event, relation, found.upper) == pytest.approx(delta, rel=2e-3)
    assert profile(event, relation, found.upper) <= delta


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_accountant_is_below_the_profile_and_rdp_is_above_pld(relation):
    event = ObjectivePerturbationDpEvent(2.0, 0.3)
    tight = price(event, delta=1e-5, relation=relation, accountant="pld").upper
    assert rdp.epsilon(event, delta=1e-5, relation=relation) > tight


@pytest.mark.parametrize("relation", RELATIONS)
def test_it_costs_more_than_the_gaussian_mechanism_with_the_same_noise(relation):
    event = ObjectivePerturbationDpEvent(2.0, 1e-9)
    bare = price(dp.GaussianDpEvent(2.0), delta=1e-5, relation=relation).upper
    assert bare <= price(event, delta=1e-5, relation=relation).upper <= 1.01 * bare


@given(st.floats(0.5, 20), st.floats(0.01, 2), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_more_noise_or_less_curvature_or_fewer_runs_never_cost_more(noise, curvature, runs):
    def cost(noise, curvature, runs):
        event = dp.SelfComposedDpEvent(ObjectivePerturbationDpEvent(noise, curvature), runs)
        return price(event, delta=1e-6, relation=Relation.ADD_REMOVE).upper

    here = cost(noise, curvature, runs)
    for other in (cost(noise * 1.2, curvature, runs), cost(noise, curvature / 1.2, runs)):
        assert other <= here * (1 + 1e-6)
    assert here <= cost(noise, curvature, runs + 1) * (1 + 1e-6)


def test_masses_add_up_to_one_and_losses_are_what_they_say():
    pair = perturbation.LargestOfGaussians(0.2, ((2, 0.3), (1, 0.6)))
    edges = pair.edges(2000, 1e-12)
    p, q = pair.masses(edges)
    assert p.sum() == pytest.approx(1) and q.sum() == pytest.approx(1)
    inner = slice(1, -1)
    seen = p[inner] > 1e-12
    losses = np.log(p[inner][seen] / q[inner][seen])
    assert np.all(losses > edges[:-1][seen] - 1e-9) and np.all(losses < edges[1:][seen] + 1e-9)


NEIGHBORS = {
    "added": (Relation.ADD_REMOVE, [[0.6, 0.8]], [1], [[0.6, 0.8], [1, 0]], [1, 1]),
    "alone": (Relation.ADD_REMOVE, [], [], [[1, 0]], [-1]),
    "flipped": (Relation.REPLACE_ONE, [[1, 0], [0, 1]], [1, 1], [[1, 0], [0, 1]], [-1, 1]),
    "turned": (Relation.REPLACE_ONE, [[1, 0]], [1], [[0, 1]], [1]),
}


@pytest.mark.parametrize("name", sorted(NEIGHBORS))
def test_the_divergence_of_two_minima_stays_below_delta_and_above_it_for_half_the_noise(name):
    relation, rows, signs, others, other_signs = NEIGHBORS[name]
    regularization, epsilon, delta = 1.0, 1.0, 1e-2
    event = ObjectivePerturbationDpEvent(1.9 * relation.diameter, 0.25 / regularization)
    claimed = price(event, delta=delta, relation=relation).upper

    def divergence(stddev, epsilon):
        one, two = (
            densities(
                np.array(r, dtype=float).reshape(-1, 2), s, regularization=1.0, stddev=stddev, reach=22.0
            )
            for r, s in ((rows, signs), (others, other_signs))
        )
        assert one.sum() == pytest.approx(1, abs=1e-3) and two.sum() == pytest.approx(1, abs=1e-3)
        bound = math.exp(epsilon)
        return max(np.maximum(one - bound * two, 0).sum(), np.maximum(two - bound * one, 0).sum())

    assert epsilon < claimed < 4
    assert divergence(event.noise_multiplier, claimed) <= delta
    assert divergence(event.noise_multiplier / 3, claimed) > delta  # the test has power


def test_it_reads_back_from_json_and_refuses_nonsense():
    event = ObjectivePerturbationDpEvent(4.0, 0.1)
    assert events.from_json(events.to_json(event)) == event
    for wrong in (ObjectivePerturbationDpEvent(0.0, 0.1), ObjectivePerturbationDpEvent(1.0, float("nan"))):
        with pytest.raises(InvalidParameterError):
            events.check(wrong)
