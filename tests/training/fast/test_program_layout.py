# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.fast.program_layout import with_channels_last


def weights():
    torch.manual_seed(0)
    shapes = ((5, 3, 3, 3), (4, 5, 3, 3))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def gradients(first, second):
    """Return a program that returns a loss and the gradients of two convolutions."""

    def run(x):
        y = torch.conv2d(x, first, None, 1, 1).sin()
        y += 1  # in place, on what the next convolution reads
        z = torch.conv2d(y, second, None, 2, 1)
        return [(z * z).sum(), *torch.autograd.grad((z * z).sum(), [first, second])]

    return run


def test_a_program_computes_what_it_computed_and_returns_it_in_the_same_layout():
    run = gradients(*weights())
    x, other = (torch.randn(2, 3, 8, 8, dtype=torch.float64) for _ in range(2))
    traced = make_fx(run)(x)
    assert with_channels_last(traced)
    for found, wanted in zip(traced(other), run(other), strict=True):
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


def test_every_convolution_reads_channels_last_and_each_tensor_is_copied_once():
    traced = make_fx(gradients(*weights()))(torch.randn(2, 3, 8, 8, dtype=torch.float64))
    with_channels_last(traced)
    layouts, copied = [], []

    class Reading(torch.fx.Interpreter):
        def run_node(self, node):
            arguments, _ = self.fetch_args_kwargs_from_env(node)
            if "convolution" in str(node.target):
                layouts.extend(a for a in arguments if isinstance(a, torch.Tensor) and a.dim() == 4)
            if node.target is torch.ops.aten.clone.default:
                copied.append(node.args[0])
            return super().run_node(node)

    Reading(traced).run(torch.randn(2, 3, 8, 8, dtype=torch.float64))
    assert len(layouts) == 10  # two of each convolution, three of each of the two backward passes
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in layouts)
    assert len(copied) == len(set(copied))


def test_a_program_without_images_is_left_as_it_is():
    traced = make_fx(lambda x: [torch.conv1d(x, torch.ones(1, 3, 3)), x @ x.mT])(torch.ones(2, 3, 8))
    before = str(traced.graph)
    assert not with_channels_last(traced)
    assert str(traced.graph) == before


def test_what_reads_memory_by_its_strides_and_what_views_it_stay_right():
    weight = torch.randn(5, 3, 3, 3, dtype=torch.float64)

    def run(x):
        y = x * 2
        patches = y.permute(0, 2, 3, 1).as_strided((2, 6, 6, 9), (192, 8, 1, 3))
        z = torch.conv2d(y, weight, None, 1, 1)
        return [patches.sum(0), y.view(2, -1) + 1, z.reshape(2, 5, -1)]

    x, other = (torch.randn(2, 3, 8, 8, dtype=torch.float64) for _ in range(2))
    traced = make_fx(run)(x)
    assert with_channels_last(traced)
    for found, wanted in zip(traced(other), run(other), strict=True):
        torch.testing.assert_close(found, wanted)


KERNEL = torch.ones(4, 4, 3, 3).tril()


def halves(x):
    first, second = torch.cat([x, x], 1).split(4, 1)
    found = torch.conv2d(first, KERNEL)
    first.mul_(2)
    return [found, first, second]


def part_and_whole(x):
    both = torch.stack([x, x])
    first, second = both.unbind(0)
    found = torch.conv2d(first, KERNEL)
    both.mul_(2)
    return [found, first, second]


def flattened(x):
    y = torch.conv2d(x, KERNEL)
    y.view(len(y), -1).mul_(3)
    return [y, torch.conv2d(y, KERNEL)]


@pytest.mark.parametrize("run", [halves, part_and_whole, flattened])
def test_a_program_that_writes_by_another_view_of_an_image_computes_what_it_computed(run):
    x = torch.randn(2, 4, 8, 8)
    traced = make_fx(run)(x.clone())
    assert not with_channels_last(traced)
    for found, wanted in zip(traced(x.clone()), run(x.clone()), strict=True):
        torch.testing.assert_close(found, wanted)


def test_what_is_read_by_strides_lies_as_it_did_where_its_layout_follows_a_convolution():
    def run(x):
        y = torch.conv2d(x, KERNEL).relu()
        return [y.as_strided((2, 4), (1, 36)), y[:, 1:].as_strided((2, 3), (144, 36), 36)]

    x = torch.randn(2, 4, 8, 8)
    traced = make_fx(run)(x)
    assert with_channels_last(traced)
    for found, wanted in zip(traced(x), run(x), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("keep_bytes", [0, 1 << 30])
def test_norms_of_depthwise_convolutions_stay_as_they_are(keep_bytes):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(8 * 64, 2)
    model = nn.Sequential(*layers).double()
    engine = BookKeeping(model, lambda model, x: model(x).square().sum(1), keep_bytes=keep_bytes)

    def norms(x):
        return [engine.run((x,)).squared_norms([[name]]) for name, _ in model.named_parameters()]

    x, other = (torch.randn(2, 3, 12, 12, dtype=torch.float64) for _ in range(2))
    traced = make_fx(norms)(x)
    assert with_channels_last(traced)
    with torch.no_grad():
        found = traced(other)
    for norm, wanted in zip(found, norms(other), strict=True):
        torch.testing.assert_close(norm, wanted)
