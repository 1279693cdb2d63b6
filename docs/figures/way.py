# SPDX-License-Identifier: Apache-2.0
"""Draw the way that data goes, once for light and once for dark pages: `python docs/figures/way.py`.

Colors are those of Okabe and Ito (2008), which people with color blindness can tell apart. Each box also says
in words on which side it is.
"""

from html import escape
from pathlib import Path
from string import Template

WIDTH, HEIGHT, GAP, MARGIN = 218, 116, 40, 6
TITLE = (
    "The way of data: private data, the door, a question to the ledger, a computation, a release, an audit"
)
BOXES = [  # column, row, side, title, lines
    (0, 0, "private", "Private data", ("a table, a file,", "rows to train on")),
    (1, 0, "private", "sf.open", ("the only door: whose rows", "these are, and the budget")),
    (2, 0, "record", "May I?", ("the ledger reserves the cost", "no: refused, nothing is read")),
    (2, 1, "private", "Compute", ("statistics, models, networks", "or synthetic rows, with noise")),
    (1, 1, "public", "Release", ("a value and its guarantee:", "epsilon, delta, relation, unit")),
    (0, 1, "public", "Audit", ("attack it: is the measured", "epsilon below the claim?")),
]
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


def corner(column: int, row: int) -> tuple[int, int]:
    """Return the upper left corner of a box."""
    return MARGIN + column * (WIDTH + GAP), MARGIN + row * (HEIGHT + GAP)


def box(column: int, row: int, side: str, title: str, lines: tuple[str, ...], theme: dict[str, str]) -> str:
    """Return one box with its texts."""
    x, y = corner(column, row)
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


def arrows(color: str) -> str:
    """Return the arrows from box to box: to the right, down, and back to the left."""
    drawn = ""
    for column, row, *_ in BOXES[:-1]:
        x, y = corner(column, row)
        if row == 0 and column < 2:
            path = f"M {x + WIDTH + 6} {y + HEIGHT // 2} h {GAP - 18}"
        elif row == 0:
            path = f"M {x + WIDTH // 2} {y + HEIGHT + 6} v {GAP - 18}"
            place = f'x="{x + WIDTH // 2 + 10}" y="{y + HEIGHT + 27}"'
            drawn += f'  <text {place} fill="{color}" font-size="14">yes</text>\n'
        else:
            path = f"M {x - 6} {y + HEIGHT // 2} h {18 - GAP}"
        drawn += ARROW.format(path, color)
    return drawn


def picture(theme: dict[str, str]) -> str:
    """Return the whole picture as SVG."""
    width, height = 2 * MARGIN + 3 * WIDTH + 2 * GAP, 2 * MARGIN + 2 * HEIGHT + GAP
    marker = (
        '  <marker id="end" viewBox="0 0 10 10" refX="5" refY="5" markerWidth="5" markerHeight="5" '
        f'orient="auto-start-reverse"><path d="M 0 0 L 10 5 L 0 10 z" fill="{theme["soft"]}"/></marker>\n'
    )
    boxes = "".join(box(*each, theme=theme) for each in BOXES)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, Helvetica, Arial, sans-serif">\n  <title>{TITLE}</title>\n'
        f"{marker}{boxes}{arrows(theme['soft'])}</svg>\n"
    )


if __name__ == "__main__":
    for name, theme in THEMES.items():
        Path(__file__).with_name(f"way-{name}.svg").write_text(picture(theme))
