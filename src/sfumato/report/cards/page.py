# SPDX-License-Identifier: Apache-2.0
"""A card as an HTML page, which loads nothing and runs nothing (`report.html`)."""

from collections.abc import Iterator, Sequence

from sfumato.report.cards.contents import Part
from sfumato.report.html import escape, facts_table, page, rows_table

__all__ = ["written"]


def written(title: str, parts: Sequence[Part]) -> str:
    """Return a card as an HTML page."""
    return page(title, f"<header><h1>{escape(title)}</h1></header>", *map(_section, parts), _FOOTER)


_FOOTER = "<footer><p>Written by sfumato. This page loads nothing and runs nothing.</p></footer>"


def _section(part: Part) -> str:
    heading = f"<h2>{escape(part.heading)}</h2>" if part.heading else ""
    return f"<section>{heading}{''.join(_content(part))}</section>"


def _content(part: Part) -> Iterator[str]:
    if part.facts:
        yield facts_table(part.facts)
    if part.sentences:
        mark = ' class="warning" role="note"' if part.warning else ""
        yield f"<p{mark}>{escape(part.sentences)}</p>"
    if part.points:
        yield f"<ul>{''.join(f'<li>{escape(point)}</li>' for point in part.points)}</ul>"
    if part.table is not None:
        yield rows_table(part.table.heads, part.table.rows)
