# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import rows_of
from sfumato.statistics.matrices.covariance import Covariance
from sfumato.statistics.matrices.principal_components import PrincipalComponents, principal_components
from sfumato.statistics.query import cost
from sfumato.testing import seeded

ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE


def asked(**changes) -> PrincipalComponents:
    public = {"columns": ("a", "b", "c"), "components": 2, "clip_norm": 10.0, "rho": 0.5, "delta": 1e-6}
    return PrincipalComponents(**(public | changes))


def rows_along(count: int, seed: int = 0) -> np.ndarray:
    """Rows that vary most along (1, 1, 0), then along (0, 0, 1)."""
    drawn = np.random.default_rng(seed).normal(size=(count, 3)) * [2.0, 1.0, 0.1]
    turned = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 2**0.5], [1.0, -1.0, 0.0]]) / 2**0.5
    return 1.0 + drawn @ turned


@pytest.mark.parametrize(("relation", "public_size"), [(ADD, None), (ADD, 400), (REPLACE, 400)])
def test_components_are_replayed_on_neighbors(neighbors, relation, public_size):
    rows = np.vstack([rows_along(398), [[-9.0, 90.0, 9.0]], [[math.inf, -math.inf, 0.0]]])
    for i in (0, 398, 399):
        other = np.delete(rows, i, axis=0)
        if relation is REPLACE:
            other = np.vstack([other, [[-math.inf, 1e300, 7.0]]])
        neighbors.replay(asked(relation=relation, public_size=public_size), rows_of(rows), rows_of(other))


def test_with_a_huge_budget_components_are_those_of_an_eigenvalue_decomposition():
    rows = rows_along(5000)
    given = {"components": 3, "rho": 1e9, "delta": 1e-6, "generator": seeded(0)}
    found = principal_components(rows, clip_norm=20.0, **given).value
    values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
    assert np.allclose(found.explained_variance, values[::-1], atol=5e-3)
    assert np.allclose(np.abs(found.components @ vectors[:, ::-1]), np.eye(3), atol=5e-3)
    assert np.allclose(found.mean, rows.mean(axis=0), atol=5e-3)
    assert found.explained_variance_ratio.sum() == pytest.approx(1.0)


def test_leading_directions_are_found_privately():
    found = principal_components(
        rows_along(20_000), components=2, clip_norm=10.0, epsilon=1.0, delta=1e-6, generator=seeded(1)
    ).value
    assert found.components[0] @ [2**-0.5, 2**-0.5, 0.0] > 0.99
    assert found.components[1] @ [0.0, 0.0, 1.0] > 0.99
    assert found.explained_variance[1] > found.noise_level


def test_components_of_noise_alone_are_below_the_noise_level():
    shown = []
    for seed in range(20):
        rows = np.zeros((5000, 20))
        given = {"components": 1, "clip_norm": 1.0, "rho": 0.05, "delta": 1e-6, "generator": seeded(seed)}
        found = principal_components(rows, **given).value
        shown.append(found.explained_variance[0] / found.noise_level)
    assert 0.7 < np.mean(shown) < 1.1


def test_explained_variances_are_never_negative_and_signs_are_settled():
    found = principal_components(
        rows_along(60),
        components=3,
        clip_norm=10.0,
        rho=0.05,
        delta=1e-6,
        public_size=60,
        generator=seeded(0),
    ).value
    assert (found.explained_variance >= 0).all()
    assert (found.components.max(axis=1) == np.abs(found.components).max(axis=1)).all()
    assert np.allclose(found.components @ found.components.T, np.eye(3))


def test_too_few_rows_answer_failed():
    release = principal_components(np.zeros((0, 3)), components=1, clip_norm=1.0, rho=0.5, delta=1e-6)
    assert release.value is None


def test_the_cost_is_that_of_the_covariance():
    plain = Covariance(columns=("a", "b", "c"), clip_norm=10.0, rho=0.5, delta=1e-6)
    assert asked().event() == plain.event()
    assert cost(asked(rho=None, epsilon=1.0)) <= 1.0


def test_bad_parameters_are_refused():
    for changes in ({"components": 4}, {"components": 0}, {"columns": ()}):
        with pytest.raises(InvalidParameterError):
            asked(**changes)
