# SPDX-License-Identifier: Apache-2.0
"""Small images as one picture: a grid with a row of images for each name, as SVG text or as a PNG file.

A page may load nothing, so images in SVG text are drawn as paths: one for each shade, made of runs of equal
pixels. Gray images have 16 shades, color images 6 of each color. SVG text has a text alternative. A PNG file
has all shades, and no names.

The SVG text is well-formed XML, whatever the names and values. It refers to nothing outside.

Edge cases A value that is not finite is drawn red, so that it is seen. Values beyond 0 and 1 are clipped.
           Without an image the picture says so in its text alternative.
"""

import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError
from sfumato.report.html import escape

__all__ = ["picture_file", "picture_grid"]

_GRAYS: Final = 16
_SHADES: Final = 6  # of each color
_BROKEN: Final = "#ff0000"
_GAP: Final = 2  # pixels between images
_EMPTY: Final = -1.0  # of a pixel between them
_ENLARGED: Final = 32  # pixels, up to which images in files are enlarged by a whole factor
_NAME: Final = 0.6  # height of a name, in heights of an image
_FONT: Final = "font-family:system-ui,sans-serif"


def picture_grid(images: Mapping[str, Any], *, title: str) -> str:
    """Return an SVG picture of images, a row for each name.

    Args:
        images: Arrays [images, channels, height, width] from 0 to 1 by name, with 1 or 3 channels.
        title: The title of the picture.

    Returns:
        The SVG text.

    Raises:
        InvalidParameterError: If arrays have another shape, or images differ in size.

    >>> picture = picture_grid({"seven": np.zeros((2, 1, 8, 8))}, title="Samples")
    >>> picture.startswith("<svg ") and picture.endswith("</svg>")
    True
    """
    rows = {name: _checked(each) for name, each in images.items()}
    whole, height = _laid_out(rows)
    left = max((len(name) for name in rows), default=0) * height * _NAME * _NAME + _GAP
    names = [
        f'<text x="{left - _GAP:.1f}" y="{(place + 0.7) * (height + _GAP):.1f}" text-anchor="end" '
        f'fill="currentColor">{escape(name)}</text>'
        for place, name in enumerate(rows)
    ]
    told = "; ".join(f"{name}: {len(each)} images" for name, each in rows.items()) or "There are no images."
    box = f"0 0 {left + whole.shape[2]:.1f} {whole.shape[1]}"
    style = f"{_FONT};font-size:{height * _NAME:.2f}px;color:inherit;max-width:60rem"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="{box}" width="100%" '
        f'style="{style}" shape-rendering="crispEdges"><title>{escape(title)}</title>'
        f'<desc>{escape(told)}</desc>{"".join(names)}<g transform="translate({left:.1f} 0)">'
        f"{''.join(_paths(whole))}</g></svg>"
    )


def picture_file(images: Mapping[str, Any]) -> bytes:
    """Return a PNG picture of images, a row for each name. Names are not in the picture.

    Args:
        images: Arrays [images, channels, height, width] from 0 to 1 by name, with 1 or 3 channels.

    Returns:
        The content of a .png file. Small images are enlarged.

    Raises:
        InvalidParameterError: If arrays have another shape, or images differ in size.

    >>> picture_file({"seven": np.zeros((2, 1, 8, 8))})[1:4]
    b'PNG'
    """
    whole, height = _laid_out({name: _checked(each) for name, each in images.items()})
    colors = np.repeat(whole, 3 // len(whole), axis=0)  # [3, height, width]
    drawn = np.rint(np.nan_to_num(colors) * 255).astype(np.uint8)
    drawn[:, (whole == _EMPTY).any(axis=0)] = 255
    drawn[:, np.isnan(whole).any(axis=0)] = np.array([[255], [0], [0]])
    scale = max(1, _ENLARGED // height)
    return _png(drawn.repeat(scale, axis=1).repeat(scale, axis=2))


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return a PNG file of colors [3, height, width] (PNG specification, sections 5 and 11.2)."""
    _, height, width = pixels.shape
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each begins with its filter: none
    lines[:, 1:] = pixels.transpose(1, 2, 0).reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits of each of three colors
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _laid_out(rows: Mapping[str, npt.NDArray[np.float64]]) -> tuple[npt.NDArray[np.float64], int]:
    """Return the pixels of the whole grid, with gaps between images, and the height of an image."""
    sizes = {each.shape[1:] for each in rows.values()}
    if len(sizes) > 1:
        raise InvalidParameterError("all images of a grid must have the same size.")
    channels, height, width = next(iter(sizes), (1, 1, 1))
    most = max((len(each) for each in rows.values()), default=0)
    shape = (channels, max(1, len(rows)) * (height + _GAP), max(1, most) * (width + _GAP))
    whole = np.full(shape, _EMPTY)
    for place, each in enumerate(rows.values()):
        for number, image in enumerate(each):
            top, start = place * (height + _GAP), number * (width + _GAP)
            whole[:, top : top + height, start : start + width] = image
    return whole, height


def _checked(images: Any) -> npt.NDArray[np.float64]:
    """Return images whose pixels are from 0 to 1, NaN where they are not finite."""
    found = np.asarray(images, dtype=np.float64)
    if found.ndim != 4 or found.shape[1] not in (1, 3):
        raise InvalidParameterError(
            "images must be [images, channels, height, width] with 1 or 3 channels, but the shape is "
            f"{list(found.shape)}."
        )
    return np.where(np.isfinite(found), np.clip(found, 0.0, 1.0), np.nan)


def _paths(pixels: npt.NDArray[np.float64]) -> list[str]:
    """Return one path for each shade; an empty pixel is not drawn."""
    levels = (_GRAYS if len(pixels) == 1 else _SHADES) - 1
    broken = np.isnan(pixels).any(axis=0)
    steps = np.rint(np.nan_to_num(pixels) * levels).astype(np.int64)
    codes = sum(steps[k] * (levels + 1) ** k for k in range(len(steps)))
    codes = np.where(broken, -2, np.where((pixels < 0).any(axis=0), -1, codes))
    runs: dict[int, list[str]] = {}
    for y, row in enumerate(codes):
        starts = np.flatnonzero(np.diff(row, prepend=row[0] - 1))
        for start, end in zip(starts, [*starts[1:], len(row)], strict=True):
            if row[start] != -1:
                runs.setdefault(int(row[start]), []).append(f"M{start} {y}h{end - start}v1h-{end - start}z")
    return [
        f'<path fill="{_color(code, levels, len(pixels))}" d="{"".join(found)}"/>'
        for code, found in runs.items()
    ]


def _color(code: int, levels: int, channels: int) -> str:
    if code == -2:
        return _BROKEN
    parts = [code // (levels + 1) ** k % (levels + 1) for k in range(channels)]
    return "#" + "".join(f"{round(255 * part / levels):02x}" for part in (parts * 3)[:3])
