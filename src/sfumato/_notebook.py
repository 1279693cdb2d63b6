# SPDX-License-Identifier: Apache-2.0
"""How objects show themselves in a notebook: panels, tables and bars as HTML without scripts.

Colors are those of the notebook: text inherits its color, and only bars have a color of their own, so that a
panel is readable in light and dark. Rooms below the reports use this module, too; it knows no room.

Guarantee  All text is escaped. Nothing is loaded, and nothing runs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from sfumato._markup import escape

__all__ = ["facts", "note", "panel", "paragraph", "rows", "share", "text", "warning"]

_EDGE = "1px solid rgba(128,128,128,.4)"
_CELL = f"text-align:left;padding:.2em 1em .2em 0;border-bottom:{_EDGE};vertical-align:top;background:none"
# Mid tones, which stand out from a white and from a black page.
_COLORS = "--series-1:#2a8fd0;--series-2:#dd6b20;--series-3:#16a37f;--series-4:#b5719d;--series-5:#9c8a1c"
_MOST = 50  # rows of a table; the rest is counted


def panel(title: str, *parts: str) -> str:
    """Return a panel with a title; `parts` are markup.

    >>> "&lt;script&gt;" in panel("<script>")
    True
    """
    return (
        f'<div style="{_COLORS};max-width:52em;overflow-x:auto">'
        f'<p style="font-weight:600;margin:.3em 0">{escape(title)}</p>{"".join(parts)}</div>'
    )


def paragraph(text: object) -> str:
    """Return a paragraph."""
    return f'<p style="margin:.4em 0;max-width:48em">{escape(text)}</p>'


def note(text: object) -> str:
    """Return a paragraph in small type."""
    return f'<p style="margin:.4em 0;max-width:60em;font-size:.85em;opacity:.8">{escape(text)}</p>'


def warning(text: object) -> str:
    """Return a paragraph that stands out."""
    edge = "border-left:.3em solid #dd6b20;padding-left:.6em;font-weight:600"
    return f'<p role="note" style="{edge};margin:.4em 0">{escape(text)}</p>'


def text(content: object) -> str:
    """Return text whose line breaks are kept."""
    return f'<pre style="white-space:pre-wrap;background:none;color:inherit">{escape(content)}</pre>'


def facts(named: Mapping[str, object]) -> str:
    """Return named values as a table of two columns; what is None is left out."""
    body = "".join(
        f'<tr><th scope="row" style="{_CELL};font-weight:600">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in named.items()
        if value is not None
    )
    return f'<table style="border-collapse:collapse;margin:.4em 0">{body}</table>'


def rows(heads: Sequence[str], content: Iterable[Sequence[object]]) -> str:
    """Return rows under column heads. A long table is cut, and says how many rows it leaves out."""
    listed = list(content)
    head = "".join(f'<th scope="col" style="{_CELL};font-weight:600">{escape(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in listed[:_MOST])
    left = len(listed) - _MOST
    more = note(f"{left} more rows are not shown.") if left > 0 else ""
    return (
        f'<table style="border-collapse:collapse;margin:.4em 0"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>{more}"
    )


def _cell(value: object) -> str:
    return f'<td style="{_CELL}">{"" if value is None else escape(value)}</td>'


def share(part: float, *, label: str) -> str:
    """Return a bar of which a part, from 0 to 1, is filled.

    >>> share(2.0, label="spent").count('width="200.0"')
    1
    """
    filled = 200 * min(1.0, max(0.0, part)) if math.isfinite(part) else 200
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 200 12" width="200" height="12">'
        f"<title>{escape(label)}</title>"
        '<rect width="200" height="12" rx="3" fill="currentColor" fill-opacity="0.15"/>'
        f'<rect width="{filled:.1f}" height="12" rx="3" style="fill:var(--series-1,#2a8fd0)"/></svg>'
        f'<span style="padding-left:.6em">{escape(label)}</span>'
    )
