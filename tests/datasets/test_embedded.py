# SPDX-License-Identifier: Apache-2.0
import re

import torch
from sklearn.datasets import load_breast_cancer, load_digits

from sfumato.datasets import load
from sfumato.datasets.embedded import BREAST_CANCER_COLUMNS


def test_digits_are_split_alike_in_every_class():
    data = load("digits")
    train, test = data.train.labels.bincount(), data.test.labels.bincount()
    assert (int(train.sum()), int(test.sum())) == (1_437, 360)
    assert ((train + test) / 5 - test).abs().max() < 1


def test_digits_are_the_published_images():
    data = load("digits")
    together = torch.cat([data.train.features, data.test.features]).mul(16).to(torch.int64).flatten(1)
    published = torch.from_numpy(load_digits().data).to(torch.int64)
    assert sorted(together.tolist()) == sorted(published.tolist())
    assert data.train.features.shape[1:] == (1, 8, 8)
    assert data.train.features.min() == 0 and data.train.features.max() == 1


def test_images_and_labels_stay_together():
    data = load("digits")
    of_image = {
        tuple(i): label for i, label in zip(load_digits().data.tolist(), load_digits().target, strict=True)
    }
    images = data.test.features.mul(16).flatten(1).tolist()
    assert [of_image[tuple(image)] for image in images] == data.test.labels.tolist()


def test_the_split_takes_every_fifth_row_in_order_of_class():
    labels = load_digits().target.tolist()
    chosen = sorted(sorted(range(len(labels)), key=lambda i: (labels[i], i))[::5])
    images = torch.from_numpy(load_digits().data[chosen]).to(torch.float32).div(16)
    assert load("digits").test.features.flatten(1).equal(images)


def test_breast_cancer_has_its_classes():
    data = load("breast-cancer")
    assert (data.train.labels.bincount() + data.test.labels.bincount()).tolist() == [212, 357]
    assert data.classes == ("malignant", "benign") and data.train.features.shape == (455, 30)


def test_the_declared_ranges_hold_the_published_ones_and_every_value():
    published = re.findall(r"^(.+\)): +([\d.]+) +([\d.]+)$", load_breast_cancer().DESCR, flags=re.MULTILINE)
    assert [c.name for c in BREAST_CANCER_COLUMNS] == [name for name, _, _ in published]
    for column, (_, low, high), values in zip(
        BREAST_CANCER_COLUMNS, published, load_breast_cancer().data.T, strict=True
    ):
        assert column.lower <= float(low) and float(high) <= column.upper
        assert column.lower <= values.min() and values.max() <= column.upper
        assert (
            len(f"{column.upper:g}".strip("0.").replace(".", "")) <= 2
        )  # a round number, not a measured one
