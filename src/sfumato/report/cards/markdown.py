# SPDX-License-Identifier: Apache-2.0
"""A card as Markdown. Names and notes are shown as text, never interpreted as Markdown or HTML.

Edge cases A line break in a text becomes a space: no text ends its paragraph, its row or its heading.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from sfumato._markup import visible
from sfumato.report.cards.contents import Part

__all__ = ["escaped", "written"]

# What marks up text; and addresses, which some pages turn into links: a name must not become one.
_SPECIAL = re.compile(r"(?i)[\\`*_{}\[\]|~#$!&<>@]|(?<=https:)/|(?<=http:)/|(?<=ftp:)/|(?<=www)\.")
_AS_ENTITIES = "&<>@/."


def escaped(text: object) -> str:
    """Return text in one line that Markdown shows as it is.

    >>> escaped("<i> *a* http://b")
    '&#60;i&#62; \\\\*a\\\\* http:&#47;/b'
    """
    return _SPECIAL.sub(_escaped, " ".join(visible(text).split()))


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return f"&#{ord(character)};" if character in _AS_ENTITIES else f"\\{character}"


def written(title: str, parts: Sequence[Part]) -> str:
    """Return a card as Markdown."""
    blocks = [f"# {escaped(title)}", *(block for part in parts for block in _blocks(part))]
    return "\n\n".join(blocks) + "\n"


def _blocks(part: Part) -> Iterator[str]:
    if part.heading:
        yield f"## {escaped(part.heading)}"
    if part.facts:
        yield _facts(part.facts)
    if part.sentences:
        yield f"> **Warning:** {escaped(part.sentences)}" if part.warning else escaped(part.sentences)
    if part.points:
        yield "\n".join(f"- {escaped(point)}" for point in part.points)
    if part.table is not None:
        yield _table(part.table.heads, part.table.rows)


def _facts(facts: Mapping[str, object]) -> str:
    return _table(("fact", "value"), [(name, value) for name, value in facts.items()])


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = [[_cell(value) for value in row] for row in (heads, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], ["---"] * len(heads), *cells[1:]))


def _cell(value: object) -> str:
    return "" if value is None else escaped(value)
