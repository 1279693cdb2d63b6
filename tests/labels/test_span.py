# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError
from sfumato.labels.products import LabelGradients
from sfumato.labels.span import Span

torch.set_num_threads(1)
CLOSE = Span(tolerance=1e-10, most_iterations=300)
seeds = st.integers(0, 2**31 - 1)


def problem(seed: int, rows: int = 4) -> tuple[LabelGradients, Tensor]:
    """Products, and G itself as [parameters, columns]."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        x = torch.randn(rows, 5, dtype=torch.float64)
    products = LabelGradients(model, x, classes=3)
    rows_, classes = torch.arange(rows).repeat_interleave(3), torch.arange(3).repeat(rows)
    columns = products.columns(rows_, classes)
    return products, torch.cat([c.flatten(1) for c in columns.values()], 1).T


def vector(products: LabelGradients, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {n: torch.randn(p.shape, dtype=p.dtype, generator=g) for n, p in products.parameters.items()}


def packed(vectors: dict[str, Tensor]) -> Tensor:
    return torch.cat([v.flatten() for v in vectors.values()])


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_it_is_the_least_squares_solution(seed):
    products, matrix = problem(seed)
    target = vector(products, seed + 1)
    found = CLOSE.solve(products, target)
    wanted = matrix @ (torch.linalg.pinv(matrix, rtol=1e-10) @ packed(target))
    assert torch.allclose(packed(found.gradient), wanted, atol=1e-5)
    assert torch.allclose(packed(found.gradient), matrix @ found.weights.flatten(), atol=1e-7)


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_it_is_idempotent_never_longer_and_leaves_an_orthogonal_rest(seed):
    products, matrix = problem(seed)
    target = vector(products, seed + 1)
    once = CLOSE.solve(products, target)
    assert torch.allclose(
        packed(CLOSE.solve(products, once.gradient).gradient), packed(once.gradient), atol=1e-5
    )
    rest = packed(target) - packed(once.gradient)
    assert float((matrix.T @ rest).norm()) <= 1.01e-10 * float((matrix.T @ packed(target)).norm()) + 1e-9
    assert packed(once.gradient).norm() <= packed(target).norm() * (1 + 1e-9)


def test_the_tolerance_and_the_limit_are_kept():
    products, matrix = problem(0, rows=8)
    target = vector(products, 1)
    loose = Span(tolerance=0.1).solve(products, target)
    left = (matrix.T @ (packed(target) - packed(loose.gradient))).norm() / (matrix.T @ packed(target)).norm()
    assert loose.reached
    assert loose.relative_residual == pytest.approx(float(left)) and loose.relative_residual <= 0.1
    short = Span(tolerance=1e-12, most_iterations=1).solve(products, target)
    assert (short.iterations, short.reached) == (1, False)


def test_zero_and_no_rows_give_zero_at_once():
    products, _ = problem(0)
    zero = {n: torch.zeros_like(v) for n, v in vector(products, 0).items()}
    found = Span().solve(products, zero)
    assert (found.iterations, found.reached, bool(packed(found.gradient).any())) == (0, True, False)
    empty = LabelGradients(nn.Linear(2, 3), torch.zeros(0, 2), classes=3)
    found = Span().solve(empty, {"weight": torch.ones(3, 2), "bias": torch.ones(3)})
    assert found.reached and found.weights.shape == (0, 3) and not packed(found.gradient).any()


def test_a_target_that_is_not_finite_and_bad_settings_are_refused():
    products, _ = problem(0)
    with pytest.raises(InvalidParameterError, match="NaN"):
        Span().solve(products, {n: v * torch.nan for n, v in vector(products, 0).items()})
    with pytest.raises(InvalidParameterError, match="tolerance"):
        Span(tolerance=0.0)
    with pytest.raises(InvalidParameterError, match="most_iterations"):
        Span(most_iterations=0)
