# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages: light and dark, for small and large screens and for print.

The page has no script and refers to nothing outside, and its own policy forbids the browser to load anything.
Text that goes through `escape` is shown as text, never interpreted as markup.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from sfumato import _files
from sfumato._markup import escape

__all__ = ["cards_list", "escape", "facts_table", "page", "rows_table", "section", "write_report"]

_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #5a6270; --paper: #fbfaf7; --card: #ffffff;
  --edge: #dcd8cf; --mark: #0072b2; --warn: #8a3b00; --warn-paper: #fff1e3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e6e1; --soft: #a9adb6; --paper: #16181c; --card: #1f2228; --edge: #363a43;
    --mark: #6cb8ea; --warn: #ffc08a; --warn-paper: #3a2412; --series-1: #6cb8ea; --series-2: #ff9d5c;
    --series-3: #4fd0a5; --series-4: #dda0c3; --series-5: #d8bf55; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
.lead { color: var(--soft); font-size: 1.1rem; margin: 0; }
.cards, .curves { display: grid; gap: .75rem; }
.cards { grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); margin: 1.5rem 0; }
.curves { grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.cards > div, figure, pre { background: var(--card); border: 1px solid var(--edge); border-radius: .6rem;
  padding: .8rem 1rem; margin: 0; }
.cards dt { color: var(--soft); font-size: .85rem; }
.cards dd { margin: 0; font-size: 1.15rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.promise { border-left: .3rem solid var(--mark); padding: .1rem 0 .1rem 1rem; }
.warning { background: var(--warn-paper); color: var(--warn); border-radius: .6rem; padding: .8rem 1rem;
  font-weight: 600; }
figcaption { font-weight: 600; margin-bottom: .25rem; }
.scroll, .chart { overflow-x: auto; }
.chart { max-width: 44rem; }
.chart svg { display: block; min-width: 30rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--edge);
  vertical-align: top; overflow-wrap: break-word; font-variant-numeric: tabular-nums; }
th { font-weight: 600; }
table:has(th[scope="col"]:nth-child(5)) { min-width: 44rem; }
.facts td { overflow-wrap: anywhere; }
.facts th { width: 25%; min-width: 9rem; }
.warned td { color: var(--warn); font-weight: 600; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: .85rem/1.5 ui-monospace, monospace; }
summary { cursor: pointer; padding: .75rem 0; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
@media print { figure, .cards > div, pre { break-inside: avoid; } }
"""


def section(heading: str, *content: str) -> str:
    """Return a part of a page; `content` is markup."""
    return f"<section><h2>{escape(heading)}</h2>{''.join(content)}</section>"


def cards_list(cards: Mapping[str, object]) -> str:
    """Return a few named values as cards."""
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in cards.items()
    )
    return f'<dl class="cards">{shown}</dl>'


def facts_table(facts: Mapping[str, object]) -> str:
    """Return named values as a table of two columns."""
    rows = (
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f'<div class="scroll"><table class="facts">{"".join(rows)}</table></div>'


def rows_table(
    heads: Sequence[str], rows: Sequence[Sequence[object]], *, warned: Collection[int] = ()
) -> str:
    """Return rows under column heads; None is an empty cell. Rows whose number is in `warned` stand out."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    marks = (' class="warned"' if number in warned else "" for number in range(len(rows)))
    body = "".join(
        f"<tr{mark}>{''.join(map(_cell, row))}</tr>" for mark, row in zip(marks, rows, strict=True)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: object) -> str:
    return f"<td>{'' if value is None else escape(value)}</td>"


def page(title: str, *content: str) -> str:
    """Return a whole HTML page.

    Args:
        title: The title, as plain text.
        content: Parts of the page, as markup.

    Returns:
        The page.

    >>> page("A run", "<p>done</p>").splitlines()[0]
    '<!doctype html>'
    """
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            "<main>",
            *content,
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def write_report(path: str | os.PathLike[str], html: str) -> Path:
    """Write a page to a file, whole or not at all.

    Args:
        path: Where to write. Folders are made if needed.
        html: The page.

    Returns:
        The path of the file.
    """
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    _files.write_whole(place, html.encode())
    return place
