# SPDX-License-Identifier: Apache-2.0
"""MNIST and Fashion-MNIST: 28 x 28 grey images in ten classes, in the idx format of MNIST's authors.

The split is the published one: 60,000 for training, 10,000 for testing, in the published order.

Mean and standard deviation of the pixels are the constants that everyone uses for these sets.
"""

import gzip

import numpy as np
import numpy.typing as npt
import torch

from sfumato.datasets.dataset import Dataset, Examples, Normalization
from sfumato.datasets.files import Content, read
from sfumato.datasets.places import Folder

__all__ = ["fashion_mnist", "mnist", "parse_idx"]

_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)  # the authors'; no https there

_MNIST_CLASSES = tuple("0123456789")
_FASHION_CLASSES = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


def _contents(folder: str, mirrors: tuple[str, ...], sums: tuple[str, ...]) -> tuple[Content, ...]:
    names = [f"{part}-ubyte.gz" for part in _PARTS]
    return tuple(
        Content(path=f"{folder}/{name}", sha256=sha256, urls=tuple(mirror + name for mirror in mirrors))
        for name, sha256 in zip(names, sums, strict=True)
    )


# SHA-256 of the files whose MD5s torchvision lists; in the order of _PARTS.
MNIST_FILES = _contents(
    "mnist",
    _MNIST_MIRRORS,
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
FASHION_FILES = _contents(
    "fashion_mnist",
    _FASHION_MIRRORS,
    (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)


def mnist(*, folder: Folder = None) -> Dataset:
    """Load MNIST: handwritten digits."""
    normalization = Normalization(mean=(0.1307,), std=(0.3081,))
    train, test = _splits(MNIST_FILES, normalization, folder)
    return Dataset(
        name="mnist",
        train=train,
        test=test,
        classes=_MNIST_CLASSES,
        bounds=normalization.bounds,
        source="Y. LeCun, C. Cortes and C. Burges, The MNIST database of handwritten digits, 1998",
        license="CC BY-SA 3.0",
        normalization=normalization,
    )


def fashion_mnist(*, folder: Folder = None) -> Dataset:
    """Load Fashion-MNIST: articles of clothing, a drop-in for MNIST that is harder."""
    normalization = Normalization(mean=(0.2860,), std=(0.3530,))
    train, test = _splits(FASHION_FILES, normalization, folder)
    return Dataset(
        name="fashion-mnist",
        train=train,
        test=test,
        classes=_FASHION_CLASSES,
        bounds=normalization.bounds,
        source="H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, 2017, arXiv:1708.07747",
        license="MIT",
        normalization=normalization,
    )


def _splits(
    contents: tuple[Content, ...], normalization: Normalization, folder: Folder
) -> tuple[Examples, Examples]:
    arrays = [parse_idx(gzip.decompress(read(content, folder=folder))) for content in contents]
    return _examples(arrays[0], arrays[1], normalization), _examples(arrays[2], arrays[3], normalization)


def _examples(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8], normalization: Normalization
) -> Examples:
    pixels = torch.from_numpy(images).unsqueeze(1)  # [N, 1, 28, 28]
    return Examples(normalization.apply(pixels), torch.from_numpy(labels).to(torch.int64))


def parse_idx(data: bytes) -> npt.NDArray[np.uint8]:
    """Read an idx file of bytes: two zeros, the type 8, the number of axes, their lengths, the values.

    >>> parse_idx(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9]))
    array([[7, 8, 9]], dtype=uint8)
    """
    axes = data[3]
    shape = np.frombuffer(data, dtype=">i4", count=axes, offset=4)
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * axes).reshape(tuple(shape)).copy()
