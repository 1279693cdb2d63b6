# SPDX-License-Identifier: Apache-2.0
import gzip
import hashlib
import struct

import pytest
import torch

from sfumato.datasets import idx, load
from sfumato.datasets.errors import DataCorruptError
from sfumato.datasets.files import Content

# As torchvision 0.20 lists them for the same files.
MD5 = {
    "mnist/train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "mnist/train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "mnist/t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "mnist/t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    "fashion_mnist/train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "fashion_mnist/train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "fashion_mnist/t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "fashion_mnist/t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


def images(count: int) -> bytes:
    pixels = bytes((row + 3 * i) % 256 for i in range(count) for row in range(28 * 28))
    return gzip.compress(struct.pack(">BBBBiii", 0, 0, 8, 3, count, 28, 28) + pixels)


def labels(values: bytes) -> bytes:
    return gzip.compress(struct.pack(">BBBBi", 0, 0, 8, 1, len(values)) + values)


@pytest.fixture
def tiny(server, monkeypatch):
    """Offer a tiny MNIST on a server, with its checksums."""
    parts = [images(3), labels(b"\x07\x00\x09"), images(1), labels(b"\x05")]
    contents = []
    for content, data in zip(idx.MNIST_FILES, parts, strict=True):
        url = server.offer(content.path.rpartition("/")[2], data)
        contents.append(Content(path=content.path, sha256=hashlib.sha256(data).hexdigest(), urls=(url,)))
    monkeypatch.setattr(idx, "MNIST_FILES", tuple(contents))
    return server


def test_a_downloaded_set_is_parsed_and_normalized(tiny):
    data = load("mnist")
    assert data.train.features.shape == (3, 1, 28, 28) and data.test.features.shape == (1, 1, 28, 28)
    assert data.train.labels.tolist() == [7, 0, 9] and data.train.labels.dtype == torch.int64
    assert data.train.features[1, 0, 0, 5].item() == pytest.approx((8 / 255 - 0.1307) / 0.3081, abs=1e-6)
    load("mnist")
    assert len(tiny.requests) == 4


def test_one_wrong_file_of_four_is_an_error(tiny):
    tiny.offer("t10k-labels-idx1-ubyte.gz", labels(b"\x06"))
    with pytest.raises(DataCorruptError):
        load("mnist")


def test_the_published_files_have_the_published_md5(real):
    for path, md5 in MD5.items():
        assert hashlib.md5((real / path).read_bytes()).hexdigest() == md5, path
    assert {c.path for c in (*idx.MNIST_FILES, *idx.FASHION_FILES)} == set(MD5)


def test_mnist_is_what_its_authors_published(real):
    data = load("mnist", folder=real)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.public_size == 60_000 and len(data.test) == 10_000
    assert data.train.labels.bincount().tolist() == counts
    assert abs(data.train.features.mean()) < 1e-3 and abs(data.train.features.std() - 1) < 1e-3


def test_fashion_mnist_is_what_its_authors_published(real):
    data = load("fashion-mnist", folder=real)
    assert data.train.labels.bincount().tolist() == [6_000] * 10
    assert data.test.labels.bincount().tolist() == [1_000] * 10
    assert abs(data.train.features.mean()) < 1e-3 and abs(data.train.features.std() - 1) < 1e-3
