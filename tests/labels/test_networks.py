# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.labels.networks import nearly_even_network, published_cnn, small_network, tiny_cnn


def test_the_published_network_has_the_published_layers_and_unit_variance():
    torch.manual_seed(0)
    model = published_cnn((1, 28, 28), 10)
    assert [type(layer).__name__ for layer in model] == (
        ["Conv2d", "ReLU", "AvgPool2d"] * 2 + ["Flatten", "Linear", "ReLU", "Linear"]
    )
    assert [p.shape[0] for p in model.parameters()] == [16] * 6 + [10] * 2
    dense = model[7].weight
    assert float(dense.detach().std()) * dense.shape[1] ** 0.5 == pytest.approx(1, abs=0.05)
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))
    for shape in ((3, 32, 32), (1, 12, 12)):
        assert published_cnn(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


def test_the_small_network_takes_images_of_any_channels_and_size():
    for shape in ((1, 28, 28), (3, 32, 32), (1, 12, 12)):
        assert tiny_cnn(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("make", [small_network, nearly_even_network])
@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 8, 8), (3, 12, 12), (1, 28, 28)])
def test_features_of_any_shape_have_a_network(make, shape):
    model = make(shape, 5)
    assert model(torch.randn(3, *shape)).shape == (3, 5)
    convolves = any(isinstance(layer, torch.nn.Conv2d) for layer in model)
    assert convolves == (len(shape) == 3 and min(shape[1:]) >= 12)


def test_first_predictions_are_nearly_even_where_that_is_the_purpose():
    torch.manual_seed(0)
    x = torch.randn(200, 30)
    spread = {make: float(make((30,), 4)(x).detach().std()) for make in (small_network, nearly_even_network)}
    assert spread[nearly_even_network] < 0.2 < spread[small_network]
