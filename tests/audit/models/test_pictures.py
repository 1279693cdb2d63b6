# SPDX-License-Identifier: Apache-2.0
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from sfumato.audit.models.pictures import gallery
from sfumato.errors import InvalidParameterError

SVG = "{http://www.w3.org/2000/svg}"


def test_a_gallery_is_well_formed_and_loads_nothing():
    svg = gallery({"a < b": np.eye(4)[None], "drawn": torch.rand(3, 3, 4, 4)}, titles=["1", "2 & 3"])
    root = ElementTree.fromstring(svg)
    assert [t.text for t in root.iter(f"{SVG}text")] == ["1", "2 & 3", "a < b", "drawn"]
    assert len(root.findall(f"{SVG}g")) == 4
    assert not re.search(r"<(script|image|use|style|foreignObject)|href|url\(|@import", svg)


def test_every_pixel_is_drawn_once_in_its_color():
    root = ElementTree.fromstring(gallery({"x": np.array([[[0.0, 1.0], [0.5, 7.0]]])}))
    drawn = {
        place: path.get("fill")
        for path in root.iter(f"{SVG}path")
        for place in re.findall(r"M(\d+ \d+)h1v1h-1z", path.get("d") or "")
    }
    assert drawn == {"0 0": "#000000", "1 0": "#ffffff", "0 1": "#848484", "1 1": "#ffffff"}


def test_channels_are_colors_and_bounds_are_the_ends_of_the_scale():
    red = np.stack([np.full((2, 2), 4.0), np.full((2, 2), -2.0), np.full((2, 2), -2.0)])[None]
    assert set(re.findall(r'fill="(#\w+)"', gallery({"x": red}, bounds=(-2.0, 4.0)))) == {"#ff0000"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({}, "at least one row"),
        ({"x": np.zeros((2, 2))}, "channels"),
        ({"x": np.zeros((1, 2, 4, 4))}, "channels"),
        ({"x": np.zeros((0, 1, 4, 4))}, "channels"),
        ({"x": np.full((1, 4, 4), np.nan)}, "NaN"),
    ],
    ids=["none", "a single picture", "two channels", "empty", "NaN"],
)
def test_what_is_no_picture_is_refused(rows, said):
    with pytest.raises(InvalidParameterError, match=said):
        gallery(rows)
