# SPDX-License-Identifier: Apache-2.0
"""Figures by matplotlib, in one style: for papers, slides and pages, light or dark.

Lines differ by color, mark and dash, so that they can be told apart by anybody and in black and white. Text
and axes have a gray that can be read on white and on black paper; the background is transparent. If a point
has several values, such as those of several seeds, the mean is drawn with its 95% interval by Student's t.

matplotlib is not installed with sfumato: it comes with the extra `plots`.
"""

import io
import itertools
import math
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sfumato import _files
from sfumato.errors import InvalidParameterError
from sfumato.report.spread import half_interval, mean_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "inline_svg",
    "plot_bars",
    "plot_intervals",
    "plot_lines",
    "plot_pictures",
    "plot_scatter",
    "plot_tradeoff",
    "save_plot",
    "svg_of",
]

# From an x to one value, or to the values of several seeds.
Line: TypeAlias = Mapping[Any, float | Sequence[float]]

# Okabe and Ito's colors, a little darker where a thin line would be hard to see.
_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b08c00", "#56b4e9")
_DASHES: Final = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
_MARKS: Final = ("o", "s", "^", "D", "v", "P")
_INK: Final = "#747a84"
_MANY: Final = 6  # names: more would cover the points, so they stand beside them
_SIZE: Final = (6.0, 3.8)  # inches
_ROOM: Final = 0.07  # of the width of an axis, for one of its numbers
_STYLE: Final[Any] = {
    "font.size": 10,
    "font.family": "sans-serif",
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _INK,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "savefig.transparent": True,
}


def plot_lines(
    lines: Mapping[str, Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    percent: bool = False,
    levels: Mapping[str, float] | None = None,
) -> "Figure":
    """Return a figure of lines, each the mean of its values with the interval of the mean.

    Args:
        lines: For each name, from x to a value or to the values of several seeds.
        title: The title.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical axis is logarithmic.
        percent: Whether a value of 0.5 is written as 50%.
        levels: Heights to mark by a thin line across, by name, such as what a report claims.

    Returns:
        The figure of matplotlib.

    >>> drawn = plot_lines({"DP-SGD": {1: [0.91, 0.92], 2: [0.93, 0.95]}}, title="Accuracy",
    ...                    x_label="epsilon", y_label="accuracy", percent=True)
    >>> drawn.axes[0].get_xlabel()
    'epsilon'
    """
    with _figure(title, x_label, y_label, percent=percent) as (figure, axes):
        for place, (name, line) in enumerate(lines.items()):
            _draw_line(axes, place, name, line)
        for place, (name, height) in enumerate((levels or {}).items()):
            axes.axhline(height, color=_INK, linewidth=1, linestyle=_DASHES[1 + place % 4], label=name)
        axes.set_xscale("log" if log_x else "linear")
        if log_x:
            _write_places(axes, sorted({x for line in lines.values() for x in line if x > 0}))
        axes.set_yscale("log" if log_y else "linear")
        _legend(axes, len(lines) + len(levels or {}))
    return figure


def plot_tradeoff(
    methods: Mapping[str, Line],
    *,
    title: str = "Privacy against accuracy",
    y_label: str = "accuracy on test rows",
    levels: Mapping[str, float] | None = None,
) -> "Figure":
    """Return a figure of accuracy against epsilon, one line for each method.

    Args:
        methods: For each method, from epsilon to its accuracy, or to the accuracies of several seeds.
        title: The title.
        y_label: The label of the vertical axis.
        levels: Accuracies to mark by a thin line across, by name, such as that without privacy.

    Returns:
        The figure of matplotlib.

    >>> drawn = plot_tradeoff({"DP-SGD": {0.5: 0.91, 1: 0.94}}, levels={"without privacy": 0.99})
    >>> drawn.axes[0].get_xscale()
    'log'
    """
    return plot_lines(
        methods,
        title=title,
        x_label="epsilon (smaller is more private)",
        y_label=y_label,
        log_x=True,
        percent=True,
        levels=levels,
    )


def plot_bars(
    bars: Mapping[str, float | Sequence[float]], *, title: str, y_label: str, percent: bool = False
) -> "Figure":
    """Return a figure of bars, each the mean of its values with the interval of the mean.

    Args:
        bars: For each name a value, or the values of several seeds.
        title: The title.
        y_label: The label of the vertical axis.
        percent: Whether a value of 0.5 is written as 50%.

    Returns:
        The figure of matplotlib.
    """
    with _figure(title, "", y_label, percent=percent) as (figure, axes):
        means, errors = zip(*(_mean_and_error(values) for values in bars.values()), strict=True)
        colors = [_COLORS[place % len(_COLORS)] for place in range(len(bars))]
        axes.bar(list(bars), means, yerr=errors, color=colors, ecolor=_INK, capsize=3)
        axes.grid(visible=False, axis="x")
        if max(map(len, bars)) * len(bars) > 70:
            axes.tick_params(axis="x", rotation=25)
    return figure


def plot_intervals(
    cells: Mapping[str, tuple[float | None, tuple[float, float] | None]], *, title: str, note: str = ""
) -> "Figure":
    """Return a figure of numbers by name, each with the interval that was released with it.

    Args:
        cells: For each name the number, None if it failed, and the ends of its interval, or None.
        title: The title.
        note: A sentence below the figure, such as the guarantee.

    Returns:
        The figure of matplotlib.
    """
    with _figure(title, note, "") as (figure, axes):
        axes.set_xticks(range(len(cells)), list(cells))
        for place, (number, ends) in enumerate(cells.values()):
            if ends is not None:
                axes.vlines(place, *ends, color=_INK, linewidth=1.5)
            if number is not None:
                axes.plot(place, number, "o", color=_COLORS[0])
        if max(map(len, cells), default=0) * len(cells) > 70:
            axes.tick_params(axis="x", rotation=25)
    return figure


def plot_scatter(
    groups: Mapping[str, Sequence[tuple[float, float]]], *, title: str, x_label: str = "", y_label: str = ""
) -> "Figure":
    """Return a figure of groups of points, which are not joined.

    Args:
        groups: The points of each group.
        title: The title.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.

    Returns:
        The figure of matplotlib.
    """
    with _figure(title, x_label, y_label) as (figure, axes):
        for place, (name, points) in enumerate(groups.items()):
            x, y = zip(*points, strict=True) if points else ((), ())
            axes.scatter(x, y, s=9, alpha=0.7, label=name, **_look(place, dash=False))
        _legend(axes, len(groups))
    return figure


def plot_pictures(pictures: Mapping[str, Sequence[Sequence[float]]], *, title: str) -> "Figure":
    """Return a figure of pictures beside each other, such as grids of samples.

    Args:
        pictures: By name, rows of gray levels from 0 (black) to 1 (white).
        title: The title.

    Returns:
        The figure of matplotlib.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        across = 2 if len(pictures) == 4 else min(3, len(pictures))
        down = math.ceil(len(pictures) / across)
        figure = Figure(figsize=(2.6 * across, 2.8 * down + 0.4), layout="constrained")
        figure.suptitle(title, color=_INK)
        for place, (name, picture) in enumerate(pictures.items()):
            axes = figure.add_subplot(down, across, place + 1)
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(name, fontsize=9)
            axes.set_axis_off()
    return figure


def save_plot(figure: "Figure", path: str | os.PathLike[str]) -> Path:
    """Write a figure to a file, whole or not at all; the same figure gives the same bytes.

    Args:
        figure: The figure.
        path: Where to write: a name that ends in .svg or .png.

    Returns:
        The path of the file.

    Raises:
        InvalidParameterError: If the name ends in something else.
    """
    place = Path(path)
    if place.suffix not in (".svg", ".png"):
        raise InvalidParameterError(f"a figure is written as .svg or .png, not as {place.name!r}.")
    place.parent.mkdir(parents=True, exist_ok=True)
    _files.write_whole(place, _drawn(figure, place.suffix[1:], name=place.stem))
    return place


def svg_of(figure: "Figure", *, name: str) -> str:
    """Return a figure as SVG to be put into a page.

    Args:
        figure: The figure.
        name: A name that no other figure of the page has.

    Returns:
        The SVG element.
    """
    return inline_svg(_drawn(figure, "svg", name=name).decode())


def inline_svg(text: str) -> str:
    """Return a figure that `save_plot` wrote as an element that can be put into a page.

    Args:
        text: The text of the file.

    Returns:
        The SVG element.
    """
    text = re.sub(r"^.*?(?=<svg)", "", text, flags=re.DOTALL)
    return re.sub(r'<g id="[^"]*"', "<g", text)  # names of groups, which every figure has and nothing uses


def _drawn(figure: "Figure", kind: str, *, name: str) -> bytes:
    from matplotlib import rc_context

    file = io.BytesIO()
    facts: dict[str, Any] = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(file, format=kind, dpi=150, metadata=facts)
    return file.getvalue()


@contextmanager
def _figure(
    title: str, x_label: str, y_label: str, *, percent: bool = False
) -> "Generator[tuple[Figure, Axes]]":
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    with rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.add_subplot()
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        yield figure, axes
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=None))


def _draw_line(axes: "Axes", place: int, name: str, line: Line) -> None:
    x = sorted(line)
    means, errors = zip(*(_mean_and_error(line[one]) for one in x), strict=True) if x else ((), ())
    look = _look(place)
    axes.plot(x, means, label=name, markersize=4 if len(x) <= 40 else 0, linewidth=1.6, **look)
    if any(errors):
        low = [mean - error for mean, error in zip(means, errors, strict=True)]
        high = [mean + error for mean, error in zip(means, errors, strict=True)]
        axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)


def _write_places(axes: "Axes", places: Sequence[float]) -> None:
    """Write the values of a logarithmic axis as they are, not as powers of ten, if there is room for them."""
    from matplotlib.ticker import NullLocator

    between = [math.log(after / before) for before, after in itertools.pairwise(places)]
    if between and min(between) >= _ROOM * sum(between):
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())


def _look(place: int, *, dash: bool = True) -> dict[str, Any]:
    again = place // len(
        _COLORS
    )  # how often all colors were used: marks move on, so that no look comes twice
    look = {"color": _COLORS[place % len(_COLORS)], "marker": _MARKS[(place + again) % len(_MARKS)]}
    return look | ({"linestyle": _DASHES[place % len(_DASHES)]} if dash else {})


def _mean_and_error(values: float | Sequence[float]) -> tuple[float, float]:
    if isinstance(values, int | float):
        return float(values), 0.0
    return mean_of(values), half_interval(values) or 0.0


def _legend(axes: "Axes", count: int) -> None:
    if count > 1:
        beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if count > _MANY else {}
        axes.legend(fontsize=9, **beside)
