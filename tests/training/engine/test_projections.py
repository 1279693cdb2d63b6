# SPDX-License-Identifier: Apache-2.0
import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest
from torch import nn

from sfumato.errors import InvalidParameterError, UnsupportedUseError
from sfumato.testing import seeded
from sfumato.training.engine.functional import Functional
from sfumato.training.engine.projections import Projections

ALPHA = 1e-6  # chance that correct code fails one statistical check on a fresh seed
BATCH = 6


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def squares(model, x):
    y = model(x).flatten(1)
    return y.square().sum(1) + y.sum(1)


def mlp(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), *between, nn.Linear(5, 2)).double()


def engine_of(model, loss=squares, projections=4, seed=0):
    return Projections(model, loss, projections=projections, generator=seeded(seed))


class Recording(Projections):
    """Remembers the directions it drew."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.drawn = []

    def directions(self, names):
        self.drawn.append(super().directions(names))
        return self.drawn[-1]


def consistent(model, batch, loss=squares, per_unit=1, tolerance=1e-9):
    """Estimates are the mean squared products with the directions, of the gradients that are added up."""
    engine = Recording(model, loss, projections=3, generator=seeded(0))
    groups = [[name] for name in engine.parameters]
    run = engine.run(batch, per_unit=per_unit)
    norms = run.squared_norms(groups)
    for unit in range(norms.shape[1]):
        one = torch.zeros_like(norms)
        one[:, unit] = 1  # the sum of one unit is its gradient
        gradient = run.weighted_sums(groups, one)
        for norm, (name,) in zip(norms[:, unit], groups, strict=True):
            wanted = sum(torch.sum(v[name] * gradient[name]).square() for v in engine.drawn) / 3
            assert torch.isclose(norm.double(), wanted.double(), rtol=tolerance, atol=tolerance), name
    return run


class Separate(nn.Module):
    """A parameter for each row, so that the estimates of all rows are independent."""

    def __init__(self, size):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x, number):
        return self.theta[number] * x


@pytest.mark.parametrize("projections", [1, 5])
def test_estimates_are_distributed_as_chi_square(projections):
    x = 1 + torch.arange(20_000, dtype=torch.float64) % 7
    run = engine_of(Separate(len(x)), lambda model, *row: model(*row), projections).run(
        (x, torch.arange(len(x)))
    )
    ratio = (run.squared_norms([["theta"]])[0] / x.square() * projections).numpy()
    assert kstest(ratio, chi2(projections).cdf).pvalue > ALPHA
    assert kstest(1.1 * ratio, chi2(projections).cdf).pvalue < ALPHA  # 10% off is caught
    assert kstest(ratio, chi2(projections + 1).cdf).pvalue < ALPHA  # and so is one direction too many


def test_estimates_are_right_on_average():
    model, x = mlp(), randn(BATCH, 3)
    groups = [["0.weight", "0.bias"], ["2.weight", "2.bias"]]
    exact = Functional(model, squares).run((x,)).squared_norms(groups)
    rounds = 600
    found = engine_of(model, projections=rounds).run((x,)).squared_norms(groups)
    off = (found / exact - 1) / (2 / rounds) ** 0.5  # in standard deviations of chi2(r) / r
    assert off.abs().max() < 5.3  # 12 checks at ALPHA in all


@pytest.mark.parametrize("per_unit", [1, 2, 3])
def test_estimates_and_sums_are_of_the_same_gradients(per_unit):
    consistent(mlp(), (randn(BATCH, 3),), per_unit=per_unit)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 4),
    n_in=st.integers(1, 4),
    n_out=st.integers(1, 4),
    steps=st.lists(st.integers(1, 3), max_size=2),
)
def test_any_shape_is_consistent(rows, n_in, n_out, steps):
    consistent(nn.Linear(n_in, n_out, dtype=torch.float64), (randn(rows, *steps, n_in),))


@pytest.mark.parametrize("per_unit", [1, 2])
def test_weighted_sums_are_those_of_the_loop(per_unit):
    model, x = mlp(), randn(BATCH, 3)
    groups = [["0.weight", "2.bias"], ["2.weight"], ["0.bias"]]
    weights = torch.linspace(-1, 2, 3 * BATCH // per_unit).double().reshape(3, -1)
    run = engine_of(model).run((x,), per_unit=per_unit)
    run.squared_norms(groups)
    sums = run.weighted_sums(groups, weights)
    loop = Functional(model, squares, vectorized=False).run((x,), per_unit=per_unit)
    for name, wanted in loop.weighted_sums(groups, weights).items():
        assert torch.allclose(sums[name], wanted, rtol=0, atol=1e-9)


def test_a_group_is_measured_without_the_others():
    run = engine_of(mlp(), projections=200).run((randn(BATCH, 3),))
    whole, first, second = run.squared_norms([["0.weight", "2.weight"], ["0.weight"], ["2.weight"]])
    assert torch.allclose(whole, first + second, rtol=0.5)  # independent parts: their squares add on average
    assert not torch.allclose(first, second, rtol=0.5)


def test_directions_are_drawn_anew_at_each_run_and_kept_within_it():
    engine, batch = engine_of(mlp()), (randn(BATCH, 3),)
    run, other = engine.run(batch), engine.run(batch)
    groups = [["0.weight"]]
    assert torch.equal(run.squared_norms(groups), run.squared_norms(groups))
    assert not torch.allclose(run.squared_norms(groups), other.squared_norms(groups), rtol=1e-3)


@pytest.mark.parametrize("p", [0.2, 0.7])
def test_dropout_is_the_same_in_all_passes_of_a_run(p):
    consistent(mlp(nn.Dropout(p)), (randn(BATCH, 3),))


def test_dropout_differs_between_runs_and_moves_torch_on_as_one_pass_does():
    model, x = mlp(nn.Dropout(0.5)), randn(BATCH, 3)
    torch.manual_seed(1)
    masked = [squares(model, x).detach() for _ in range(2)]
    torch.manual_seed(1)
    runs = [consistent(model, (x,)) for _ in range(2)]
    assert not torch.equal(*masked)
    for run, wanted in zip(runs, masked, strict=True):
        assert torch.equal(run._losses, wanted)


MODELS = {
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 6, 0.3, batch_first=True),
    "attention without dropout": lambda: nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True),
    "lstm": lambda: Outputs(nn.LSTM(4, 3, 2, dropout=0.3, batch_first=True)),
    "gru": lambda: Outputs(nn.GRU(4, 3, batch_first=True)),
    "convolution": lambda: nn.Sequential(nn.Conv1d(5, 3, 2), nn.GroupNorm(3, 3), nn.ReLU()),
}


class Outputs(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_layers_with_fused_kernels_or_zero_gradients_are_consistent(name, dtype, tolerance):
    torch.manual_seed(0)
    consistent(MODELS[name]().to(dtype), (randn(3, 5, 4).to(dtype),), tolerance=tolerance)


def test_fused_kernels_are_back_afterwards():
    consistent(MODELS["lstm"]().double(), (randn(3, 5, 4),))
    assert (torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled) == (True, True)  # torch's defaults


def test_float32_is_consistent_up_to_its_rounding():
    consistent(mlp(nn.Dropout(0.5)).float(), (torch.randn(BATCH, 3),), tolerance=1e-4)


def test_autocast_around_a_pass_is_refused_because_all_rows_would_be_added_up_in_half_precision():
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UnsupportedUseError, match="autocast"):
        engine_of(mlp().float()).run((torch.randn(BATCH, 3),))


def test_no_rows_give_no_estimates_and_zero_sums():
    model = mlp()
    run = engine_of(model).run((randn(0, 3),))
    assert run.squared_norms([["0.weight"], ["2.bias"]]).shape == (2, 0)
    assert run.weighted_sums([["2.bias"]], torch.zeros(1, 0))["2.bias"].tolist() == [0, 0]


def test_an_unused_parameter_has_norm_zero():
    model = mlp()
    model.spare = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def without_it(model, x):
        return squares(model[:3], x)

    run = engine_of(model, without_it).run((randn(BATCH, 3),))
    assert run.squared_norms([["spare"]]).tolist() == [[0.0] * BATCH]
    assert run.weighted_sums([["spare"]], torch.ones(1, BATCH))["spare"].tolist() == [0, 0, 0]


def test_a_unit_that_is_not_finite_has_no_finite_estimate():
    x = randn(BATCH, 3)
    x[2, 1] = torch.nan
    finite = engine_of(mlp()).run((x,)).squared_norms([["0.weight"]])[0].isfinite()
    assert finite.tolist() == [True, True, False, True, True, True]


def masked(model, x):
    """sqrt at zero behind a mask: forward mode never sees it, reverse mode multiplies zero by infinity."""
    y = model(x).flatten(1)
    return torch.where(x[:, 0] == 0, y.sum(1), (y * x[:, :1]).square().sum(1).sqrt())


@pytest.mark.parametrize("per_unit", [1, 2])
def test_a_gradient_that_only_reverse_mode_makes_infinite_has_no_finite_estimate(per_unit):
    x = randn(BATCH, 3)
    x[3, 0] = 0
    run = engine_of(mlp(), masked).run((x,), per_unit=per_unit)
    wanted = [unit != 3 // per_unit for unit in range(BATCH // per_unit)]
    assert run.squared_norms([["0.weight", "2.bias"]])[0].isfinite().tolist() == wanted


def test_a_gradient_that_is_infinite_only_together_is_refused():
    def overflowing(model, x):
        return model(x).flatten(1)[:, 0] * 1e308

    with pytest.raises(UnsupportedUseError, match="not finite"):
        engine_of(mlp(), overflowing).run((randn(BATCH, 3),)).squared_norms([["2.bias"]])


def test_randomness_outside_of_torch_is_refused():
    own = random.Random(0)

    def noisy(model, x):
        return squares(model, x + own.gauss(0.0, 0.1))

    with pytest.raises(UnsupportedUseError, match="different losses"):
        engine_of(mlp(), noisy).run((randn(BATCH, 3),)).squared_norms([["0.weight"]])


def test_a_state_that_each_pass_changes_is_refused():
    passes = itertools.count()
    run = engine_of(mlp(), lambda model, x: squares(model, x) * (1 + next(passes))).run((randn(BATCH, 3),))
    with pytest.raises(UnsupportedUseError, match="different losses"):
        run.squared_norms([["0.weight"]])


def under_no_grad(model, x):
    with torch.no_grad():
        target = model(x) + 1
    return F.mse_loss(model(x), target, reduction="none").mean(1)


def test_a_gradient_that_is_not_the_derivative_is_refused():
    run = engine_of(mlp(), under_no_grad).run((randn(BATCH, 3),))
    groups = [["0.weight"], ["2.weight"]]
    run.squared_norms(groups)
    with pytest.raises(UnsupportedUseError, match="forward and reverse mode disagree"):
        run.weighted_sums(groups, torch.ones(2, BATCH).double())


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def test_an_operation_without_forward_mode_is_refused():
    run = engine_of(mlp(), lambda model, x: squares(lambda x: Doubled.apply(model(x)), x)).run(
        (randn(BATCH, 3),)
    )
    with pytest.raises(UnsupportedUseError, match="forward-mode"):
        run.squared_norms([["0.weight"]])


def test_gradients_of_single_units_are_refused():
    with pytest.raises(UnsupportedUseError, match=r"0\.weight"):
        engine_of(mlp()).run((randn(BATCH, 3),)).per_unit("0.weight")


@pytest.mark.parametrize("projections", [0, -1, 2.0])
def test_the_number_of_projections_is_checked(projections):
    with pytest.raises(InvalidParameterError, match="projections"):
        engine_of(mlp(), projections=projections)


def test_parameters_in_a_coarse_type_are_refused():
    with pytest.raises(InvalidParameterError, match=r"0\.weight"):
        engine_of(mlp().bfloat16())


def test_the_model_has_its_parameters_back_after_an_error():
    model = mlp()
    before = dict(model.named_parameters())
    run = engine_of(model, lambda model, x: squares(lambda x: Doubled.apply(model(x)), x)).run(
        (randn(BATCH, 3),)
    )
    with pytest.raises(UnsupportedUseError):
        run.squared_norms([["0.weight"]])
    assert all(p is before[name] for name, p in model.named_parameters())
