# SPDX-License-Identifier: Apache-2.0
"""The network for images: any size, and the same weights from the same seed."""

import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.image_networks import convolutional


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (1, 1, 1), (2, 3, 5)])
def test_images_of_any_size_get_a_logit_for_each_class(shape):
    assert convolutional(shape, 4)(torch.rand(2, *shape)).shape == (2, 4)


def test_a_seed_gives_the_weights_and_leaves_global_state():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, other = (convolutional((1, 8, 8), 2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first[0].weight, second[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


def test_sizes_are_checked():
    with pytest.raises(InvalidParameterError, match="classes"):
        convolutional((1, 8, 8), 0)
