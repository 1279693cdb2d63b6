# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F

from sfumato.training.engine.rules.correlation import Correlation

SHAPES = [  # size, kernel, stride, dilation, padding, groups
    ((7,), (3,), (1,), (1,), (1,), 1),
    ((8, 9), (3, 2), (1, 1), (1, 1), (1, 0), 1),
    ((9, 8), (2, 2), (2, 2), (1, 1), (0, 0), 2),
    ((10, 7), (3, 3), (2, 1), (1, 2), (1, 2), 1),
    ((5, 4, 6), (2, 1, 3), (1, 2, 1), (1, 1, 1), (0, 0, 1), 1),
]
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def case(size, kernel, stride, dilation, padding, groups):
    """Return a correlation, images, output gradients, and the weight gradient of each image by autograd."""
    torch.manual_seed(0)
    image = torch.randn(4, 4, *size, dtype=torch.float64)
    weight = torch.zeros(6, 4 // groups, *kernel, dtype=torch.float64, requires_grad=True)
    convolve = CONVOLUTIONS[len(size)]
    options = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
    output = convolve(image, weight, **options)
    given = torch.randn_like(output)
    each = []
    for i in range(len(image)):
        loss = (convolve(image[i : i + 1], weight, **options) * given[i : i + 1]).sum()
        each.append(torch.autograd.grad(loss, weight)[0])
    correlation = Correlation(kernel=kernel, stride=stride, dilation=dilation, before=padding, groups=groups)
    return correlation, image, given, torch.stack(each)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_of_each_image_is_that_of_autograd(shape):
    correlation, image, given, each = case(*shape)
    found = correlation.arranged(correlation.gradients(image, given), each.shape[1:])
    assert torch.allclose(found, each, atol=1e-10)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[-1] == 1], ids=str)
@pytest.mark.parametrize("per_unit", [1, 2])
def test_ghost_norms_are_those_of_the_gradients(shape, per_unit):
    correlation, image, given, each = case(*shape)
    wanted = each.unflatten(0, (-1, per_unit)).sum(1).flatten(1).pow(2).sum(1)
    assert torch.allclose(correlation.ghost_norms(image, given, per_unit), wanted, rtol=1e-8)


def test_the_cheaper_way_depends_on_channels_and_places():
    correlation = Correlation(kernel=(3, 3), stride=(1, 1), dilation=(1, 1), before=(1, 1))
    small, large = torch.zeros(1, 512, 2, 2), torch.zeros(1, 2, 64, 64)
    assert correlation.ghost_cost(small, small, 1) < correlation.gradient_cost(small, small)
    assert correlation.ghost_cost(large, large, 1) > correlation.gradient_cost(large, large)
