# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from sfumato.testing import seeded
from sfumato.training.engine.functional import FunctionalPass
from sfumato.training.privacy.clipping import AdaptiveClip, Clipper, Clipping, CoordinateClipping, Scaling

SLACK = 1e-4  # float32 rounding
ALPHA = 1e-6
ADAPT = AdaptiveClip(count_noise_multiplier=1.0)
SHAPES = {"a.weight": (2,), "a.bias": (1,), "b.weight": (2,)}
STYLES = {
    "flat": Clipping(clip_norm=2.0),
    "per layer": Clipping(clip_norm=2.0, per_layer=True),
    "layer norms": Clipping(layer_norms={"a": 0.5, "b": 3.0}),
    "global": Clipping(clip_norm=2.0, scaling=Scaling.GLOBAL, drop_above=5.0),
    "global, raised": Clipping(clip_norm=2.0, scaling=Scaling.GLOBAL, drop_above=0.1),
    "global per layer": Clipping(clip_norm=2.0, per_layer=True, scaling=Scaling.GLOBAL, drop_above=5.0),
    "automatic": Clipping(clip_norm=2.0, scaling=Scaling.AUTOMATIC),
    "automatic per layer": Clipping(clip_norm=2.0, per_layer=True, scaling=Scaling.AUTOMATIC),
    "adaptive": Clipping(clip_norm=2.0, adaptive=ADAPT),
    "adaptive per layer": Clipping(clip_norm=2.0, per_layer=True, adaptive=ADAPT),
    "coordinate": CoordinateClipping(coordinate_bound=0.5),
}
any_style = pytest.mark.parametrize("style", STYLES)
hostile = st.sampled_from([0.0, 1e-45, 1e-30, 0.1, -3.0, 1e10, 1e19, 3e38, math.inf, -math.inf, math.nan])
units = st.lists(st.lists(hostile | st.floats(width=32), min_size=5, max_size=5), min_size=1, max_size=4)


def parameters():
    return {name: torch.zeros(shape) for name, shape in SHAPES.items()}


def pass_of(gradients):
    """A pass whose units have these gradients, five numbers each."""
    rows = torch.tensor(gradients, dtype=torch.float32).reshape(-1, 5)
    parts = rows.split([math.prod(shape) for shape in SHAPES.values()], dim=1)
    return FunctionalPass({n: p.reshape(-1, *s) for (n, s), p in zip(SHAPES.items(), parts, strict=True)})


def clipped(clipper, gradients):
    """The clipped sum, with the units left out that `sums` says must be."""
    gradients = torch.tensor(gradients, dtype=torch.float32).reshape(-1, 5)
    found = clipper.sums(pass_of(gradients.tolist()))
    while isinstance(found, torch.Tensor):
        gradients = gradients[found]
        found = clipper.sums(pass_of(gradients.tolist()))
    return torch.cat([found.sums[name].flatten() for name in SHAPES])


@any_style
@settings(max_examples=40, deadline=None)
@given(gradients=units)
def test_one_unit_moves_the_sum_by_at_most_the_bound_whatever_its_gradient(style, gradients):
    clipper = Clipper(STYLES[style], parameters())
    moved = clipped(clipper, gradients) - clipped(clipper, gradients[1:])
    assert float(moved.norm()) <= clipper.bound * (1 + SLACK)


@any_style
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_a_unit_that_is_not_finite_reaches_no_other(style, bad):
    clipper = Clipper(STYLES[style], parameters())
    good = [[1.0, -2.0, 0.5, 0.1, 4.0], [0.0] * 5]
    rotten = [0.5, bad, 0.5, 0.5, 0.5]
    found = clipper.sums(pass_of([good[0], rotten, good[1]]))
    if style == "coordinate":
        alone = clipped(clipper, [rotten])
        assert torch.allclose(clipped(clipper, [*good, rotten]) - alone, clipped(clipper, good))
        assert float(alone[1]) == (0 if math.isnan(bad) else math.copysign(0.5, bad))
    else:
        assert found.tolist() == [True, False, True]
        assert torch.equal(clipped(clipper, [good[0], rotten, good[1]]), clipped(clipper, good))


def test_norms_whose_total_overflows_are_not_taken_for_infinite_ones():
    clipper = Clipper(STYLES["flat"], parameters())
    large = [1.5e19, 0.0, 0.0, 0.0, 0.0]
    assert clipped(clipper, [large] * 3).tolist() == pytest.approx([6.0, 0, 0, 0, 0])


norms = st.floats(1e-3, 1e3)


@given(st.lists(norms, min_size=1, max_size=4), norms, norms)
def test_each_scaling_is_its_formula(sizes, clip_norm, above):
    gradients = [[size, 0, 0, 0, 0] for size in sizes]
    formulas = {
        Scaling.LOCAL: lambda n: min(n, clip_norm),
        Scaling.AUTOMATIC: lambda n: clip_norm * n / (n + 0.01),
        Scaling.GLOBAL: lambda n: clip_norm * n / above if np.float32(n) <= np.float32(above) else 0.0,
    }
    for scaling, formula in formulas.items():
        drop = above if scaling is Scaling.GLOBAL else None
        clipper = Clipper(Clipping(clip_norm=clip_norm, scaling=scaling, drop_above=drop), parameters())
        wanted = sum(formula(size) for size in sizes)
        assert float(clipped(clipper, gradients)[0]) == pytest.approx(wanted, rel=1e-4)


def test_a_layer_is_clipped_on_its_own_and_the_bound_is_that_of_all_together():
    clipper = Clipper(STYLES["layer norms"], parameters())
    assert clipper.groups == [["a.weight", "a.bias"], ["b.weight"]]
    assert clipped(clipper, [[30.0, 40.0, 0.0, 0.6, 0.8]]).tolist() == pytest.approx([0.3, 0.4, 0, 0.6, 0.8])
    assert clipper.bound == pytest.approx(math.hypot(0.5, 3.0))
    shared = Clipper(STYLES["per layer"], parameters())
    assert shared.bound == 2.0 and shared.thresholds == pytest.approx([math.sqrt(2)] * 2)


def test_a_sum_of_clipped_coordinates_is_not_rounded_to_sixteen_bits():
    run = FunctionalPass({"a": torch.ones(3001, 1, dtype=torch.bfloat16)})
    clipper = Clipper(CoordinateClipping(coordinate_bound=1.0), {"a": torch.zeros(1)})
    assert float(clipper.sums(run).sums["a"]) == 3001
    clipper = Clipper(CoordinateClipping(coordinate_bound=0.999), {"a": torch.zeros(1)})
    assert float(clipper.sums(run).sums["a"]) <= 0.9991 * 3001  # the bound is not rounded to 1


def test_a_coordinate_bound_grows_with_the_number_of_parameters():
    assert Clipper(STYLES["coordinate"], parameters()).bound == pytest.approx(0.5 * math.sqrt(5))
    assert clipped(Clipper(STYLES["coordinate"], parameters()), [[9.0, -9.0, 0.1, 0, 0]]).tolist() == (
        pytest.approx([0.5, -0.5, 0.1, 0, 0])
    )


# --- adaptive -----------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 2.5, 100.0]), min_size=1, max_size=5))
def test_one_unit_moves_the_count_of_those_below_by_one_half(sizes):
    clipper = Clipper(STYLES["adaptive"], parameters())
    below = [
        clipper.sums(pass_of([[s, 0, 0, 0, 0] for s in part])).below for part in (sizes, sizes[1:] or [1.0])
    ]
    assert float(below[0]) == sum(0.5 if size <= 2 else -0.5 for size in sizes)
    if sizes[1:]:
        assert abs(float(below[0] - below[1])) == 0.5


def released(clipper, below, count, expected=10.0, **options):
    """The count as the thresholds tell it: their logarithm moves by -rate (share - quantile)."""
    shares = []
    for i in range(count):
        clipper.load_state_dict({"thresholds": [1.0] * len(clipper.groups)})
        clipper.adapt(below, expected_batch_size=expected, generator=seeded(i), **options)
        shares += [0.5 - math.log(t) / 0.2 for t in clipper.thresholds]
    return (torch.tensor(shares) - 0.5) * expected


@pytest.mark.parametrize(
    ("style", "sensitivity"), list(itertools.product(["adaptive", "adaptive per layer"], [1.0, 2.0]))
)
def test_the_count_is_released_with_noise_sized_for_all_layers_and_for_what_one_unit_moves(
    style, sensitivity
):
    clipper = Clipper(STYLES[style], parameters())
    below = torch.zeros(len(clipper.groups))
    found = released(clipper, below, 400, expected=100.0, sensitivity=sensitivity).numpy()
    stddev = sensitivity * math.sqrt(len(clipper.groups)) / 2
    assert kstest(found, norm(scale=stddev).cdf).pvalue > ALPHA
    assert kstest(found, norm(scale=1.5 * stddev).cdf).pvalue < ALPHA


def test_the_threshold_goes_to_the_quantile_of_the_norms_from_above_and_from_below():
    sizes = torch.linspace(1, 9, 101).tolist()
    gradients = [[size, 0, 0, 0, 0] for size in sizes]
    for start in (0.2, 50.0):
        adaptive = AdaptiveClip(count_noise_multiplier=0.1, quantile=0.75)
        clipper = Clipper(Clipping(clip_norm=start, adaptive=adaptive), parameters())
        for step in range(150):
            below = clipper.sums(pass_of(gradients)).below
            clipper.adapt(below, expected_batch_size=len(sizes), generator=seeded(step))
        assert clipper.bound == pytest.approx(7.0, rel=0.05) and clipper.thresholds == [clipper.bound]


def test_a_moved_threshold_is_the_bound_and_is_obeyed_at_once():
    clipper = Clipper(STYLES["adaptive"], parameters())
    assert float(clipped(clipper, [[10.0, 0, 0, 0, 0]])[0]) == pytest.approx(2.0)
    clipper.adapt(torch.tensor([-100.0]), expected_batch_size=10, generator=seeded(0))  # all are above
    assert clipper.bound == pytest.approx(2.0 * math.exp(0.1))
    assert float(clipped(clipper, [[10.0, 0, 0, 0, 0]])[0]) == pytest.approx(clipper.bound)


def test_a_threshold_stops_before_squares_vanish():
    clipper = Clipper(STYLES["adaptive"], parameters())
    clipper.load_state_dict({"thresholds": [1.0001e-12]})
    for step in range(5):
        clipper.adapt(torch.tensor([100.0]), expected_batch_size=10, generator=seeded(step))
    assert clipper.bound == 1e-12


def test_fixed_thresholds_do_not_adapt():
    clipper = Clipper(STYLES["flat"], parameters())
    clipper.adapt(torch.tensor([-100.0]), expected_batch_size=10, generator=seeded(0))
    assert clipper.thresholds == [2.0] and clipper.adaptive is None


def test_thresholds_are_saved_and_taken_up_again():
    clipper, other = (Clipper(STYLES["adaptive per layer"], parameters()) for _ in range(2))
    clipper.adapt(torch.tensor([-3.0, 3.0]), expected_batch_size=10, generator=seeded(0))
    clipped(other, [[1.0] * 5])  # its thresholds are on the device already
    other.load_state_dict(clipper.state_dict())
    assert other.thresholds == clipper.thresholds
    assert torch.equal(clipped(other, [[9.0] * 5]), clipped(clipper, [[9.0] * 5]))


@pytest.mark.parametrize("style", ["flat", "per layer"])
def test_a_factor_scales_thresholds_and_bound_and_replaces_an_earlier_one(style):
    clipper, stated = (Clipper(STYLES[style], parameters()) for _ in range(2))
    clipper.scale(0.1)
    clipper.scale(0.5)
    assert clipper.bound == 0.5 * stated.bound
    assert clipper.thresholds == [0.5 * threshold for threshold in stated.thresholds]
