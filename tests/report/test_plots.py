# SPDX-License-Identifier: Apache-2.0
import xml.etree.ElementTree as ElementTree

import pytest

from sfumato.errors import InvalidParameterError
from sfumato.report import plot_bars, plot_lines, plot_pictures, plot_scatter, plot_tradeoff, save_plot
from sfumato.report.plots import svg_of


def lines(**changed):
    points = {"DP-SGD": {1: [0.91, 0.93], 2: [0.94, 0.96]}, "labels": {1: 0.8, 2: 0.9}}
    return plot_lines(points, title="T", x_label="x", y_label="y", **changed)


def test_a_line_is_the_mean_of_its_values_with_an_interval():
    axes = lines().axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.92, 0.95], [0.8, 0.9]]
    assert len(axes.collections) == 1  # of the line that has several values


def test_lines_differ_by_more_than_color():
    drawn = lines().axes[0].lines
    assert len({line.get_marker() for line in drawn}) == len({line.get_linestyle() for line in drawn}) == 2


def test_a_dozen_groups_of_points_look_different():
    drawn = plot_scatter({str(number): [(0.0, 1.0)] for number in range(12)}, title="Groups")
    looks = {
        (tuple(group.get_facecolor()[0]), group.get_paths()[0].vertices.tobytes())
        for group in drawn.axes[0].collections
    }
    assert len(looks) == 12


def test_axes_are_logarithmic_where_asked_and_levels_are_named():
    axes = lines(log_x=True, log_y=True, levels={"claimed": 0.7}).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert "claimed" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_tradeoff_is_drawn_over_the_logarithm_of_epsilon():
    axes = plot_tradeoff({"DP-SGD": {0.1: 0.9, 1: 0.95}}, levels={"without privacy": 0.99}).axes[0]
    assert axes.get_xscale() == "log" and "epsilon" in axes.get_xlabel()


@pytest.mark.parametrize(
    ("places", "written"),
    [((0.5, 1, 2), ["0.5", "1", "2"]), ((0.1, 1.0, 1.01), None), ((0, 1, 4), ["1", "4"])],
)
def test_values_of_a_logarithmic_axis_are_written_as_they_are_where_there_is_room(places, written):
    axes = plot_tradeoff({"DP-SGD": dict.fromkeys(places, 0.9)}).axes[0]
    axes.figure.draw_without_rendering()
    found = [label.get_text() for label in axes.get_xticklabels()]
    assert found == written if written else any("10^" in label for label in found)


def test_bars_points_and_pictures_are_drawn():
    assert len(plot_bars({"a": [1.0, 2.0], "b": 3.0}, title="T", y_label="y").axes[0].patches) == 2
    assert len(plot_scatter({"real": [(0, 1)], "none": []}, title="T").axes[0].collections) == 2
    assert len(plot_pictures({"one": [[0, 1]], "two": [[1, 0]]}, title="T").axes) == 2


def test_files_are_svg_or_png_and_the_same_each_time(tmp_path):
    for name in ("a.svg", "a.png"):
        first = save_plot(lines(), tmp_path / name).read_bytes()
        assert save_plot(lines(), tmp_path / name).read_bytes() == first
    with pytest.raises(InvalidParameterError, match=r"\.svg or \.png"):
        save_plot(lines(), tmp_path / "a.pdf")


def test_a_figure_in_a_page_is_one_element_with_ids_of_its_own():
    one, other = svg_of(lines(), name="one"), svg_of(lines(), name="other")
    assert ElementTree.fromstring(one).tag.endswith("svg")
    ids = [{e.get("id") for e in ElementTree.fromstring(t).iter() if e.get("id")} for t in (one, other)]
    assert not ids[0] & ids[1]


def test_many_names_stand_beside_the_points_and_few_among_them():
    def leftmost(count):
        figure = plot_scatter({str(k): [(0.0, 0.0), (1.0, 1.0)] for k in range(count)}, title="T")
        (axes,) = figure.axes
        figure.draw_without_rendering()
        return axes.get_legend().get_window_extent().x0, axes.get_window_extent().x1

    names, points = leftmost(11)
    assert names >= points
    names, points = leftmost(3)
    assert names < points
