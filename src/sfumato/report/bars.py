# SPDX-License-Identifier: Apache-2.0
"""Bars as SVG: one for each name, with its number beside it, and a text alternative.

The text returned is well-formed XML, whatever the names and values. It refers to nothing outside.

Edge cases Without a bar, or if all are 0, the picture says so in its text alternative. A long name is cut.
"""

import math
from collections.abc import Mapping
from typing import Final

from sfumato.errors import InvalidParameterError
from sfumato.report.html import escape

__all__ = ["bar_chart"]

# In units of the picture, which is scaled to the width it is given.
_WIDTH, _ROW, _BAR = 480, 26, 16
_RIGHT = 60  # for numbers
_CHARACTER = 7.5  # the width of one in a name, about
_LONGEST: Final = 16  # characters of a name that fit
_FONT: Final = "font-family:system-ui,sans-serif;font-size:13px"
_COLOR: Final = "var(--series-1,#0072b2)"


def bar_chart(bars: Mapping[str, float], *, title: str) -> str:
    """Return an SVG picture of numbers, each a bar from 0.

    Args:
        bars: The numbers, by name, in order.
        title: The title of the picture.

    Returns:
        The SVG text.

    Raises:
        InvalidParameterError: If a number is negative or not finite.

    >>> picture = bar_chart({"cat": 3, "dog": 5}, title="Animals")
    >>> picture.startswith("<svg ") and picture.endswith("</svg>")
    True
    """
    if not all(math.isfinite(value) and value >= 0 for value in bars.values()):
        raise InvalidParameterError("bars must be finite numbers of 0 or more.")
    most = max(bars.values(), default=0.0) or 1.0
    left = 24 + _CHARACTER * min(_LONGEST, max((len(name) for name in bars), default=0))
    parts = [
        _bar(name, value, place, left=left, length=value / most * (_WIDTH - left - _RIGHT))
        for place, (name, value) in enumerate(bars.items())
    ]
    height = _ROW * max(1, len(bars))
    told = "; ".join(f"{name}: {value:,g}" for name, value in bars.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height}" '
        f'width="100%" style="{_FONT};color:inherit;max-width:{2 * _WIDTH}px"><title>{escape(title)}</title>'
        f"<desc>{escape(told or 'There are no values.')}</desc>{''.join(parts)}</svg>"
    )


def _bar(name: str, value: float, place: int, *, left: float, length: float) -> str:
    top = place * _ROW + (_ROW - _BAR) / 2
    shown = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}\u2026"
    ink = 'fill="currentColor"'
    return (
        f'<text x="{left - 8:.1f}" y="{top + 12:.1f}" text-anchor="end" {ink}>{escape(shown)}</text>'
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{length:.1f}" height="{_BAR}" rx="2" '
        f'style="fill:{_COLOR}"/>'
        f'<text x="{left + length + 8:.1f}" y="{top + 12:.1f}" {ink}>{value:,g}</text>'
    )
