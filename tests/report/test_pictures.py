# SPDX-License-Identifier: Apache-2.0
"""Grids of images: every pixel in its place and shade, and well-formed whatever is given."""

import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.report import picture_file, picture_grid

SVG = "{http://www.w3.org/2000/svg}"
RUN = re.compile(r"M(\d+) (\d+)h(\d+)v1h-\3z")


def drawn(images):
    return ElementTree.fromstring(picture_grid(images, title="Samples"))


def pixels(picture):
    """Return the color of each pixel that is drawn, by its place."""
    found = {}
    for path in picture.iter(f"{SVG}path"):
        runs = RUN.findall(path.get("d"))
        assert "".join(f"M{x} {y}h{n}v1h-{n}z" for x, y, n in runs) == path.get("d")
        for x, y, n in runs:
            for k in range(int(n)):
                assert (int(x) + k, int(y)) not in found
                found[int(x) + k, int(y)] = path.get("fill")
    return found


def test_pixels_have_their_places_and_shades():
    images = np.array([[[[0.0, 1.0], [0.5, 1.0]]], [[[1.0, 1.0], [0.0, 0.0]]]])
    found = pixels(drawn({"a": images[:1], "b": images}))
    assert {place: found[place] for place in [(0, 0), (1, 0), (0, 1), (1, 1)]} == {
        (0, 0): "#000000",
        (1, 0): "#ffffff",
        (0, 1): "#888888",
        (1, 1): "#ffffff",
    }
    assert found[4, 4] == "#ffffff" and found[4, 5] == "#000000"  # the second image of the second row
    assert (2, 0) not in found and (4, 0) not in found and len(found) == 3 * 4


def test_colors_are_kept():
    image = np.zeros((1, 3, 1, 2))
    image[0, :, 0, 0], image[0, :, 0, 1] = (1.0, 0.0, 0.0), (0.2, 0.4, 0.6)
    assert pixels(drawn({"a": image})) == {(0, 0): "#ff0000", (1, 0): "#336699"}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_red(value):
    image = np.ones((1, 1, 2, 2))
    image[0, 0, 1, 1] = value
    assert pixels(drawn({"a": image}))[1, 1] == "#ff0000"


def test_values_beyond_0_and_1_are_clipped():
    assert set(pixels(drawn({"a": np.array([[[[-3.0, 7.0]]]])})).values()) == {"#000000", "#ffffff"}


@pytest.mark.parametrize("images", [{}, {"none": np.zeros((0, 1, 4, 4))}, {"<b>&": np.zeros((1, 1, 4, 4))}])
def test_any_grid_is_well_formed_and_told(images):
    picture = drawn(images)
    assert picture.find(f"{SVG}desc").text
    assert [text.text for text in picture.iter(f"{SVG}text")] == list(images)


@pytest.mark.parametrize("image", [np.zeros((1, 2, 4, 4)), np.zeros((4, 4)), np.zeros((1, 4, 4))])
def test_other_shapes_are_refused(image):
    with pytest.raises(InvalidParameterError, match="1 or 3 channels"):
        picture_grid({"a": image}, title="Samples")
    with pytest.raises(InvalidParameterError, match="same size"):
        picture_grid({"a": np.zeros((1, 1, 4, 4)), "b": np.zeros((1, 1, 5, 4))}, title="Samples")


def read(content):
    """Return the pixels of a PNG file, by another program."""
    images = pytest.importorskip("PIL.Image")
    with images.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"))


def test_a_file_has_every_pixel_in_its_place_and_shade():
    image = np.linspace(0, 1, 40 * 30).reshape(1, 1, 40, 30)
    found = read(picture_file({"a": image, "b": np.concatenate([image, 1 - image])}))
    assert found.shape == (84, 64, 3)
    assert np.array_equal(found[:40, :30, 0], np.rint(255 * image[0, 0]))
    assert np.array_equal(found[42:82, 32:62, 1], np.rint(255 * (1 - image[0, 0])))
    assert (found[:42, 32:] == 255).all()


def test_a_file_keeps_colors_shows_what_is_not_finite_and_enlarges_small_images():
    image = np.zeros((1, 3, 8, 8))
    image[0, 2], image[0, 1, 0, 0] = 1.0, np.nan
    found = read(picture_file({"a": image}))
    assert found.shape == (40, 40, 3)
    assert (found[:4, :4] == [255, 0, 0]).all() and (found[4:32, :32] == [0, 0, 255]).all()


def test_a_file_without_images_is_a_picture_too():
    assert read(picture_file({})).size > 0
