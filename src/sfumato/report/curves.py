# SPDX-License-Identifier: Apache-2.0
"""Curves and points as SVG: axes with round numbers, labels, a legend, and a text alternative.

The text returned is well-formed XML, whatever the names and values. It refers to nothing outside.

Lines differ by dashes and markers too, and groups of points by their marks, not by color alone. Colors are
CSS variables with a default, so a page can change them between light and dark.

Edge cases A point that is not finite is left out, and the line is broken there. Without any point only the
           axes are drawn, and the picture says so.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sfumato import _check
from sfumato.report.html import escape

__all__ = ["Series", "line_chart", "round_ticks", "scatter_chart"]

Point = tuple[float, float]

# Okabe and Ito's colors, which people with any kind of color vision can tell apart.
_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#a65a8a", "#8a6d00")
_DASHES: Final = ("", "7 4", "2 4", "10 4 2 4", "4 2")
# Marks of points, each drawn from its middle: a circle, a cross and a square.
_SHAPES: Final = ("m-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0", "m-2.5-2.5l5 5m0-5l-5 5", "m-2-2h4v4h-4z")
_MARKERS_AT_MOST: Final = 40  # points with a dot of their own; more would hide the line

# In units of the picture, which is scaled to the width it is given.
_WIDTH, _HEIGHT = 480, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 22, 14, 50
_FAR: Final = 1e150  # an axis reaches no further, and its length is no less than one over this
_LEGEND = 20  # for each line's name, above the axes
_FONT: Final = "font-family:system-ui,sans-serif;font-size:13px"


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line of a chart.

    Args:
        name: The name in the legend.
        points: The points (x, y), in order.

    Raises:
        InvalidParameterError: If the name is empty.
    """

    name: str
    points: Sequence[Point]

    def __post_init__(self) -> None:
        _check.text(name=self.name)

    @property
    def finite(self) -> list[Point]:
        """The points that can be drawn."""
        return [point for point in self.points if all(math.isfinite(value) for value in point)]

    @property
    def pieces(self) -> list[list[Point]]:
        """The points between gaps: a value that is not finite breaks the line."""
        pieces: list[list[Point]] = [[]]
        for point in self.points:
            if all(math.isfinite(value) for value in point):
                pieces[-1].append(point)
            elif pieces[-1]:
                pieces.append([])
        return [piece for piece in pieces if piece]


def round_ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return at most `most` round numbers from `low` to `high`: multiples of 1, 2 or 5 and a power of ten.

    >>> round_ticks(0, 0.93)
    [0.0, 0.2, 0.4, 0.6, 0.8]
    """
    _check.bounds(bounds=(low, high))
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def line_chart(
    series: Series | Iterable[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_bounds: tuple[float, float] | None = None,
    y_bounds: tuple[float, float] | None = None,
    percent: bool = False,
) -> str:
    """Return an SVG picture of one or more lines.

    Args:
        series: The lines.
        title: The title of the picture.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.
        x_bounds: The ends of the horizontal axis. None fits them to the values.
        y_bounds: The ends of the vertical axis. None fits them to the values.
        percent: Whether a value of 0.5 is written as 50%.

    Returns:
        The SVG text.

    Raises:
        InvalidParameterError: If the ends of an axis are not finite or not in order.

    >>> picture = line_chart(Series(name="loss", points=[(1, 2.3), (2, 1.1)]), title="Loss",
    ...                      x_label="step", y_label="loss")
    >>> picture.startswith("<svg ") and picture.endswith("</svg>")
    True
    """
    lines = [series] if isinstance(series, Series) else list(series)
    plane = _Plane.around([point for line in lines for point in line.finite], x_bounds, y_bounds)
    number = _percent if percent else _number
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts = [
        *_axes(plane, number),
        _label(x_label, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10),
        _label(y_label, 14, middle, turned=True),
        *(_line(line, plane, place) for place, line in enumerate(lines)),
    ]
    if not any(line.finite for line in lines):
        parts.append(_label("no values yet", (_LEFT + _WIDTH - _RIGHT) / 2, middle))
    above = _LEGEND * len(lines) if len(lines) > 1 else 0
    legend = [_legend(line.name, place, above) for place, line in enumerate(lines) if above]
    return _picture(title, _in_words(lines, x_label, y_label, number), [*legend, *parts], above)


def scatter_chart(series: Series | Iterable[Series], *, title: str, x_label: str, y_label: str) -> str:
    """Return an SVG picture of one or more groups of points, which are not joined.

    Args:
        series: The groups; a later one is drawn over an earlier one.
        title: The title of the picture.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.

    Returns:
        The SVG text.

    >>> picture = scatter_chart(Series(name="real", points=[(1, 2), (2, 1)]), title="A map",
    ...                         x_label="first axis", y_label="second axis")
    >>> picture.startswith("<svg ") and picture.endswith("</svg>")
    True
    """
    groups = [series] if isinstance(series, Series) else list(series)
    plane = _Plane.around([point for group in groups for point in group.finite], None, None)
    parts = [
        *_axes(plane, _number),
        _label(x_label, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10),
        _label(y_label, 14, (_TOP + _HEIGHT - _BOTTOM) / 2, turned=True),
        *(_marks(map(plane.place, group.finite), place) for place, group in enumerate(groups)),
    ]
    above = _LEGEND * len(groups)
    legend = [
        _marks([(_LEFT + 15, _LEGEND * (place + 0.5) - above)], place)
        + _label(group.name, _LEFT + 38, _LEGEND * (place + 0.5) - above + 4, anchor="start")
        for place, group in enumerate(groups)
    ]
    told = " ".join(f"{group.name}: {len(group.finite):,} points." for group in groups)
    return _picture(title, f"{y_label} against {x_label}. {told}", [*legend, *parts], above)


def _picture(title: str, words: str, parts: Sequence[str], above: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 {-above} {_WIDTH} {_HEIGHT + above}" '
        f'width="100%" style="{_FONT};color:inherit;max-width:{2 * _WIDTH}px"><title>{escape(title)}</title>'
        f"<desc>{escape(words)}</desc>{''.join(parts)}</svg>"
    )


def _marks(spots: Iterable[Point], place: int) -> str:
    """Return the marks of one group: circles, crosses or squares, in one path."""
    shape = _SHAPES[place % len(_SHAPES)]
    path = "".join(f"M{x:.1f} {y:.1f}{shape}" for x, y in spots)
    return (
        f'<path d="{path}" fill="none" stroke-width="1.4" stroke-opacity="0.75" '
        f'style="stroke:{_color(place)}"/>'
    )


@dataclass(frozen=True, slots=True)
class _Plane:
    """The mapping of values to places in the picture."""

    x: tuple[float, float]
    y: tuple[float, float]

    @classmethod
    def around(
        cls, points: Sequence[Point], x: tuple[float, float] | None, y: tuple[float, float] | None
    ) -> "_Plane":
        """Return the plane between given bounds, or else around the points."""
        for given in (x, y):
            if given is not None:
                _check.bounds(bounds=given)
        return cls(
            x or _range([point[0] for point in points]), y or _rounded(_range([point[1] for point in points]))
        )

    def place(self, point: Point) -> Point:
        """Return where a point is drawn; one beyond the axes is drawn at their end."""
        across, up = (
            min(1.0, max(0.0, (value - low) / (high - low)))
            for value, (low, high) in zip(point, (self.x, self.y), strict=True)
        )
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return ends that are well apart, around all values; what is beyond `_FAR` is drawn at the end."""
    if not values:
        return 0.0, 1.0
    low, high = (min(_FAR, max(-_FAR, value)) for value in (min(values), max(values)))
    if high - low > max(1e-9 * max(abs(low), abs(high)), 1 / _FAR):
        return low, high
    apart = max(abs(low), abs(high)) / 2
    return (low - apart, high + apart) if apart > 1 / _FAR else (low - 0.5, high + 0.5)


def _rounded(ends: tuple[float, float]) -> tuple[float, float]:
    """Return ends moved outwards to where the next tick would be."""
    ticks = round_ticks(*ends)
    if len(ticks) < 2:
        return ends
    step = ticks[1] - ticks[0]
    low, high = ticks[0], ticks[-1]
    return (
        low if low <= ends[0] + 1e-9 * step else low - step,
        high if high >= ends[1] - 1e-9 * step else high + step,
    )


def _axes(plane: _Plane, number: Callable[[float], str]) -> list[str]:
    parts: list[str] = []
    for tick in round_ticks(*plane.y):
        _, y = plane.place((plane.x[0], tick))
        parts.append(_stroke(_LEFT, y, _WIDTH - _RIGHT, y, opacity=0.15))
        parts.append(_label(number(tick), _LEFT - 8, y + 4, anchor="end"))
    for tick in round_ticks(*plane.x):
        x, _ = plane.place((tick, plane.y[0]))
        parts.append(_stroke(x, _HEIGHT - _BOTTOM, x, _HEIGHT - _BOTTOM + 5))
        parts.append(_label(_number(tick), x, _HEIGHT - _BOTTOM + 20))
    return [*parts, _stroke(_LEFT, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, opacity=0.6)]


def _stroke(x1: float, y1: float, x2: float, y2: float, *, opacity: float = 0.6) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity:g}"/>'
    )


def _label(text: str, x: float, y: float, *, anchor: str = "middle", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}'
    return f'<text {where} fill="currentColor">{escape(text)}</text>'


def _line(line: Series, plane: _Plane, place: int) -> str:
    color = _color(place)
    dash = _DASHES[place % len(_DASHES)]
    parts: list[str] = []
    for piece in line.pieces:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(plane.place, piece))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke-width="2" stroke-linejoin="round" '
            f'stroke-dasharray="{dash or "none"}" style="stroke:{color}"/>'
        )
    if len(line.finite) <= _MARKERS_AT_MOST:
        spots = map(plane.place, line.finite)
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" style="fill:{color}"/>' for x, y in spots]
    return f"<g>{''.join(parts)}</g>"


def _legend(name: str, place: int, above: int) -> str:
    y = _LEGEND * (place + 0.5) - above
    dash = _DASHES[place % len(_DASHES)]
    sample = (
        f'<line x1="{_LEFT}" y1="{y:g}" x2="{_LEFT + 30}" y2="{y:g}" stroke-width="2" '
        f'stroke-dasharray="{dash or "none"}" style="stroke:{_color(place)}"/>'
    )
    return sample + _label(name, _LEFT + 38, y + 4, anchor="start")


def _color(place: int) -> str:
    place %= len(_COLORS)
    return f"var(--series-{place + 1},{_COLORS[place]})"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _percent(value: float) -> str:
    return f"{100 * value:.4g}%"


def _in_words(lines: Sequence[Series], x_label: str, y_label: str, number: Callable[[float], str]) -> str:
    """Return what the picture shows, for those who read it aloud."""
    sentences: list[str] = []
    for line in lines:
        finite = line.finite
        if not finite:
            sentences.append(f"{line.name}: no values.")
            continue
        (x0, y0), (x1, y1) = finite[0], finite[-1]
        if len(finite) == 1:
            sentences.append(f"{line.name}: {number(y0)} at {x_label} {_number(x0)}.")
            continue
        least, most = min(y for _, y in finite), max(y for _, y in finite)
        sentences.append(
            f"{line.name}: from {number(y0)} at {x_label} {_number(x0)} to {number(y1)} at {x_label} "
            f"{_number(x1)}, between {number(least)} and {number(most)}."
        )
    return f"{y_label} against {x_label}. " + " ".join(sentences)
