# SPDX-License-Identifier: Apache-2.0
"""Features of images from a frozen network, computed once and kept on disk.

The name of a cache file is a hash of the weights, the images and the size: features are never returned for
other images or other weights. The features of private images are as private as the images: store the cache
where the images may be stored.

Guarantee  One row depends on one image and on public weights only, so a private model trained on features has
           the same guarantee as one trained on images.
"""

import hashlib
import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sfumato import _check
from sfumato.datasets.efficientnet import EfficientNetLite0
from sfumato.datasets.places import cache_folder, keep
from sfumato.errors import InvalidParameterError

__all__ = ["features"]

_VERSION = b"sfumato features 1"  # change it when the same inputs would give other features


def features(model: EfficientNetLite0, images: Tensor, *, batch_size: int = 16, resize: int = 160) -> Tensor:
    """Return the features of images from a frozen network; they are kept in the cache.

    Args:
        model: The network.
        images: Bytes, [N, 3, H, W].
        batch_size: How many images are computed at once.
        resize: The height and width in pixels that images are enlarged to.

    Returns:
        Float32 features, [N, 1280].

    Raises:
        InvalidParameterError: If the images have another shape or type.

    >>> features(EfficientNetLite0(), torch.zeros(2, 3, 32, 32))
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: images must be bytes (torch.uint8) in [N, 3, H, W], but...
    """
    _check.count(batch_size=batch_size, resize=resize)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise InvalidParameterError(
            f"images must be bytes (torch.uint8) in [N, 3, H, W], but {images.dtype} in "
            f"{list(images.shape)} was given. For a loaded set, use "
            "data.normalization.pixels(data.train.features)."
        )
    path = cache_folder() / "features" / f"{_key(model, images, resize)}.npy"
    kept = _kept(path, len(images))
    if kept is not None:
        return kept
    computed = _compute(model, images, batch_size, resize)
    buffer = io.BytesIO()
    np.save(buffer, computed.numpy())
    keep(path, buffer.getvalue())
    return computed


def _compute(model: EfficientNetLite0, images: Tensor, batch_size: int, resize: int) -> Tensor:
    device = next(model.parameters()).device
    with torch.inference_mode():
        parts = [
            model(model.prepare(part.to(device), resize=resize)).cpu() for part in images.split(batch_size)
        ]
    return torch.cat(parts)  # outside inference mode: what comes back may be trained on


def _kept(path: Path, rows: int) -> Tensor | None:
    """Return the features kept before; a file that is no longer whole counts as absent."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return torch.from_numpy(array) if len(array) == rows else None


def _key(model: EfficientNetLite0, images: Tensor, resize: int) -> str:
    digest = hashlib.sha256(_VERSION)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    digest.update(f"{resize} {list(images.shape)}".encode())
    digest.update(images.cpu().contiguous().numpy().data)
    return digest.hexdigest()
