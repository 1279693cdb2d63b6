# SPDX-License-Identifier: Apache-2.0
"""Export of a release as JSON, CSV or a pandas frame, with numbers, intervals, guarantee and notes.

Nothing is computed from the data, so exporting costs nothing.

- JSON: one object. `version` is the version of its layout; the meaning of a field changes only together with
  the version. A single number has `value` and `interval`. If a release has many parts, `value` is a list, and
  each entry has its labels, its `value` and its `interval`. Parts that are names have only labels. `_json`
  defines how values are written.
- CSV: one row for each number, with the guarantee in every row. A release that failed or found nothing has
  one row without a number, so that its guarantee is kept. The column `outcome` distinguishes these cases.
- Formulas: keys are text from private data, and spreadsheets run text that begins with =, +, -, @, a tab or a
  line break. In CSV such text is prefixed with an apostrophe, as OWASP recommends.
"""

import csv
import io
import os
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato import _json
from sfumato.errors import InvalidParameterError, MissingDependencyError

if TYPE_CHECKING:
    from sfumato.statistics.release import Interval, Release

__all__ = ["VERSION", "cell_text", "facts", "to_csv", "to_json", "to_pandas", "written"]

VERSION = 1  # of the JSON's layout
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
_NO_INTERVAL = {"lower": None, "upper": None, "level": None, "covers": None}

Row = dict[str, Any]


def facts(release: "Release[Any]") -> Row:
    """Return a release as named plain values, as its JSON has them."""
    return {
        "format": "sfumato release",
        "version": VERSION,
        "name": release.name,
        "outcome": _outcome(release),
        **_value(release),
        "guarantee": release.guarantee.to_dict(),
        "recorded": release.recorded,
        "account": release.account,
        "notes": list(release.notes),
    }


def to_json(release: "Release[Any]") -> str:
    """Return a release as JSON."""
    return _json.dumps(facts(release))


def to_csv(release: "Release[Any]", *, escape_formulas: bool) -> str:
    """Return a release as CSV with a header."""
    rows = _rows(release)
    text = io.StringIO()
    writer = csv.writer(text)  # ends lines as RFC 4180 requires
    for cells in (rows[0].keys(), *(row.values() for row in rows)):
        writer.writerow([cell_text(value, escape_formulas=escape_formulas) for value in cells])
    return text.getvalue()


def to_pandas(release: "Release[Any]") -> Any:
    """Return a release as a pandas frame."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError(
            "to_pandas() needs pandas, which is not installed. Run: pip install pandas. to_json() and "
            "to_csv() work without it."
        ) from error
    frame: Any = pd.DataFrame(_rows(release))
    for name in ("value", "lower", "upper", "level"):
        frame[name] = pd.to_numeric(frame[name])  # also a column without any number
    return frame


def written(text: str, path: str | os.PathLike[str] | None) -> str:
    """Write text to a file, if a path is given, and return the text."""
    if path is not None:
        try:
            Path(path).write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            raise InvalidParameterError(
                f"the file {os.fspath(path)!r} cannot be written: {error.strerror}. The release is not lost: "
                "pass another path."
            ) from error
    return text


# --- parts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    labels: Row
    number: float | None = None
    interval: "Interval | None" = None


def _parts(release: "Release[Any]") -> list[_Part]:
    """Return the numbers, or the names, of a release; none if it failed."""
    known, parts = release.interval, release.parts
    if release.value is None:
        return []
    if parts is None:
        return [
            _Part(
                labels={}, number=_number(release), interval=known if not isinstance(known, tuple) else None
            )
        ]
    return [
        _Part(
            labels={name: column[i] for name, column in parts.labels.items()},
            number=None if parts.numbers is None else parts.numbers[i],
            interval=known[i] if isinstance(known, tuple) else None,
        )
        for i in range(parts.count)
    ]


def _number(release: "Release[Any]") -> float:
    if not isinstance(release.value, Real):
        raise InvalidParameterError(
            f"the release {release.name!r} has no labels for the parts of its value, so it cannot be "
            "exported. Pass parts=Parts(...) when the release is constructed."
        )
    return release.value  # type: ignore[return-value]  # every Real is one


def _outcome(release: "Release[Any]") -> str:
    if release.value is None:
        return "failed"
    return "nothing found" if release.parts is not None and release.parts.count == 0 else "released"


def _interval(interval: "Interval | None") -> Row | None:
    if interval is None:
        return None
    covers = [part.value for part in interval.covers]
    return {"lower": interval.lower, "upper": interval.upper, "level": interval.level, "covers": covers}


# --- JSON ------------------------------------------------------------------------------------------------


def _value(release: "Release[Any]") -> Row:
    parts = _parts(release)
    if release.parts is None:
        return _measured(parts[0] if parts else _Part(labels={}))
    numbered = release.parts.numbers is not None
    return {"value": [part.labels | (_measured(part) if numbered else {}) for part in parts]}


def _measured(part: _Part) -> Row:
    return {"value": part.number, "interval": _interval(part.interval)}


# --- the table -------------------------------------------------------------------------------------------


def _rows(release: "Release[Any]") -> list[Row]:
    """Return the rows of the table, at least one, with the same names in each."""
    promised = release.guarantee.to_dict()
    statement = promised.pop("text")
    fixed = promised | {
        "guarantee": statement,
        "recorded": release.recorded,
        "account": release.account,
        "notes": "; ".join(release.notes),
    }
    blank = _Part(labels=dict.fromkeys(release.parts.labels) if release.parts is not None else {})
    outcome = {"outcome": _outcome(release)}
    return [
        {"name": release.name} | _as_utf8(part.labels) | _columns(part) | outcome | fixed
        for part in _parts(release) or [blank]
    ]


def _as_utf8(labels: Row) -> Row:
    # pandas cannot hold other text, and exporting must not fail after the release was charged.
    return {name: _json.text(label) if isinstance(label, str) else label for name, label in labels.items()}


def _columns(part: _Part) -> Row:
    ends = _interval(part.interval)
    columns = _NO_INTERVAL if ends is None else ends | {"covers": ", ".join(ends["covers"])}
    return {"value": part.number} | columns


def cell_text(value: Any, *, escape_formulas: bool) -> str:
    """Return a value as one cell of CSV."""
    if isinstance(value, float):
        return repr(float(value))  # all digits, and "inf", which CSV readers understand
    found = _json.plain(value)
    if not isinstance(found, str):
        return "" if found is None else str(found).lower() if isinstance(found, bool) else str(found)
    return f"'{found}" if escape_formulas and found.startswith(_FORMULAS) else found
