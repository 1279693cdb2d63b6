# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.statistics.columns.columns import rows_of
from sfumato.statistics.matrices.covariance import Correlation, Covariance, correlation, covariance, positive
from sfumato.testing import seeded

BOX = {"bounds": ((-1.0, 1.0), (0.0, 10.0), (-5.0, -3.0))}


BALL = {"clip_norm": 12.0}


COLUMNS = ("a", "b", "c")


def correlated(rows: int, seed: int = 0) -> np.ndarray:
    """Rows inside the box, and inside the ball."""
    drawn = np.random.default_rng(seed).uniform(-1, 1, size=(rows, 3))
    return np.column_stack([drawn[:, 0], 5 + 4 * (drawn[:, 0] + drawn[:, 1]) / 2, -4 + drawn[:, 2] * 0.9])


@pytest.mark.parametrize("clip", [{"bounds": BOX["bounds"]}, BALL], ids=["box", "ball"])
@pytest.mark.parametrize("public_size", [None, 3000])
def test_with_a_huge_budget_the_matrices_are_those_of_numpy(clip, public_size):
    rows = correlated(3000)
    given = {"rho": 1e9, "delta": 1e-6, "public_size": public_size, "generator": seeded(0), **clip}
    assert np.allclose(covariance(rows, **given).value, np.cov(rows.T, bias=True), atol=5e-3)
    assert np.allclose(correlation(rows, **given).value, np.corrcoef(rows.T), atol=5e-3)


@pytest.mark.parametrize("public_size", [None, 2000])
@pytest.mark.parametrize(
    ("question", "entry"), [(Covariance, 0), (Covariance, 1), (Covariance, 4), (Correlation, 1)]
)
def test_intervals_cover_as_stated(check_coverage, question, entry, public_size):
    rows = rows_of(correlated(2000))
    truth = {Covariance: np.cov(rows.values.T, bias=True), Correlation: np.corrcoef(rows.values.T)}[question]
    asked = question(columns=COLUMNS, rho=0.05, delta=1e-6, public_size=public_size, **BOX)
    generator = seeded(3)

    def contains(_: int) -> bool:
        return float(truth.ravel()[entry]) in asked.answer(rows, generator=generator).interval[entry]

    check_coverage(contains)


def test_a_matrix_is_symmetric_and_a_correlation_has_ones_on_its_diagonal():
    rows = correlated(2000)
    given = {"rho": 0.05, "delta": 1e-6, "generator": seeded(0), **BOX}
    found, related = covariance(rows, **given).value, correlation(rows, **given).value
    assert (found == found.T).all()
    assert np.diag(related).tolist() == [1.0] * 3
    assert np.abs(related).max() <= 1


@pytest.mark.parametrize("rows", [np.zeros((0, 3)), np.zeros((1, 3))])
def test_too_few_rows_answer_failed_and_are_paid_for(rows, account):
    given = {"epsilon": 0.2, "delta": 1e-6, "account": account, **BOX}
    assert covariance(rows, **given).value is None
    assert correlation(rows, **given).value is None
    assert account.spent().epsilon > 0.2


def test_a_constant_column_has_no_correlation():
    rows = correlated(500)
    rows[:, 1] = 5.0
    assert correlation(rows, rho=0.5, delta=1e-6, generator=seeded(0), **BOX).value is None


def test_no_eigenvalue_of_the_positive_part_is_negative():
    drawn = np.random.default_rng(0).normal(size=(5, 5))
    symmetric = drawn + drawn.T
    values = np.linalg.eigvalsh(positive(symmetric))
    assert np.allclose(values, np.maximum(np.linalg.eigvalsh(symmetric), 0))
