# SPDX-License-Identifier: Apache-2.0
"""Pictures side by side as SVG, to judge an attack by eye.

The result is one text without scripts, fonts, images or links to load: it can be written to a file, or put
into a page that allows none of these. It shows what it is given: pictures of private rows are private.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.audit.models.classifier_queries import as_array
from sfumato.errors import InvalidParameterError

__all__ = ["gallery"]

_LEVELS: Final = 32  # shades of a channel: as many as the eye can tell apart in a small picture
_SIDE: Final = 64  # units of the drawing across a picture
_GAP: Final = 6
_NAMES: Final = 150  # units to the left, for the names of rows
_TOP: Final = 20

Pixels = npt.NDArray[np.float64]


def gallery(
    rows: Mapping[str, Any], *, bounds: tuple[float, float] = (0.0, 1.0), titles: Sequence[str] = ()
) -> str:
    """Return an SVG with a row of pictures under each name.

    Args:
        rows: Pictures by name: [count, height, width], or [count, channels, height, width].
        bounds: The values of black and white.
        titles: Titles of the columns.

    Returns:
        The SVG as text.

    Raises:
        InvalidParameterError: If there are no pictures, or they have another shape.

    >>> svg = gallery({"training": np.eye(8)[None], "inverted": np.eye(8)[None]}, titles=["0"])
    >>> svg[:4], svg.count("<g")
    ('<svg', 2)
    """
    _check.bounds(bounds=bounds)
    read = {name: _pixels(pictures, bounds) for name, pictures in rows.items()}
    count = max((len(pictures) for pictures in read.values()), default=0)
    if not count:
        raise InvalidParameterError("a gallery needs at least one row of pictures.")
    height = max(p.shape[1] / p.shape[2] for p in read.values()) * _SIDE
    parts = [_text(title, _NAMES + (i + 0.5) * (_SIDE + _GAP), 14) for i, title in enumerate(titles)]
    for place, (name, pictures) in enumerate(read.items()):
        top = _TOP + place * (height + _GAP)
        parts.append(_text(name, _NAMES - 10, top + height / 2 + 5, anchor="end"))
        parts += [_picture(p, _NAMES + i * (_SIDE + _GAP), top) for i, p in enumerate(pictures)]
    size = f"0 0 {_NAMES + count * (_SIDE + _GAP)} {_TOP + len(read) * (height + _GAP):g}"
    title = escape(f"Rows of {count} pictures: {', '.join(read)}.")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" width="100%" role="img" '
        f'style="font:13px system-ui,sans-serif;color:inherit"><title>{title}</title>{"".join(parts)}</svg>'
    )


def _pixels(pictures: Any, bounds: tuple[float, float]) -> Pixels:
    """Return pictures as whole shades in [count, height, width, 3]."""
    values = as_array(pictures).astype(np.float64)
    if values.ndim == 3:
        values = values[:, None]
    if values.ndim != 4 or values.shape[1] not in (1, 3) or 0 in values.shape:
        raise InvalidParameterError("pictures must be in [count, 1 or 3 channels, height, width].")
    if not np.isfinite(values).all():
        raise InvalidParameterError("a picture has a pixel that is NaN or infinite.")
    shades = ((values - bounds[0]) / (bounds[1] - bounds[0])).clip(0, 1) * (_LEVELS - 1)
    return np.broadcast_to(shades.round().transpose(0, 2, 3, 1), (*values.shape[:1], *values.shape[2:], 3))


def _picture(pixels: Pixels, left: float, top: float) -> str:
    """Return one path for each color: a square for each of its pixels."""
    size = _SIDE / pixels.shape[1]
    squares: dict[tuple[int, ...], list[str]] = {}
    for y, line in enumerate(pixels.astype(int).tolist()):
        for x, color in enumerate(line):
            squares.setdefault(tuple(color), []).append(f"M{x} {y}h1v1h-1z")
    paths = [f'<path fill="{_color(color)}" d="{"".join(where)}"/>' for color, where in squares.items()]
    move = f"translate({left:g} {top:g}) scale({size:g})"
    return f'<g transform="{move}" shape-rendering="crispEdges">{"".join(paths)}</g>'


def _color(shades: tuple[int, ...]) -> str:
    return "#" + "".join(f"{round(255 * shade / (_LEVELS - 1)):02x}" for shade in shades)


def _text(text: str, x: float, y: float, *, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'
