# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.errors import NotPrivateError
from sfumato.training.engine.book_keeping import BookKeeping

sizes = st.integers(1, 5)
# The fixture is a pure function, so that it may be shared by all examples.
any_shape = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def squares(model, x):
    y = model(x).flatten(1)
    return y.square().sum(1) + y.sum(1)


def at_random(model):
    """Give scales, shifts and statistics values that differ from one another."""
    torch.manual_seed(0)
    model = model.double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return model


@any_shape
@given(st.lists(sizes, max_size=2), st.lists(sizes, min_size=1, max_size=2), st.booleans(), st.booleans())
def test_layer_norm_agrees_with_the_loop_for_any_shape(agrees, steps, features, bias, inner):
    norm = at_random(nn.LayerNorm(features, eps=0.1, bias=bias))
    model = nn.Sequential(nn.Linear(features[-1], features[-1]).double(), norm) if inner else norm
    agrees(model, squares, torch.randn(4, *steps, *features).double())


@any_shape
@given(st.lists(sizes, max_size=2), st.lists(sizes, min_size=1, max_size=2), st.sampled_from([None, 0.1]))
def test_rms_norm_agrees_with_the_loop_for_any_shape(agrees, steps, features, eps):
    agrees(at_random(nn.RMSNorm(features, eps=eps)), squares, torch.randn(4, *steps, *features).double())


@any_shape
@given(groups=sizes, per_group=st.integers(2, 4), positions=st.lists(sizes, max_size=3), inner=st.booleans())
def test_group_norm_agrees_with_the_loop_for_any_shape(agrees, groups, per_group, positions, inner):
    channels = groups * per_group
    model = at_random(nn.GroupNorm(groups, channels, eps=0.1))
    if inner and len(positions) == 2:
        model = nn.Sequential(nn.Conv2d(channels, channels, 1).double(), model)
    agrees(model, squares, torch.randn(4, channels, *positions).double())


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_instance_norm_agrees(agrees, axes):
    norm = [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d][axes - 1]
    agrees(at_random(norm(3, affine=True)), squares, torch.randn(4, 3, *[3] * axes).double())


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, affine=True, track_running_stats=True)],
    ids=["batch", "instance"],
)
def test_norms_with_fixed_statistics_agree(agrees, norm):
    agrees(at_random(norm).eval(), squares, torch.randn(4, 3, 2, 5).double())


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, affine=True, track_running_stats=True)],
    ids=["batch", "instance"],
)
def test_norms_that_mix_examples_are_refused_and_told_the_fix(norm):
    with pytest.raises(NotPrivateError, match=r"sf\.training\.fix"):
        BookKeeping(norm, squares).run((torch.randn(4, 3, 2, 5),))


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm(5), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)],
    ids=["layer", "group", "instance"],
)
def test_a_frozen_scale_or_shift_agrees(agrees, norm, frozen):
    model = at_random(norm)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name != frozen)
    agrees(model, squares, torch.randn(4, 4, 3, 5).double())


class Twice(nn.Module):
    """A norm used twice, a change in place after each use."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), norm

    def forward(self, x):
        return self.norm(self.norm(self.first(x)).relu_()).relu_()


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(3, 6)], ids=["layer", "rms", "group"]
)
def test_a_norm_used_twice_with_changes_in_place_agrees(agrees, norm):
    agrees(at_random(Twice(norm)), squares, torch.randn(4, 6, 4).double())


class SequenceFirst(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize("norm", [nn.LayerNorm(3), nn.RMSNorm(3)], ids=["layer", "rms"])
def test_rows_on_the_second_axis_agree(agrees, norm):
    agrees(at_random(SequenceFirst(norm)), squares, torch.randn(4, 5, 3).double())


class Shared(nn.Module):
    """A norm of a picture that all rows share."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return x * self.norm(torch.linspace(-1, 2, 24, dtype=torch.float64).reshape(1, 6, 4).square())


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 6)], ids=["layer", "rms", "group"]
)
def test_an_input_that_all_rows_share_agrees(agrees, norm):
    agrees(at_random(Shared(norm)), squares, torch.randn(4, 1, 1).double())


@pytest.mark.parametrize("norm", [nn.LayerNorm(4), nn.GroupNorm(2, 6)], ids=["layer", "group"])
def test_a_large_mean_costs_no_more_than_the_rounding_of_float32(agrees, norm):
    torch.manual_seed(0)
    agrees(norm, squares, 100 + torch.randn(4, 6, 4), tolerance=1e-4)


def under_autocast(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    y = y.float().flatten(1)
    return y.square().sum(1) + y.sum(1)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # torch tells that its fused RMS norm does not apply
@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(8), nn.RMSNorm(8), nn.GroupNorm(2, 6)], ids=["layer", "rms", "group"]
)
def test_bfloat16_autocast_agrees_up_to_its_rounding(agrees, norm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 8))
    agrees(model, under_autocast, torch.randn(4, 6, 8), tolerance=2e-2)


def test_images_with_channels_last_agree(agrees):
    model = at_random(nn.Sequential(nn.Conv2d(6, 6, 1), nn.GroupNorm(2, 6), nn.Conv2d(6, 2, 1)))
    agrees(model, squares, torch.randn(4, 6, 3, 5).double().to(memory_format=torch.channels_last))


def test_a_parameter_in_place_of_the_input_agrees(agrees):
    model = nn.Linear(3, 3)
    model.register_parameter("scale", nn.Parameter(torch.ones(3)))
    agrees(
        model.double(),
        lambda m, x: nn.functional.layer_norm(m.weight, (3,), m.scale).square().sum() * x.sum(1),
        torch.randn(4, 3).double(),
    )


class Across(nn.Module):
    """A norm that would take the rows of a batch for positions."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x.transpose(0, 1).flatten(1)[None])


@pytest.mark.parametrize(
    "norm", [nn.GroupNorm(1, 3), nn.InstanceNorm1d(3, affine=True)], ids=["group", "instance"]
)
def test_a_norm_over_the_batch_sees_one_row_alone(agrees, norm):
    agrees(at_random(Across(norm)), squares, torch.randn(4, 3, 5).double())


@pytest.mark.parametrize("shape", [(6, 2), (6, 3, 3)])
def test_a_group_norm_right_before_a_sum_over_places_reads_no_gradient_of_another_row(agrees, shape):
    """The gradient of a sum is one number for all that is summed up, and lies in memory once."""
    model = at_random(nn.GroupNorm(2, shape[0]))
    scale = torch.randn(shape[0], dtype=torch.float64)
    x = torch.randn(4, *shape, dtype=torch.float64)
    agrees(model, lambda model, x: (model(x).flatten(2).sum(2) * scale).sum(1), x)
