# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.networks import ARCHITECTURES, NetworkSampler, discriminator_for


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("shape", "classes"), [((1, 8, 8), 3), ((3, 12, 4), 1)])
def test_images_go_out_and_numbers_come_back(architecture, shape, classes):
    sampler = NetworkSampler(architecture=architecture, shape=list(shape), classes=classes, width=4)
    labels = torch.arange(6) % classes
    images = sampler.sample(labels, torch.Generator().manual_seed(0))
    assert images.shape == (6, *shape) and bool(((images >= 0) & (images <= 1)).all())
    discriminator = discriminator_for(architecture, shape=shape, classes=classes, width=4)
    assert discriminator(images, labels).shape == (6,)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_discriminator_keeps_rows_apart_and_looks_at_the_class(architecture):
    torch.manual_seed(0)
    model = discriminator_for(architecture, shape=(1, 8, 8), classes=3, width=4)
    images, labels = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    together = model(images, labels)
    for i in range(4):
        assert torch.allclose(together[i], model(images[i : i + 1], labels[i : i + 1])[0], atol=1e-5)
    assert not torch.allclose(together, model(images, (labels + 1) % 3))


def test_what_there_is_not_is_told():
    with pytest.raises(InvalidParameterError, match="unknown architecture"):
        discriminator_for("tree", shape=(1, 8, 8), classes=2, width=4)
    with pytest.raises(InvalidParameterError, match="multiples of 4"):
        NetworkSampler(architecture="convolutional", shape=[1, 9, 8], classes=2)
    NetworkSampler(architecture="dense", shape=[1, 9, 7], classes=2)
