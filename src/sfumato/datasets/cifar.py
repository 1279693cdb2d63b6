# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10: 32 x 32 color photographs in ten classes.

The split is the published one: five batches of 10,000 for training, one for testing, in the published order.

Two forms are read: the authors' binary files (each record is a label and 3 x 32 x 32 bytes), alone or inside
their archive, and a compact form (`.bin.xz`) that is decoded once and then kept in the cache as the authors'
file. In every form, the decoded batch has the checksum of the authors' file.
"""

import lzma
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato.datasets.dataset import Dataset, Examples, Normalization
from sfumato.datasets.files import Content, Form, member_of_tar, read
from sfumato.datasets.places import Folder

__all__ = ["BATCHES", "cifar10", "decode_compact", "read_batch"]

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_ARCHIVE = "cifar10/cifar-10-binary.tar.gz"
_ARCHIVE_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"


def decode_compact(path: Path) -> bytes:
    """Undo the compact form: planes R-G, G, B-G, each differenced along both axes, modulo 256.

    The file is xz over all labels followed by [3, N, 32, 32] bytes; what comes out are the authors' records.
    """
    data = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8)
    count = len(data) // (_PIXELS + 1)
    planes = data[count:].reshape(3, count, _SIDE, _SIDE)
    planes = planes.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)  # sums wrap around, as they should
    planes[0] += planes[1]
    planes[2] += planes[1]
    pixels = planes.transpose(1, 0, 2, 3).reshape(count, _PIXELS)
    return np.concatenate([data[:count, None], pixels], axis=1).tobytes()


def _batch(name: str, sha256: str, compact_sha256: str) -> Content:
    return Content(
        path=f"cifar10/{name}.bin",
        sha256=sha256,
        forms=(
            Form(path=f"cifar10/{name}.bin.xz", sha256=compact_sha256, decode=decode_compact),
            Form(
                path=_ARCHIVE,
                sha256=_ARCHIVE_SHA256,
                urls=(_ARCHIVE_URL,),
                decode=member_of_tar(f"cifar-10-batches-bin/{name}.bin"),
            ),
        ),
    )


BATCHES = {
    name: _batch(name, sha256, compact_sha256)
    for name, sha256, compact_sha256 in (
        (
            "data_batch_1",
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "c63131c743f184a07b9d5d1921da63728eaa019ced1793bda0a237b20e008360",
        ),
        (
            "data_batch_2",
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "52379f938bae6743d2fa9a757a05522bd28e35227a67661242bd804df0f851ba",
        ),
        (
            "data_batch_3",
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "732d5a5f8fc14c6b04139b7e6b6b9e8b4da6e436a55c97cd7d3b8742eec0de5f",
        ),
        (
            "data_batch_4",
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "487de458520c50632985c4d316bb1dd864ac1f0f1bab49d30e536cf369b5ccc5",
        ),
        (
            "data_batch_5",
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "a6167419703c3d5dc4956cbd6208f5dc1aff331887f1be5dab58877882b8943a",
        ),
        (
            "test_batch",
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            "8c1eff3dff3961dfa18ac47c9ef203a80f5a8ffde13341282eafec06500c9b22",
        ),
    )
}


def cifar10(*, folder: Folder = None) -> Dataset:
    """Load CIFAR-10: small photographs of animals and vehicles."""
    normalization = Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
    names = [name for name in BATCHES if name != "test_batch"]
    return Dataset(
        name="cifar10",
        train=_examples(names, normalization, folder),
        test=_examples(["test_batch"], normalization, folder),
        classes=_CLASSES,
        bounds=normalization.bounds,
        source="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        license="none stated by its authors; cite the technical report",
        normalization=normalization,
    )


def _examples(names: list[str], normalization: Normalization, folder: Folder) -> Examples:
    batches = [read_batch(name, folder=folder) for name in names]
    features = torch.cat([normalization.apply(pixels) for pixels, _ in batches])
    return Examples(features, torch.cat([labels for _, labels in batches]))


def read_batch(name: str, *, folder: Folder = None) -> tuple[Tensor, Tensor]:
    """Return one batch: images as bytes in [N, 3, 32, 32], and labels."""
    records = _records(read(BATCHES[name], folder=folder))
    pixels = torch.from_numpy(records[:, 1:].copy()).view(-1, 3, _SIDE, _SIDE)
    return pixels, torch.from_numpy(records[:, 0].astype(np.int64))


def _records(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8).reshape(-1, _PIXELS + 1)
