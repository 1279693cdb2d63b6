# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError
from sfumato.labels.projection.column_generation import ColumnGeneration
from sfumato.labels.projection.gradient_products import LabelGradients
from sfumato.labels.projection.solvers import Accelerated, FrankWolfe, ProjectedGradient, Variant

torch.set_num_threads(1)
CLASSES = 3
MANY = 300
SOLVERS = {
    "projected": ProjectedGradient(tolerance=1e-3, most_iterations=MANY),
    "accelerated": Accelerated(tolerance=1e-6, most_iterations=4000),
    "away": FrankWolfe(tolerance=1e-3, most_iterations=MANY, variant=Variant.AWAY),
    "pairwise": FrankWolfe(tolerance=1e-3, most_iterations=MANY, variant=Variant.PAIRWISE),
    "columns": ColumnGeneration(tolerance=1e-6, most_iterations=50, columns_per_iteration=3),
}
CRAWLING = {"projected", "away", "pairwise"}  # right, but slow: held to the distance they state
HULL, EACH = sorted(SOLVERS), sorted(set(SOLVERS) - {"columns"})
CASES = [(name, False) for name in HULL] + [(name, True) for name in EACH]
seeds = st.integers(0, 2**31 - 1)
distances = st.sampled_from([0.3, 1.0, 5.0, 50.0])


class Explicit:
    """A matrix G, [rows, classes, parameters], that counts its products."""

    def __init__(self, matrix: Tensor, predictions: Tensor) -> None:
        self.matrix, self._predictions, self.counts = (
            matrix,
            predictions,
            {"combine": 0, "against": 0, "columns": 0},
        )
        self.rows, self.classes = matrix.shape[:2]

    def neutral(self) -> Tensor:
        return self._predictions

    def combine(self, weights: Tensor) -> dict[str, Tensor]:
        self.counts["combine"] += 1
        return {"w": torch.einsum("nk,nkd->d", weights, self.matrix)}

    def against(self, direction: dict[str, Tensor]) -> Tensor:
        self.counts["against"] += 1
        return self.matrix @ direction["w"]

    def columns(self, rows: Tensor, classes: Tensor) -> dict[str, Tensor]:
        self.counts["columns"] += len(rows)
        return {"w": self.matrix[rows, classes]}


def problem(seed: int, *, rows: int = 4, parameters: int = 6, dtype: torch.dtype = torch.float64) -> Explicit:
    """Columns that cancel when weighted by predictions, as those of a loss do."""
    g = torch.Generator().manual_seed(seed)
    jacobian = torch.randn(rows, CLASSES, parameters, dtype=dtype, generator=g)
    predictions = torch.rand(rows, CLASSES, dtype=dtype, generator=g).add(0.1)
    predictions = predictions / predictions.sum(1, keepdim=True)
    mean = torch.einsum("nk,nkd->nd", predictions, jacobian)
    return Explicit(mean.unsqueeze(1) - jacobian, predictions)


def aim(products: Explicit, seed: int, distance: float) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    size = products.matrix.shape[2]
    away = torch.randn(size, dtype=torch.float64, generator=g)
    return {"w": (distance * away / away.norm()).to(products.matrix.dtype)}


def exact(products: Explicit, target: Tensor, each: bool) -> Tensor:
    """The nearest point by sequential quadratic programming on the matrix itself."""
    found, inside = solved(products, target, each)
    assert inside
    return found


def solved(products: Explicit, target: Tensor, each: bool) -> tuple[Tensor, bool]:
    """The same, and whether the program ended inside the simplex: it may stop outside."""
    columns = products.matrix.flatten(0, 1).numpy()
    rows, classes = products.rows, products.classes
    sums = [slice(i * classes, (i + 1) * classes) for i in range(rows)] if each else [slice(None)]
    total = 1 / rows if each else 1.0
    found = minimize(
        lambda w: 0.5 * ((w @ columns - target.numpy()) ** 2).sum(),
        products.neutral().flatten().numpy() / rows,
        jac=lambda w: columns @ (w @ columns - target.numpy()),
        bounds=[(0, 1)] * (rows * classes),
        constraints=[{"type": "eq", "fun": lambda w, s=s: w[s].sum() - total} for s in sums],
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-15},
    )
    inside = all(abs(found.x[s].sum() - total) < 1e-9 for s in sums)
    return torch.from_numpy(found.x @ columns), inside


@pytest.mark.parametrize(("name", "each"), CASES, ids=str)
@settings(max_examples=8, deadline=None)
@given(seed=seeds, distance=distances)
def test_it_is_the_nearest_point_as_quadratic_programming_finds_it(name, each, seed, distance):
    products = problem(seed)
    target = aim(products, seed + 1, distance)
    found = SOLVERS[name].solve(products, target, each=each)
    wanted, inside = solved(products, target["w"], each)
    assume(inside)
    assert found.reached or name in CRAWLING
    assert float((found.gradient["w"] - wanted).norm()) <= found.distance_bound + 1e-5 * (1 + distance)


@pytest.mark.parametrize(("name", "each"), CASES, ids=str)
@settings(max_examples=8, deadline=None)
@given(seed=seeds, distance=distances)
def test_the_point_lies_in_the_set_and_the_gap_is_what_it_says(name, each, seed, distance):
    products = problem(seed)
    target = aim(products, seed + 1, distance)
    found = SOLVERS[name].solve(products, target, each=each)
    weights, point = found.weights, found.gradient["w"]
    assert bool((weights >= 0).all())
    assert torch.allclose(torch.einsum("nk,nkd->d", weights, products.matrix), point, atol=1e-9)
    assert float(weights.sum()) == pytest.approx(1)
    if each:
        assert torch.allclose(weights.sum(1), torch.full((4,), 0.25, dtype=torch.float64))
    slopes = products.matrix @ (point - target["w"])
    least = slopes.amin(1).mean() if each else slopes.amin()
    assert found.gap == pytest.approx(float((weights * slopes).sum() - least), abs=1e-8 * (1 + distance))
    assert found.reached is (found.relative_gap <= SOLVERS[name].tolerance)


@pytest.mark.parametrize("name", HULL)
@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_points_of_the_hull_stay_and_no_two_targets_are_taken_apart(name, seed):
    products = problem(seed)
    one, other = aim(products, seed + 1, 3.0), aim(products, seed + 2, 4.0)
    first, second = (SOLVERS[name].solve(products, t) for t in (one, other))
    again = SOLVERS[name].solve(products, first.gradient)
    slack = first.distance_bound + second.distance_bound + 1e-6
    assert float((again.gradient["w"] - first.gradient["w"]).norm()) <= again.distance_bound + 1e-6
    assert (first.gradient["w"] - second.gradient["w"]).norm() <= (one["w"] - other["w"]).norm() + slack


@settings(max_examples=10, deadline=None)
@given(seed=seeds, steps=st.integers(1, 6), distance=distances)
def test_the_distance_bound_holds_wherever_a_solver_is_stopped(seed, steps, distance):
    products = problem(seed, rows=6)
    target = aim(products, seed + 1, distance)
    nearest, inside = solved(products, target["w"], each=False)
    assume(inside)
    for solver in (Accelerated(tolerance=1e-9, most_iterations=steps), FrankWolfe(most_iterations=steps)):
        found = solver.solve(products, target)
        assert float((found.gradient["w"] - nearest).norm()) <= found.distance_bound + 1e-5 * (1 + distance)


@pytest.mark.parametrize(("name", "each"), CASES, ids=str)
@pytest.mark.parametrize("distance", [5.0, 50.0], ids=str)
def test_a_target_outside_is_projected_to_within_the_tolerance(name, each, distance):
    for seed in range(3):
        products = problem(seed)
        found = SOLVERS[name].solve(products, aim(products, seed + 1, distance), each=each)
        assert found.reached


def test_the_average_of_the_rows_hulls_is_smaller():
    products = problem(0)
    target = aim(products, 1, 50.0)
    whole, each = (SOLVERS["accelerated"].solve(products, target, each=e) for e in (False, True))
    assert (whole.gradient["w"] - target["w"]).norm() < (each.gradient["w"] - target["w"]).norm() - 0.1


@pytest.mark.parametrize("name", HULL)
def test_the_target_zero_is_reached_at_once_because_predictions_give_it(name):
    products = problem(0)
    found = SOLVERS[name].solve(products, {"w": torch.zeros(6, dtype=torch.float64)})
    assert (found.iterations, found.reached, found.relative_gap) == (0, True, 0.0)
    assert torch.allclose(found.weights, products.neutral() / 4)


@pytest.mark.parametrize("name", HULL)
def test_a_warm_start_at_the_answer_ends_at_once(name):
    products = problem(3)
    target = aim(products, 1, 5.0)
    first = ColumnGeneration(tolerance=1e-9, most_iterations=50).solve(products, target)
    again = SOLVERS[name].solve(products, target, start=first.weights)
    assert (again.iterations, again.reached) == (0, True)


@pytest.mark.parametrize("name", HULL)
def test_a_limit_of_iterations_is_kept_and_said(name):
    kind = type(SOLVERS[name])
    products = problem(1, rows=20, parameters=40)
    alone = {"most_accelerated": 0} if kind is ColumnGeneration else {}
    found = kind(tolerance=1e-12, most_iterations=2, **alone).solve(products, aim(products, 2, 1.0))
    assert (found.iterations, found.reached) == (2, False)
    assert float(found.weights.sum()) == pytest.approx(1)


def test_a_given_step_size_spends_no_product_on_power_iteration():
    products = problem(1)
    ProjectedGradient(step_size=0.01, most_iterations=3, tolerance=1e-9).solve(
        products, aim(products, 2, 5.0)
    )
    assert products.counts == {"combine": 3, "against": 4, "columns": 0}


def test_column_generation_needs_few_products_and_bounded_columns():
    products = problem(5, rows=200, parameters=300, dtype=torch.float32)
    target = aim(products, 6, float(products.matrix.norm(dim=2).mean()))
    found = ColumnGeneration().solve(products, target)
    rival = Accelerated(most_iterations=400).solve(
        problem(5, rows=200, parameters=300, dtype=torch.float32), target
    )
    assert found.reached and rival.reached
    assert found.iterations <= 8 < rival.iterations
    assert products.counts["combine"] == 0 and products.counts["against"] == found.iterations + 1
    small = ColumnGeneration(most_columns=5, most_accelerated=0).solve(products, target)
    assert int((small.weights > 1e-6).sum()) <= 5 + products.rows * CLASSES * bool(small.weights.min() > 0)
    assert not small.reached


@pytest.mark.parametrize("each", [False, True], ids=str)
def test_a_real_model_in_float32_reaches_the_tolerance(each):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, CLASSES))
        x = torch.randn(24, 1, 8, 8)
        target = {n: 0.5 * torch.randn_like(p) for n, p in model.named_parameters()}
    products = LabelGradients(model, x, classes=CLASSES)
    solver = Accelerated(most_iterations=300) if each else ColumnGeneration()
    found = solver.solve(products, target, each=each)
    assert found.reached
    combined = products.combine(found.weights)
    assert all(torch.allclose(combined[n], v, atol=1e-4) for n, v in found.gradient.items())
    assert {n: v.shape for n, v in found.gradient.items()} == {
        n: p.shape for n, p in model.named_parameters()
    }


def test_equal_rows_and_one_row_are_fine():
    for rows in (1, 6):
        base = problem(2, rows=1)
        products = Explicit(base.matrix.expand(rows, -1, -1), base.neutral().expand(rows, -1))
        target = aim(products, 3, 4.0)
        wanted = exact(base, target["w"], each=False)
        for solver in SOLVERS.values():
            found = solver.solve(products, target)
            assert float((found.gradient["w"] - wanted).norm()) <= found.distance_bound + 1e-4


def test_bad_input_is_refused():
    products = problem(0)
    target = aim(products, 1, 1.0)
    with pytest.raises(InvalidParameterError, match="NaN"):
        Accelerated().solve(products, {"w": target["w"] * torch.inf})
    with pytest.raises(InvalidParameterError, match="start"):
        Accelerated().solve(products, target, start=torch.ones(3))
    with pytest.raises(InvalidParameterError, match="Accelerated"):
        ColumnGeneration().solve(products, target, each=True)
    with pytest.raises(InvalidParameterError, match="no rows"):
        Accelerated().solve(
            Explicit(torch.zeros(0, CLASSES, 6), torch.zeros(0, CLASSES)), {"w": torch.ones(6)}
        )
    for kind in (ProjectedGradient, Accelerated, FrankWolfe, ColumnGeneration):
        with pytest.raises(InvalidParameterError, match="tolerance"):
            kind(tolerance=0.0)
        with pytest.raises(InvalidParameterError, match="most_iterations"):
            kind(most_iterations=0)
    with pytest.raises(InvalidParameterError, match="step_size"):
        ProjectedGradient(step_size=-1.0)
    with pytest.raises(InvalidParameterError, match="columns_per_iteration"):
        ColumnGeneration(columns_per_iteration=0)
