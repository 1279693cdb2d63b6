# SPDX-License-Identifier: Apache-2.0
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.report import Series, line_chart, scatter_chart
from sfumato.report.curves import round_ticks

SVG = "{http://www.w3.org/2000/svg}"
SPOT = re.compile(r"M(-?[\d.]+) (-?[\d.]+)")
HOSTILE = """<script>alert('1')</script> & "quotes" ]]> <!-- \x00 \ud800 --> </svg>"""

numbers = st.floats()  # includes 0, huge, tiny, infinite and NaN
points = st.lists(st.tuples(numbers, numbers), max_size=12)


def drawn(*series, **more):
    settings = {"title": "Loss", "x_label": "step", "y_label": "loss"} | more
    return ElementTree.fromstring(line_chart(series, **settings))


def places(picture):
    """Where lines and dots are, as numbers."""
    found = []
    for line in picture.iter(f"{SVG}polyline"):
        found += [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    return found


@given(points, points)
def test_any_values_give_a_picture_within_its_frame(first, second):
    picture = drawn(Series(name="a", points=first), Series(name="b", points=second))
    _, top, width, height = map(float, picture.get("viewBox").split())
    assert all(0 <= x <= width and top <= y <= top + height for x, y in places(picture))
    finite = sum(map(math.isfinite, (v for p in first + second for v in p)))
    assert bool(places(picture)) <= bool(finite)


@given(st.text(), st.text(min_size=1).filter(str.strip), st.text(), st.text())
def test_any_words_give_well_formed_xml(title, name, x_label, y_label):
    drawn(Series(name=name, points=[(1, 2)]), title=title, x_label=x_label, y_label=y_label)


def test_hostile_words_are_shown_as_text():
    line = Series(name=HOSTILE, points=[(1, 2), (2, 3)])
    picture = drawn(line, line, title=HOSTILE, x_label=HOSTILE, y_label=HOSTILE)
    assert {element.tag.removeprefix(SVG) for element in picture.iter()} == {
        "svg",
        "title",
        "desc",
        "g",
        "line",
        "text",
        "polyline",
        "circle",
    }
    assert "<script>alert" in picture.find(f"{SVG}title").text


def test_points_are_drawn_where_their_values_are():
    picture = drawn(Series(name="a", points=[(0, 0), (5, 5), (10, 10)]), y_bounds=(0, 10))
    (x0, y0), (x1, y1), (x2, y2) = places(picture)
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1) and y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert x0 < x2 and y0 > y2  # up is less in SVG


def test_a_value_that_is_not_finite_breaks_the_line():
    values = [(1, 1), (2, 2), (3, math.nan), (4, math.inf), (5, 3), (6, 4), (math.nan, 1), (8, 5)]
    lines = list(drawn(Series(name="a", points=values)).iter(f"{SVG}polyline"))
    assert [len(line.get("points").split()) for line in lines] == [2, 2, 1]


@pytest.mark.parametrize("values", [[], [(1, math.nan)]], ids=["none", "none finite"])
def test_a_line_without_values_says_so(values):
    picture = drawn(Series(name="a", points=values))
    assert "no values yet" in [text.text for text in picture.iter(f"{SVG}text")]
    assert "a: no values." in picture.find(f"{SVG}desc").text


def test_one_point_is_a_dot_with_axes_around_it():
    picture = drawn(Series(name="a", points=[(7, 3.5)]))
    assert len(list(picture.iter(f"{SVG}circle"))) == 1
    assert "a: 3.5 at step 7." in picture.find(f"{SVG}desc").text


def test_a_constant_line_has_an_axis_that_shows_it():
    picture = drawn(Series(name="a", points=[(1, 0.25), (2, 0.25)]))
    assert {"0.2", "0.3"} <= {text.text for text in picture.iter(f"{SVG}text")}
    _, top, _, height = map(float, picture.get("viewBox").split())
    assert all(top + height / 4 < y < top + 3 * height / 4 for _, y in places(picture))


def test_the_picture_is_told_in_words():
    picture = drawn(Series(name="accuracy", points=[(1, 0.1), (2, 0.95), (3, 0.9)]), percent=True)
    told = picture.find(f"{SVG}desc").text
    assert "from 10% at step 1 to 90% at step 3, between 10% and 95%" in told
    assert picture.get("role") == "img" and picture.find(f"{SVG}title").text == "Loss"


def test_axes_are_labelled_with_round_numbers():
    picture = drawn(Series(name="a", points=[(0, 0.13), (100, 2.3)]))
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"0", "20", "40", "60", "80", "100", "0.5", "1", "1.5", "2", "2.5", "step", "loss"} <= set(texts)


def test_several_lines_have_names_and_differ_by_more_than_color():
    picture = drawn(*(Series(name=name, points=[(1, 1), (2, 2)]) for name in ("ours", "theirs")))
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"ours", "theirs"} <= set(texts)
    dashes = [line.get("stroke-dasharray") for line in picture.iter(f"{SVG}polyline")]
    assert len(set(dashes)) == 2


def test_one_line_needs_no_legend():
    texts = [text.text for text in drawn(Series(name="ours", points=[(1, 1), (2, 2)])).iter(f"{SVG}text")]
    assert "ours" not in texts


def test_a_long_line_has_no_dots():
    assert not list(drawn(Series(name="a", points=[(i, i) for i in range(100)])).iter(f"{SVG}circle"))


@given(st.floats(-1e300, 1e300), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_within_the_axis(low, width):
    high = low + max(width, abs(low) * 1e-6)
    ticks = round_ticks(low, high)
    slack = 1e-6 * (high - low)
    assert len(ticks) <= 7
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert ticks == sorted(set(ticks))


def test_ticks_are_round():
    assert round_ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert round_ticks(-1, 1) == [-1, -0.5, 0, 0.5, 1]
    assert round_ticks(0.0012, 0.0031) == [0.0015, 0.002, 0.0025, 0.003]


@pytest.mark.parametrize("bounds", [(1, 1), (2, 1), (math.nan, 1), (0, math.inf)])
def test_bounds_that_are_none_are_refused(bounds):
    with pytest.raises(InvalidParameterError, match="bounds"):
        drawn(Series(name="a", points=[]), y_bounds=bounds)


def test_a_line_needs_a_name():
    with pytest.raises(InvalidParameterError, match="name"):
        Series(name=" ", points=[])


# --- points -----------------------------------------------------------------------------------------------


def scattered(*series, title="A map"):
    return ElementTree.fromstring(scatter_chart(series, title=title, x_label="first", y_label="second"))


@given(points, points)
def test_any_points_are_within_the_frame_and_not_joined(first, second):
    picture = scattered(Series(name="a", points=first), Series(name="b", points=second))
    _, top, width, height = map(float, picture.get("viewBox").split())
    paths = list(picture.iter(f"{SVG}path"))
    spots = [tuple(map(float, spot)) for path in paths for spot in SPOT.findall(path.get("d"))]
    assert all(0 <= x <= width and top <= y <= top + height for x, y in spots)
    finite = [p for p in first + second if all(map(math.isfinite, p))]
    assert len(spots) == len(finite) + 2  # and one of each in the legend
    assert not list(picture.iter(f"{SVG}polyline"))


def test_groups_differ_by_shape_and_are_told():
    picture = scattered(
        Series(name="real", points=[(0, 0)]), Series(name="made", points=[(1, 1), (2, 2)]), title=HOSTILE
    )
    shapes = {path.get("style"): path.get("d").split("m", 1)[1] for path in picture.iter(f"{SVG}path")}
    assert len(set(shapes.values())) == len(shapes) == 2
    assert picture.find(f"{SVG}desc").text == "second against first. real: 1 points. made: 2 points."
