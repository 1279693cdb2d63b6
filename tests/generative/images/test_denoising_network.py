# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.generative.images.denoising_network import DenoisingNetwork


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 20)])
def test_it_begins_by_predicting_nothing_and_keeps_the_shape(shape):
    network = DenoisingNetwork(channels=shape[0], classes=4, width=8)
    found = network(torch.randn(5, *shape), torch.zeros(5), torch.arange(5) % 4)
    assert found.shape == (5, *shape) and float(found.detach().abs().max()) == 0


def test_rows_do_not_mix():
    torch.manual_seed(0)
    network = DenoisingNetwork(channels=1, classes=2, width=8)
    torch.nn.init.normal_(network.last.weight)
    x, level, labels = torch.randn(4, 1, 8, 8), torch.randn(4), torch.tensor([0, 1, 0, 1])
    together = network(x, level, labels)
    for i in range(4):
        alone = network(x[i : i + 1], level[i : i + 1], labels[i : i + 1])
        assert torch.allclose(together[i], alone[0], atol=1e-5)


def test_sizes_that_do_not_fit_are_told():
    with pytest.raises(InvalidParameterError, match="multiples of 4"):
        DenoisingNetwork.require((1, 10, 8))
    with pytest.raises(InvalidParameterError, match="not both 4"):
        DenoisingNetwork.require((1, 4, 4))
    DenoisingNetwork(channels=1, classes=2, width=8)(
        torch.zeros(1, 1, 4, 8), torch.zeros(1), torch.tensor([0])
    )
    DenoisingNetwork.require((1, 28, 28))
