# SPDX-License-Identifier: Apache-2.0
"""How releases and queries show themselves in a notebook: values with intervals, and what they cost.

Only what was released is shown: the noisy value, its interval, its guarantee. A query shows what it would do
and cost; nothing is computed for that.
"""

from typing import TYPE_CHECKING, Any

from sfumato import _notebook
from sfumato.report import notebook

if TYPE_CHECKING:
    from sfumato.statistics.query import Query
    from sfumato.statistics.release import Interval, Parts, Release

__all__ = ["query_view", "release_view"]

_DIGITS = 6
_LONGEST = 2000  # characters of a value that has no table


def release_view(release: "Release[Any]") -> str:
    """Return the value of a release, as a number or a table with a figure, and what it cost."""
    return _notebook.panel(
        release.name,
        _value(release),
        _notebook.facts({**release.guarantee.shown(), "account": release.account}),
        *map(_notebook.note, release.notes),
    )


def _value(release: "Release[Any]") -> str:
    if release.value is None:
        return _notebook.paragraph("The mechanism failed, which is part of the release.")
    if release.parts is not None:
        return _table(release.parts, release.interval) + _bars(release.parts, release.name)
    interval = release.interval
    shown = f"{release.value:.{_DIGITS}g}" if isinstance(release.value, float) else str(release.value)
    within = "" if interval is None or isinstance(interval, tuple) else f" ({interval})"
    return _notebook.paragraph(f"{shown[:_LONGEST]}{within}")


def _table(parts: "Parts", intervals: "Interval | tuple[Interval, ...] | None") -> str:
    if parts.count == 0:
        return _notebook.paragraph("Nothing was found.")
    each = intervals if isinstance(intervals, tuple) and len(intervals) == parts.count else None
    heads = (
        *parts.labels,
        *(() if parts.numbers is None else ("value",)),
        *(() if each is None else ("lower", "upper")),
    )
    return _notebook.rows(heads, [_row(parts, each, place) for place in range(parts.count)])


def _row(parts: "Parts", intervals: "tuple[Interval, ...] | None", place: int) -> tuple[object, ...]:
    labels = tuple(column[place] for column in parts.labels.values())
    number = () if parts.numbers is None else (f"{parts.numbers[place]:.{_DIGITS}g}",)
    if intervals is None:
        return (*labels, *number)
    known = intervals[place]
    return (*labels, *number, f"{known.lower:.{_DIGITS}g}", f"{known.upper:.{_DIGITS}g}")


def _bars(parts: "Parts", title: str) -> str:
    """Return a figure of the numbers, if each has a name of its own."""
    if parts.numbers is None:
        return ""
    names = [", ".join(map(str, labels)) for labels in zip(*parts.labels.values(), strict=True)]
    if len(set(names)) != parts.count:
        return ""
    return notebook.bars(dict(zip(names, parts.numbers, strict=True)), title=title)


def query_view(query: "Query[Any]") -> str:
    """Return what a query would compute and what it would cost."""
    return _notebook.panel(
        f"Query: {query.question.name}. Nothing is computed or charged before release()",
        _notebook.facts(
            {
                **query.guarantee.shown(),
                "rows of a unit that count": f"at most {query.data.contribution_bound}",
            }
        ),
        _notebook.text(query.plan()),
    )
