# SPDX-License-Identifier: Apache-2.0
import hashlib
import io
import lzma
import random
import tarfile

import pytest
import torch

from sfumato.datasets import cifar, load
from sfumato.datasets.cifar import decode_compact, read_batch
from sfumato.datasets.errors import DataCorruptError
from sfumato.datasets.files import Content, Form, member_of_tar

# Of the authors' binary files and of their archive, as the set's web page and public loaders list them.
TEST_BATCH_MD5 = "803d5f7f4d78ea53de84dbe85f74fb6d"


def records(count: int, seed: int) -> bytes:
    """Make records as the authors define them: a label, then red, green and blue, row by row."""
    draw = random.Random(seed)
    return b"".join(bytes([i % 10]) + draw.randbytes(3072) for i in range(count))


def compact(data: bytes) -> bytes:
    """Make the compact form of some records, one byte at a time: slow and obvious."""
    images = [data[i + 1 : i + 3073] for i in range(0, len(data), 3073)]
    labels = data[::3073]
    planes = b""
    for channel in range(3):
        for image in images:
            for row in range(32):
                for column in range(32):
                    planes += bytes([difference(image, channel, row, column)])
    return lzma.compress(labels + planes)


def difference(image: bytes, channel: int, row: int, column: int) -> int:
    def value(row: int, column: int) -> int:
        if row < 0 or column < 0:
            return 0
        at = 32 * row + column
        green = image[1024 + at]
        return green if channel == 1 else image[1024 * channel + at] - green

    here = value(row, column) - value(row - 1, column) - value(row, column - 1) + value(row - 1, column - 1)
    return here % 256


def test_the_compact_form_is_undone_exactly(tmp_path):
    data = records(3, seed=1)
    (tmp_path / "batch.bin.xz").write_bytes(compact(data))
    assert decode_compact(tmp_path / "batch.bin.xz") == data


def archive_of(batches: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in batches.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def tiny(server, monkeypatch):
    """Offer a tiny CIFAR-10 on a server, as the authors' archive."""
    batches = {name: records(2, seed) for seed, name in enumerate(cifar.BATCHES)}
    archive = archive_of(batches)
    url = server.offer("cifar-10-binary.tar.gz", archive)
    sha256 = hashlib.sha256(archive).hexdigest()
    for name, data in batches.items():
        decode = member_of_tar(f"cifar-10-batches-bin/{name}.bin")
        form = Form(path="cifar10/cifar-10-binary.tar.gz", sha256=sha256, urls=(url,), decode=decode)
        content = Content(path=f"cifar10/{name}.bin", sha256=hashlib.sha256(data).hexdigest(), forms=(form,))
        monkeypatch.setitem(cifar.BATCHES, name, content)
    return batches, server


def test_the_authors_archive_is_downloaded_once_and_read(tiny, cache):
    batches, server = tiny
    data = load("cifar10")
    assert data.train.features.shape == (10, 3, 32, 32) and data.test.features.shape == (2, 3, 32, 32)
    pixels = data.normalization.pixels(data.train.features)
    assert bytes(pixels[3].flatten().tolist()) == batches["data_batch_2"][3074:]
    assert data.train.labels.tolist() == [0, 1] * 5
    assert server.requests == ["/cifar-10-binary.tar.gz"]
    assert (cache / "cifar10" / "test_batch.bin").read_bytes() == batches["test_batch"]


@pytest.mark.usefixtures("tiny")
def test_an_archive_with_another_batch_is_an_error(monkeypatch):
    content = cifar.BATCHES["data_batch_3"]
    other = Content(path=content.path, sha256="0" * 64, forms=content.forms)
    monkeypatch.setitem(cifar.BATCHES, "data_batch_3", other)
    with pytest.raises(DataCorruptError):
        load("cifar10")


def test_the_test_batch_decodes_to_the_authors_file(real, cache):
    pixels, labels = read_batch("test_batch", folder=real)
    assert pixels.shape == (10_000, 3, 32, 32) and pixels.dtype == torch.uint8
    assert labels.bincount().tolist() == [1_000] * 10
    kept = (cache / "cifar10" / "test_batch.bin").read_bytes()
    assert hashlib.md5(kept).hexdigest() == TEST_BATCH_MD5


@pytest.mark.slow
def test_cifar10_is_what_its_authors_published(real):
    data = load("cifar10", folder=real)
    assert data.public_size == 50_000
    assert data.train.labels.bincount().tolist() == [5_000] * 10
    assert data.train.features.mean((0, 2, 3)).abs().max() < 1e-3
    assert (data.train.features.std((0, 2, 3)) - 1).abs().max() < 1e-3
