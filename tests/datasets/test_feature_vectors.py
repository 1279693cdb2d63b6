# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch

from sfumato.datasets import EfficientNetLite0, features
from sfumato.errors import InvalidParameterError

SIDE = 32


class Counting(EfficientNetLite0):
    """Counts how often it is asked."""

    calls = 0

    def forward(self, images):
        Counting.calls += 1
        return super().forward(images)


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(Counting, "calls", 0)
    return Counting()


@pytest.fixture
def images():
    return torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "features").glob("*"))


def test_features_are_the_network_s_answer_image_by_image(model, images):
    found = features(model, images, batch_size=2, resize=SIDE)
    alone = torch.cat([model(model.prepare(image[None], resize=SIDE)) for image in images])
    assert found.shape == (5, 1280) and found.dtype == torch.float32
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)


def test_features_are_computed_once_and_then_read_from_the_cache(model, images, cache):
    first = features(model, images, batch_size=2, resize=SIDE)
    assert Counting.calls == 3 and len(kept(cache)) == 1
    assert features(model, images, batch_size=4, resize=SIDE).equal(first)
    assert Counting.calls == 3


def test_other_images_weights_or_sizes_are_computed_afresh(model, images, cache):
    features(model, images, resize=SIDE)
    other = images.clone()
    other[4, 2, 7, 7] += 1
    features(model, other, resize=SIDE)
    features(model, images, resize=SIDE + 8)
    with torch.no_grad():
        model.stem.bias[0] += 1
    features(model, images, resize=SIDE)
    features(model, images.view(5, 3, 4, 16), resize=SIDE)  # the same bytes in another shape
    assert len(kept(cache)) == 5


def test_a_damaged_file_in_the_cache_counts_as_absent(model, images, cache):
    first = features(model, images, resize=SIDE)
    kept(cache)[0].write_bytes(kept(cache)[0].read_bytes()[:1000])
    assert features(model, images, resize=SIDE).equal(first)
    kept(cache)[0].write_bytes(b"")
    assert features(model, images, resize=SIDE).equal(first)


def test_a_cache_that_cannot_be_written_is_done_without(model, images, unwritable_cache):
    assert features(model, images, resize=SIDE).shape == (5, 1280)


def test_features_can_be_trained_on(model, images):
    layer = torch.nn.Linear(1280, 2)
    layer(features(model, images, resize=SIDE)).sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("shape", [(5, 8, 8), (5, 1, 8, 8)])
def test_images_must_be_bytes_in_color(model, shape):
    with pytest.raises(InvalidParameterError, match="images must be bytes"):
        features(model, torch.zeros(shape, dtype=torch.uint8))
    with pytest.raises(InvalidParameterError, match=r"data.normalization.pixels"):
        features(model, torch.zeros(5, 3, 8, 8))
    with pytest.raises(InvalidParameterError, match="resize"):
        features(model, torch.zeros(5, 3, 8, 8, dtype=torch.uint8), resize=0)
