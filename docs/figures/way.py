# SPDX-License-Identifier: Apache-2.0
"""Draw the way that data goes, for light and dark pages, wide and for phones: `python docs/figures/way.py`.

Colors are those of Okabe and Ito (2008), which people with color blindness can tell apart. Each box also says
in words on which side it is.
"""

from html import escape
from itertools import product
from pathlib import Path
from string import Template

WIDTH, HEIGHT, GAP, MARGIN = 218, 116, 40, 6
TITLE = (
    "The way of data: private data, the door, a question to the ledger, a computation, a release, an audit"
)
BOXES = [  # in order: side, title, lines
    ("private", "Private data", ("a table, a file,", "rows to train on")),
    ("private", "sf.open", ("the only door: whose rows", "these are, and the budget")),
    ("record", "May I?", ("the ledger reserves the cost", "no: refused, nothing is read")),
    ("private", "Compute", ("statistics, models, networks", "or synthetic rows, with noise")),
    ("public", "Release", ("a value and its guarantee:", "epsilon, delta, relation, unit")),
    ("public", "Audit", ("attack it: is the measured", "epsilon below the claim?")),
]
QUESTION = 2  # the box that is left with "yes"
COLUMNS = {"": 3, "-narrow": 2}
SIDES = {"private": "private side", "record": "record", "public": "may be published"}
THEMES = {
    "light": {
        "ground": "#ffffff", "ink": "#1b1f24", "soft": "#4a5058",
        "private": "#d55e00", "record": "#0072b2", "public": "#00795a",
    },
    "dark": {
        "ground": "#22252e", "ink": "#f2f3f5", "soft": "#c3c8d0",
        "private": "#f08c3a", "record": "#56b4e9", "public": "#2fc79a",
    },
}  # fmt: skip
BOX = Template("""\
  <rect x="$x" y="$y" width="$width" height="$height" rx="10" $style/>
  <text x="$left" y="$first" fill="$color" font-size="12">$side</text>
  <text x="$left" y="$second" fill="$ink" font-size="20" font-weight="600">$title</text>
""")
ARROW = '  <path d="{}" stroke="{}" stroke-width="2.5" fill="none" marker-end="url(#end)"/>\n'


def place(number: int, columns: int) -> tuple[int, int]:
    """Return column and row of a box: rows go to the right and to the left by turns."""
    row, column = divmod(number, columns)
    return (columns - 1 - column if row % 2 else column), row


def corner(number: int, columns: int) -> tuple[int, int]:
    """Return the upper left corner of a box."""
    column, row = place(number, columns)
    return MARGIN + column * (WIDTH + GAP), MARGIN + row * (HEIGHT + GAP)


def box(number: int, columns: int, theme: dict[str, str]) -> str:
    """Return one box with its texts."""
    side, title, lines = BOXES[number]
    x, y = corner(number, columns)
    places = {"x": x, "y": y, "left": x + 13, "first": y + 22, "second": y + 49}
    style = f'fill="{theme["ground"]}" stroke="{theme[side]}" stroke-width="2.5"'
    words = {"side": SIDES[side], "title": title, "color": theme[side], "ink": theme["ink"], "style": style}
    drawn = BOX.substitute(places, width=WIDTH, height=HEIGHT, **words)
    soft = f'fill="{theme["soft"]}" font-size="13.5"'
    texts = (
        f'  <text x="{x + 13}" y="{y + 77 + 20 * i}" {soft}>{escape(line)}</text>\n'
        for i, line in enumerate(lines)
    )
    return drawn + "".join(texts)


def arrow(number: int, columns: int, color: str) -> str:
    """Return the arrow from a box to the next one: to the right, down, or to the left."""
    (x, y), (to, below) = corner(number, columns), corner(number + 1, columns)
    if below > y:
        path = f"M {x + WIDTH // 2} {y + HEIGHT + 6} v {GAP - 18}"
        word = f'x="{x + WIDTH // 2 + 10}" y="{y + HEIGHT + 27}"'
    elif to > x:
        path = f"M {x + WIDTH + 6} {y + HEIGHT // 2} h {GAP - 18}"
        word = f'x="{x + WIDTH + 8}" y="{y + HEIGHT // 2 - 12}"'
    else:
        path = f"M {x - 6} {y + HEIGHT // 2} h {18 - GAP}"
        word = f'x="{x - GAP + 8}" y="{y + HEIGHT // 2 - 12}"'
    said = f'  <text {word} fill="{color}" font-size="14">yes</text>\n' if number == QUESTION else ""
    return said + ARROW.format(path, color)


def picture(theme: dict[str, str], columns: int) -> str:
    """Return the whole picture as SVG."""
    rows = len(BOXES) // columns
    width = 2 * MARGIN + columns * WIDTH + (columns - 1) * GAP
    height = 2 * MARGIN + rows * HEIGHT + (rows - 1) * GAP
    marker = (
        '  <marker id="end" viewBox="0 0 10 10" refX="5" refY="5" markerWidth="5" markerHeight="5" '
        f'orient="auto-start-reverse"><path d="M 0 0 L 10 5 L 0 10 z" fill="{theme["soft"]}"/></marker>\n'
    )
    boxes = "".join(box(number, columns, theme) for number in range(len(BOXES)))
    arrows = "".join(arrow(number, columns, theme["soft"]) for number in range(len(BOXES) - 1))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, Helvetica, Arial, sans-serif">\n  <title>{TITLE}</title>\n'
        f"{marker}{boxes}{arrows}</svg>\n"
    )


if __name__ == "__main__":
    for (name, theme), (size, columns) in product(THEMES.items(), COLUMNS.items()):
        Path(__file__).with_name(f"way-{name}{size}.svg").write_text(picture(theme, columns))
