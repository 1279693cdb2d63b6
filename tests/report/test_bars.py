# SPDX-License-Identifier: Apache-2.0
import math
from xml.etree import ElementTree

import pytest

from sfumato.errors import InvalidParameterError
from sfumato.report import bar_chart

SVG = "{http://www.w3.org/2000/svg}"


def drawn(bars):
    return ElementTree.fromstring(bar_chart(bars, title="Animals"))


def test_each_number_is_a_bar_of_its_length_with_its_name():
    picture = drawn({"cat": 3, "dog": 6})
    first, second = (float(bar.get("width")) for bar in picture.iter(f"{SVG}rect"))
    assert second == pytest.approx(2 * first, abs=0.2) and second > 200
    assert [text.text for text in picture.iter(f"{SVG}text")] == ["cat", "3", "dog", "6"]
    assert picture.find(f"{SVG}desc").text == "cat: 3; dog: 6"


@pytest.mark.parametrize("bars", [{}, {"none": 0}, {"<b>&": 1}, {"a" * 500: 1e9}])
def test_any_name_and_value_is_well_formed(bars):
    picture = drawn(bars)
    assert len(list(picture.iter(f"{SVG}rect"))) == len(bars)
    assert all(len(text.text) <= 20 for text in picture.iter(f"{SVG}text"))


def test_bars_stay_in_the_picture():
    picture = drawn({"a rather long name of a class": 1234567, "b": 1})
    width = float(picture.get("viewBox").split()[2])
    assert all(float(bar.get("x")) + float(bar.get("width")) < width for bar in picture.iter(f"{SVG}rect"))


@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_what_has_no_length_is_refused(value):
    with pytest.raises(InvalidParameterError, match="bars must be"):
        bar_chart({"a": value}, title="x")
