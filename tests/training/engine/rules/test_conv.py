# SPDX-License-Identifier: Apache-2.0
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.training.data.rows import Grouping
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.rules import conv, correlation
from sfumato.training.engine.rules.conv import ConvOp
from sfumato.training.engine.rules.correlation import Correlation
from sfumato.training.engine.tape.operation import Memory
from sfumato.training.engine.tape.tape import Tape
from sfumato.training.isolation.isolated_rows import Isolated

CONVS = [nn.Conv1d, nn.Conv2d, nn.Conv3d]
TRANSPOSED = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
# The fixture is a pure function, so that it may be shared by all examples.
any_shape = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def squares(model, x):
    y = model(x).flatten(1)
    return y.square().sum(1) + y.sum(1)


def by_way_of(ghost):
    return patch.object(ConvOp, "_ghost_is_cheaper", lambda op: ghost)


@st.composite
def geometries(draw, most=4):
    """Kernel, stride, dilation and padding of one to three axes, groups, channels in and out per group."""
    axes = draw(st.integers(1, 3))
    options = [[draw(st.integers(low, most)) for _ in range(axes)] for low in (1, 1, 1, 0)]
    return (*options, draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))


ROUNDED_UP = 1e-8  # norms err upwards, by roundings relative to terms that may cancel


@any_shape
@given(geometries(), st.integers(0, 3), st.booleans(), st.booleans())
def test_convolution_agrees_with_the_loop_for_any_shape(agrees, geometry, more, bias, ghost):
    kernel, stride, dilation, padding, groups, c_in, c_out = geometry
    torch.manual_seed(0)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
    model = CONVS[len(kernel) - 1](c_in * groups, c_out * groups, kernel, **options).double()
    size = [max(1, (k - 1) * d + 1 - 2 * p) + more for k, d, p in zip(kernel, dilation, padding, strict=True)]
    with by_way_of(ghost):
        agrees(model, squares, torch.randn(4, c_in * groups, *size).double(), tolerance=ROUNDED_UP)


@any_shape
@given(geometries(), st.integers(1, 3), st.integers(0, 2), st.booleans())
def test_transposed_convolution_agrees_with_the_loop_for_any_shape(agrees, geometry, size, more, ghost):
    kernel, stride, dilation, _, groups, c_in, c_out = geometry
    torch.manual_seed(0)
    padding = [(k - 1) * d // 2 for k, d in zip(kernel, dilation, strict=True)]
    output_padding = [min(more, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)]
    options = {"stride": stride, "padding": padding, "output_padding": output_padding, "groups": groups}
    layer = TRANSPOSED[len(kernel) - 1]
    model = layer(c_in * groups, c_out * groups, kernel, dilation=dilation, **options).double()
    with by_way_of(ghost):
        agrees(
            model,
            squares,
            torch.randn(4, c_in * groups, *[size] * len(kernel)).double(),
            tolerance=ROUNDED_UP,
        )


@pytest.mark.parametrize("ghost", [False, True])
@pytest.mark.filterwarnings("ignore:Using padding=.same.")  # torch tells that it copies
@pytest.mark.parametrize("padding", ["same", "valid", 1, (0, 2)])
@pytest.mark.parametrize("kernel", [2, 3, (4, 1)])
def test_paddings_by_name_and_by_number_agree(agrees, padding, kernel, ghost):
    with by_way_of(ghost):
        model = nn.Conv2d(2, 3, kernel, padding=padding, dilation=(1, 2)).double()
        agrees(model, squares, torch.randn(4, 2, 5, 6).double())


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_other_paddings_than_zeros_agree(agrees, mode):
    agrees(nn.Conv1d(2, 3, 3, padding=2, padding_mode=mode).double(), squares, torch.randn(4, 2, 6).double())


@pytest.mark.parametrize("ghost", [False, True])
def test_depthwise_and_pointwise_layers_with_changes_in_place_agree(agrees, ghost):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 1), nn.ReLU(inplace=True), nn.Conv2d(6, 6, 3, padding=1, groups=6)]
    layers += [nn.ReLU(inplace=True), nn.Conv2d(6, 4, 1, stride=2, bias=False), nn.ReLU(inplace=True)]
    with by_way_of(ghost):
        agrees(nn.Sequential(*layers).double(), squares, torch.randn(4, 3, 5, 4).double())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(self.a(x)).relu_())


@pytest.mark.parametrize("ghost", [False, True])
def test_a_kernel_that_is_tied_and_used_three_times_agrees(agrees, ghost):
    with by_way_of(ghost):
        agrees(Twice().double(), squares, torch.randn(4, 2, 4, 5).double())


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_frozen_weight_or_bias_agrees(agrees, frozen, transposed):
    layer = (nn.ConvTranspose2d if transposed else nn.Conv2d)(2, 3, 3).double()
    getattr(layer, frozen).requires_grad_(False)
    agrees(nn.Sequential(nn.Conv2d(2, 2, 1).double(), layer), squares, torch.randn(4, 2, 4, 5).double())


def test_a_frozen_weight_keeps_no_input(agrees):
    layer = nn.Conv2d(2, 3, 3)
    layer.weight.requires_grad_(False)
    run = BookKeeping(layer, squares).run((torch.randn(4, 2, 4, 5),))
    (use,) = run._uses["bias"]
    assert list(use[0].saved()) == []


def test_images_with_channels_last_agree(agrees):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 2, stride=2)).double()
    agrees(model, squares, torch.randn(4, 3, 6, 5).double().to(memory_format=torch.channels_last))


class Frames(nn.Module):
    """Each row is a film: its frames go through the convolution as a longer batch."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)

    def forward(self, x):
        return self.conv(x.flatten(0, 1)).unflatten(0, x.shape[:2])


@pytest.mark.parametrize("ghost", [False, True])
def test_frames_flattened_into_the_batch_agree(agrees, ghost):
    with by_way_of(ghost):
        agrees(Frames().double(), squares, torch.randn(4, 5, 2, 3, 4).double())


class Shared(nn.Module):
    """All rows see the same picture through the convolution; the picture has a batch axis or has none."""

    def __init__(self, channels, axis):
        super().__init__()
        self.conv = nn.Conv2d(2, channels, 2, padding=1)
        self.picture = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(2, 3, 4)
        self.axis = axis

    def forward(self, x):
        return x * self.conv(self.picture[None] if self.axis else self.picture)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("axis", [False, True])
def test_an_image_that_all_rows_share_agrees(agrees, channels, axis):
    agrees(Shared(channels, axis).double(), squares, torch.randn(4, 1, 1, 1).double())


@pytest.mark.parametrize("ghost", [False, True])
def test_norms_taken_one_unit_at_a_time_agree(agrees, ghost):
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.ConvTranspose2d(3, 2, 2, stride=2)).double()
    with by_way_of(ghost), patch.object(conv, "_AT_ONCE", 1), patch.object(correlation, "_UNFOLDED", 1):
        agrees(model, squares, torch.randn(4, 2, 5, 4).double())


@pytest.mark.parametrize("ghost", [False, True])
def test_float32_agrees_up_to_its_rounding(agrees, ghost):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3))
    with by_way_of(ghost):
        # Norms that are not kept err upwards, by up to 16 roundings of all their terms.
        agrees(model, squares, torch.randn(4, 3, 12, 12), tolerance=1e-3 if ghost else 1e-5)


def under_autocast(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    y = y.float().flatten(1)
    return y.square().sum(1) + y.sum(1)


@pytest.mark.parametrize("ghost", [False, True])
def test_bfloat16_autocast_agrees_up_to_its_rounding(agrees, ghost):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3))
    with by_way_of(ghost):
        agrees(model, under_autocast, torch.randn(4, 3, 12, 12), tolerance=2e-2)


def conv_op(channels, side, *, keep_bytes):
    tape = Tape(Grouping(units=8), Isolated(8), Memory(keep_bytes))
    shape = Correlation((3, 3), (1, 1), (1, 1), (1, 1))
    x = torch.empty(8, channels, side, side, device="meta")
    weight = torch.Size([channels, channels, 3, 3])
    op = ConvOp(x, weight, shape, {"weight": "w"}, tape, transposed=False)
    op.grad = torch.empty_like(x)
    return op


@pytest.mark.parametrize("keep_bytes", [0, 1 << 30])
@pytest.mark.parametrize(("channels", "side", "ghost"), [(256, 8, True), (64, 32, False), (8, 8, False)])
def test_gram_matrices_are_used_for_many_channels_on_small_planes(channels, side, ghost, keep_bytes):
    assert conv_op(channels, side, keep_bytes=keep_bytes)._ghost_is_cheaper() is ghost


class Calling(nn.Module):
    def __init__(self, apply, *shape):
        super().__init__()
        self.w = nn.Parameter(torch.randn(*shape))
        self.apply_to = apply

    def forward(self, x):
        return self.apply_to(x, self.w)


def test_a_convolution_along_the_batch_sees_one_row_alone(agrees):
    model = Calling(lambda x, w: F.conv1d(x.T[None], w)[0].T, 3, 2, 1).double()
    agrees(model, squares, torch.randn(4, 2).double())


@pytest.mark.parametrize("function", [F.conv2d, F.conv_transpose2d])
def test_a_parameter_in_place_of_the_image_agrees(agrees, function):
    model = Calling(
        lambda x, w: function(w, x.reshape(2, 1, 3, 3).expand(-1, 2, -1, -1)), 1, 2, 5, 5
    ).double()
    agrees(model, squares, torch.randn(4, 2, 3, 3).double())


@pytest.mark.parametrize("ghost", [False, True])
def test_where_terms_cancel_a_contribution_still_stays_within_the_bound(ghost):
    def given(model, x, g):
        return (model(x) * g).flatten(1).sum(1)

    torch.manual_seed(0)
    model, order = nn.Conv2d(3, 3, 1, bias=False), torch.randperm(400)
    x, g = (1e4 * torch.randn(8, 3, 200) for _ in range(2))
    x = torch.cat([x, x], 2)[:, :, order].reshape(8, 3, 20, 20)
    g = torch.cat([g, -g], 2)[:, :, order].reshape(8, 3, 20, 20)  # every term meets its opposite
    with by_way_of(ghost):
        run = BookKeeping(model, given, keep_bytes=0).run((x, g))
        norms = run.squared_norms([["weight"]]).sqrt()
    assert norms.isfinite().all()
    for unit in range(8):
        weights = torch.zeros(1, 8)
        weights[0, unit] = (1 / norms[0, unit]).clamp(max=1)
        assert run.weighted_sums([["weight"]], weights)["weight"].norm() <= 1 + 1e-3


def cancelling(dtype):
    """Return a 1 x 1 convolution's op over rows whose terms nearly cancel, as a GPU would see it."""
    torch.manual_seed(0)
    tape = Tape(Grouping(units=64), Isolated(64), Memory(0))
    shape = Correlation(kernel=(1, 1), stride=(1, 1), dilation=(1, 1), before=(0, 0))
    half, g = 1e3 * torch.randn(64, 1, 1, 40), 1e3 * torch.randn(64, 1, 1, 40)
    names = {"weight": "weight", "bias": None}
    x, weight = torch.cat([half, -half], 3).to(dtype), torch.Size((1, 1, 1, 1))
    op = ConvOp(x, weight, shape, names, tape, transposed=False)
    op.grad = torch.cat([g, g * (1 + 2.0**-7 * torch.rand_like(g))], 3).to(dtype)
    return op


@pytest.mark.parametrize("ghost", [True, False])
def test_one_row_of_half_precision_moves_the_sum_by_at_most_the_clip_norm_where_terms_cancel(
    monkeypatch, ghost
):
    monkeypatch.setattr(conv, "_precise", lambda x: x)  # a GPU multiplies numbers of 16 bits
    op = cancelling(torch.bfloat16)
    with by_way_of(ghost):
        norms = op.squared_norm("weight").sqrt()
    for row, norm in enumerate(norms):
        weights = torch.zeros(64)
        weights[row] = (1 / norm).clamp(max=1)
        x, scaled = (
            op.x[row].double(),
            op.grad[row] * weights[row].to(torch.bfloat16),
        )  # rounded, as in the sum
        assert float((x * scaled.double()).sum().abs()) <= 1 + 1e-3


def test_norms_err_upwards_where_convolutions_cut_what_products_do_not(monkeypatch):
    op = cancelling(torch.float32)
    with by_way_of(True):
        whole = op.squared_norm("weight")
        monkeypatch.setattr(conv, "convolution_eps", lambda grad: 2.0**-9)
        cut = op.squared_norm("weight")
    least = (2.0**-9 * op._mass().sqrt()).square()
    assert bool((cut - whole >= 0.9 * least).all())


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_the_sum_over_a_batch_is_not_rounded_to_sixteen_bits_on_a_gpu(monkeypatch, half, kept):
    monkeypatch.setattr(conv, "_precise", lambda x: x)
    shape = Correlation(kernel=(1, 1), stride=(1, 1), dilation=(1, 1), before=(0, 0))
    tape = Tape(Grouping(units=3001), Isolated(3001), Memory(1 << 30 if kept else 0))
    weight, names = torch.Size((1, 1, 1, 1)), {"weight": "weight", "bias": None}
    op = ConvOp(torch.ones(3001, 1, 1, 1, dtype=half), weight, shape, names, tape, transposed=False)
    op.grad = torch.ones(3001, 1, 1, 1, dtype=half)
    with by_way_of(False):
        op.squared_norm("weight")
    assert (op._flat is not None) == kept
    assert float(op.weighted_sum("weight", torch.ones(3001))) == 3001


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), gap=st.floats(0.1, 10), ghost=st.booleans())
def test_numbers_that_are_all_cut_one_way_move_the_sum_by_at_most_the_clip_norm(seed, gap, ghost):
    """As on a GPU with torch's settings: norms are of whole numbers, and the sum is cut to 10 bits."""
    generator, cut = torch.Generator().manual_seed(seed), 2.0**-9
    tape, names = Tape(Grouping(units=1), Isolated(1), Memory(0)), {"weight": "weight", "bias": None}
    shape = Correlation(kernel=(1, 1), stride=(1, 1), dilation=(1, 1), before=(0, 0))
    x = 1 + torch.rand(1, 1, 1, 2, generator=generator) / 16
    x = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)  # cut already
    x[..., 1] += 0.99 * 2.0**-10  # but this one
    g = torch.ones(1, 1, 1, 2) * 1e5
    g[..., 1] = -g[..., 0] * x[..., 0] / x[..., 1] * (1 - gap * cut)
    op = ConvOp(x, torch.Size((1, 1, 1, 1)), shape, names, tape, transposed=False)
    op.grad = g
    with by_way_of(ghost), patch.object(conv, "convolution_eps", lambda grad: cut):
        norm = op.squared_norm("weight").sqrt()
    scaled = g * (1 / norm).clamp(max=1)
    x, scaled = ((t.view(torch.int32) & ~0x1FFF).view(torch.float32).double() for t in (x, scaled))
    assert float((x * scaled).sum().abs()) <= 1 + 1e-3
