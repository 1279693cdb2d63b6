# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError
from sfumato.labels.projection.gradient_products import LabelGradients
from sfumato.labels.projection.span import Span

torch.set_num_threads(1)
EXACT = Span(tolerance=1e-10)
ITERATED = Span(tolerance=1e-10, most_iterations=300, most_columns=0)
either = pytest.mark.parametrize("solver", [EXACT, ITERATED], ids=["formed", "iterated"])
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


def nearest(matrix: Tensor, target: dict[str, Tensor]) -> Tensor:
    return matrix @ (torch.linalg.pinv(matrix, rtol=1e-7) @ packed(target))


@either
@settings(max_examples=25, deadline=None)
@given(seeds)
def test_it_is_the_least_squares_solution(solver, seed):
    products, matrix = problem(seed)
    target = vector(products, seed + 1)
    found = solver.solve(products, target)
    assert torch.allclose(packed(found.gradient), nearest(matrix, target), atol=1e-5)
    assert torch.allclose(packed(found.gradient), matrix @ found.weights.flatten(), atol=1e-6)


@either
@settings(max_examples=25, deadline=None)
@given(seeds)
def test_it_is_idempotent_never_longer_and_leaves_an_orthogonal_rest(solver, seed):
    products, matrix = problem(seed)
    target = vector(products, seed + 1)
    once = solver.solve(products, target)
    assert torch.allclose(
        packed(solver.solve(products, once.gradient).gradient), packed(once.gradient), atol=1e-5
    )
    rest = packed(target) - packed(once.gradient)
    assert float((matrix.T @ rest).norm()) <= 1e-8 * float((matrix.T @ packed(target)).norm())
    assert packed(once.gradient).norm() <= packed(target).norm() * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_the_projection_is_no_farther_than_the_bound_says(seed, rows, iterations, formed):
    products, matrix = problem(seed, rows=rows)
    target = vector(products, seed + 1)
    solver = Span(most_iterations=iterations, most_columns=1000 if formed else 0)
    found = solver.solve(products, target)
    away = float((packed(found.gradient) - nearest(matrix, target)).norm())
    assert away <= found.distance_bound + 1e-7
    assert found.relative_distance == pytest.approx(found.distance_bound / float(packed(target).norm()))
    assert found.reached == (found.relative_distance <= solver.tolerance)
    assert found.reached or not formed


def test_a_small_slope_does_not_bound_the_distance():
    """Columns are short in one direction: a step leaves a tiny slope, and half of the target."""

    class Short:
        matrix = torch.diag(torch.tensor([1.0, 1e-5], dtype=torch.float64))

        def combine(self, weights):
            return {"w": self.matrix @ weights.flatten()}

        def against(self, direction):
            return (self.matrix.T @ direction["w"]).view(1, 2)

        def columns(self, rows, classes):
            return {"w": self.matrix.T[classes]}

    target = {"w": torch.ones(2, dtype=torch.float64)}
    short = Span(most_iterations=1, most_columns=0).solve(Short(), target)
    left = packed(target) - packed(short.gradient)
    assert float((Short.matrix.T @ left).norm()) <= 1e-3 * float((Short.matrix.T @ packed(target)).norm())
    assert not short.reached and short.relative_distance > 0.7
    whole = Span().solve(Short(), target)
    assert whole.reached and torch.allclose(packed(whole.gradient), packed(target))


def test_the_limit_of_iterations_is_kept_and_is_enough_for_a_span_that_holds_the_target():
    products, _ = problem(0, rows=8)
    target = vector(products, 1)
    short = Span(most_iterations=1, most_columns=0).solve(products, target)
    assert (short.iterations, short.reached) == (1, False)
    inside = {n: v * 0 for n, v in target.items()} | products.combine(torch.rand(8, 3, dtype=torch.float64))
    whole = Span(most_iterations=300, most_columns=0).solve(products, inside)
    assert whole.reached and whole.iterations < 300
    assert torch.allclose(packed(whole.gradient), packed(inside), atol=1e-3 * float(packed(inside).norm()))


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
    with pytest.raises(InvalidParameterError, match="most_columns"):
        Span(most_columns=-1)


@pytest.mark.parametrize("length", [1.0, 1e5, 1e8, 1e15])
def test_one_long_row_does_not_hide_that_others_span_too(length):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = nn.Linear(30, 3), torch.randn(10, 30)
        x[3] *= length
        with torch.no_grad():
            model.weight.mul_(0.01 / length)  # so that no probability is 0 or 1
    products = LabelGradients(model, x, classes=3)
    target = {name: torch.randn_like(p) for name, p in products.parameters.items()}
    rows, classes = torch.arange(10).repeat_interleave(3), torch.arange(3).repeat(10)
    columns = torch.cat([c.flatten(1) for c in products.columns(rows, classes).values()], 1).double()
    units = columns / columns.norm(dim=1, keepdim=True)
    _, extents, directions = torch.linalg.svd(units, full_matrices=False)
    spanned = directions[extents > 1e-5 * extents[0]]
    nearest = (spanned @ packed(target).double()) @ spanned
    found = Span().solve(products, target)
    assert found.reached
    assert (packed(found.gradient).double() - nearest).norm() < 1e-3 * packed(target).norm()
