# SPDX-License-Identifier: Apache-2.0
"""Private images: shapes and public numbers are checked, values never raise."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

from sfumato.datasets import Examples, Normalization, load
from sfumato.errors import InvalidParameterError
from sfumato.generative.images.image_rows import ImageRows, public_images
from sfumato.generative.images.image_rows import holdout_images as held_out

PUBLIC = {"classes": 2, "public_size": 4, "conditional": True}


def test_a_data_set_states_what_is_public():
    data = load("digits")
    rows = ImageRows.of(data, classes=None, public_size=None, conditional=True)
    assert rows.shape == (1, 8, 8) and rows.classes == 10 and rows.public_size == data.public_size
    assert torch.equal(rows.images, data.train.features) and torch.equal(rows.labels, data.train.labels)


def test_a_data_set_that_was_normalized_gives_its_pixels():
    scale, pixels = (
        Normalization(mean=(0.13,), std=(0.3,)),
        torch.arange(256, dtype=torch.uint8).view(-1, 1, 4, 4),
    )
    examples = Examples(scale.apply(pixels), torch.arange(16) % 10)
    data = replace(load("digits"), train=examples, test=examples, normalization=scale)
    rows = ImageRows.of(data, classes=None, public_size=None, conditional=True)
    assert torch.equal(rows.images, pixels.float() / 255)
    images, labels = held_out(data)
    assert torch.equal(images, rows.images) and torch.equal(labels, examples.labels)


def test_bytes_are_scaled_and_an_axis_of_channels_is_added():
    images = np.full((4, 2, 3), 255, dtype=np.uint8)
    rows = ImageRows.of((images, [0, 1, 0, 1]), **PUBLIC)
    assert rows.shape == (1, 2, 3) and bool((rows.images == 1).all())


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 1e30, -5.0])
def test_a_pixel_that_is_no_number_changes_its_own_image_only(poison):
    images = torch.full((4, 1, 2, 2), 0.5)
    images[1, 0, 0, 0] = poison
    found = ImageRows.of((images, torch.tensor([0, 1, 0, 1])), **PUBLIC).images
    assert bool(((found >= 0) & (found <= 1)).all())
    assert bool((found[[0, 2, 3]] == 0.5).all()) and len(found) == 4


@pytest.mark.parametrize("label", [-1, 2, 99, float("nan"), 0.5, float("inf")])
def test_an_image_whose_label_is_no_class_is_left_out(label):
    labels = torch.tensor([0, 1, 0, label], dtype=torch.float64)
    rows = ImageRows.of((torch.zeros(4, 1, 2, 2), labels), **PUBLIC)
    assert rows.labels.tolist() == [0, 1, 0] and len(rows.images) == 3


def test_each_image_of_a_list_is_scaled_by_its_own_type():
    """One float among bytes must not change how the others are read."""
    bright = np.full((2, 2), 255, dtype=np.uint8)
    images = [bright, bright, np.full((2, 2), 0.5, dtype=np.float32)]
    rows = ImageRows.of((images, [0, 1, 0]), **PUBLIC)
    assert rows.images.mean((1, 2, 3)).tolist() == [1.0, 1.0, 0.5]


@pytest.mark.parametrize("label", [None, 2**70, "x", [], float("nan"), -1])
def test_a_label_of_any_kind_in_a_list_leaves_its_own_image_out(label):
    rows = ImageRows.of((torch.zeros(3, 1, 2, 2), [1, label, 0]), **PUBLIC)
    assert rows.labels.tolist() == [1, 0]


@pytest.mark.parametrize("label", [None, "x", float("nan"), 2 + 1j, 7])
@pytest.mark.parametrize("column", [np.array, pd.Series, lambda labels: np.array(labels, dtype=object)])
def test_a_label_that_changes_the_type_of_a_column_leaves_its_own_image_out(column, label, recwarn):
    rows = ImageRows.of((torch.zeros(3, 1, 2, 2), column([1, label, 0])), **PUBLIC)
    assert rows.labels.tolist() == [1, 0] and not recwarn.list


def test_a_column_of_whole_numbers_may_lack_one():
    rows = ImageRows.of((torch.zeros(3, 1, 2, 2), pd.Series([1, None, 0], dtype="Int64")), **PUBLIC)
    assert rows.labels.tolist() == [1, 0]


@pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray, lambda image: np.asarray(image).tolist()])
def test_the_number_of_images_does_not_decide_what_a_list_is(kind):
    """Two images are images too, and not images and labels."""
    for count in (1, 2, 3):
        images = [kind(torch.full((4, 4), 0.5)) for _ in range(count)]
        rows = ImageRows.of(images, classes=None, public_size=3, conditional=False)
        assert rows.images.shape == (count, 1, 4, 4)


def test_images_of_users_are_refused():
    owned = Examples(torch.zeros(4, 1, 2, 2), torch.arange(4) % 2, user_ids=torch.zeros(4, dtype=torch.int64))
    with pytest.raises(InvalidParameterError, match="users"):
        ImageRows.of(owned, **PUBLIC)


def test_without_classes_labels_are_not_looked_at():
    rows = ImageRows.of(torch.zeros(3, 1, 2, 2), classes=None, public_size=3, conditional=False)
    assert rows.classes == 1 and rows.labels.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("data", "changed", "said"),
    [
        ([torch.zeros(2, 2), torch.zeros(3, 2), torch.zeros(2, 2)], {}, "one shape"),
        (torch.zeros(4, 1, 2, 2), {}, "needs a label"),
        ((torch.zeros(4, 1, 2, 2), [0, 1]), {}, "one class number for each"),
        ((torch.zeros(4, 1, 2, 2), np.zeros((4, 2), dtype=object)), {}, "one class number for each"),
        ((torch.zeros(2, 2),) * 3, {}, "a tuple is images and labels"),
        ((torch.zeros(4, 2), [0, 1, 0, 1]), {}, "have the shape"),
        ((torch.zeros(4, 1, 2, 2), [0, 1, 0, 1]), {"classes": None}, "pass classes"),
        ((torch.zeros(4, 1, 2, 2), [0, 1, 0, 1]), {"public_size": None}, "pass public_size"),
        ((torch.zeros(4, 1, 2, 2), [0, 1, 0, 1]), {"public_size": 0}, "public_size"),
    ],
)
def test_wrong_shapes_and_missing_public_numbers_are_told(data, changed, said):
    with pytest.raises(InvalidParameterError, match=said):
        ImageRows.of(data, **{**PUBLIC, **changed})


def test_public_images_have_the_private_shape():
    rows = ImageRows.of((torch.zeros(4, 1, 4, 4), [0, 1, 0, 1]), **PUBLIC)
    images, labels = public_images(torch.ones(3, 1, 4, 4), rows)
    assert bool((images == 1).all()) and labels.tolist() == [0, 1, 0]
    assert public_images(None, rows) is None
    for wrong in (torch.ones(3, 1, 5, 5), torch.ones(0, 1, 4, 4)):
        with pytest.raises(InvalidParameterError, match="public images"):
            public_images(wrong, rows)


NO_PIXELS = [
    None,
    "a",
    b"b",
    2 + 1j,
    np.complex128(1 + 2j),
    [1],
    {},
    10**400,
    np.array([1, 2]),
    Decimal("sNaN"),
]


@pytest.mark.parametrize("pixel", NO_PIXELS)
def test_a_pixel_that_changes_the_type_of_an_array_changes_itself_only(pixel, recwarn):
    images = np.full((3, 1, 2, 2), 0.5, dtype=object)
    images[1, 0, 0, 0] = pixel
    found = ImageRows.of((images, [0, 1, 0]), **PUBLIC).images
    assert found[1, 0, 0, 0] in (0, 1)
    found[1, 0, 0, 0] = 0.5
    assert bool((found == 0.5).all()) and not recwarn.list


@pytest.mark.parametrize(
    "image",
    [
        np.full((2, 2), None),
        np.full((2, 2), "a"),
        np.full((2, 2), 1j),
        np.full((2, 2), np.longdouble("1e4000")),
        [[0.0, None], [0.0, 0.0]],
        torch.full((2, 2), torch.nan, requires_grad=True),
        torch.zeros(2, 2).to_sparse(),
    ],
)
def test_one_image_of_a_list_that_is_no_numbers_changes_itself_only(image, recwarn):
    half = np.full((2, 2), 0.5, dtype=np.float32)
    rows = ImageRows.of(([half, image, half], [0, 1, 0]), **PUBLIC)
    assert rows.images.shape == (3, 1, 2, 2) and bool((rows.images[[0, 2]] == 0.5).all())
    assert rows.images[1].min() == rows.images[1].max() and not rows.images.requires_grad
    assert not recwarn.list


@pytest.mark.parametrize(
    "label", [np.complex128(1 + 2j), np.array([1, 2]), b"1", np.longdouble("1e4000"), {}]
)
def test_a_label_of_any_kind_gives_no_warning(label, recwarn):
    rows = ImageRows.of((torch.zeros(3, 1, 2, 2), [1, label, 0]), **PUBLIC)
    assert rows.labels.tolist() == [1, 0] and not recwarn.list


@pytest.mark.parametrize(
    "images",
    [[None] * 3, ["a"] * 3, [[[0.0, 1.0], [1.0]]] * 3, np.zeros((3, 1, 0, 2)), np.zeros(3), [[], [], []]],
)
def test_what_has_not_the_shape_of_images_is_refused_by_name(images):
    with pytest.raises(InvalidParameterError, match="shape"):
        ImageRows.of((images, [0, 1, 0]), **PUBLIC)
