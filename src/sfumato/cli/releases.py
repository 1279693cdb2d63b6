# SPDX-License-Identifier: Apache-2.0
"""Show and write releases: the JSON of `Release.to_json`, or a table for people.

Every command that spends states whether a ledger keeps it: `recorded` and `account` in its JSON, and a note
for people. A file that a command is to write is tried before anything is charged (`require_place`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sfumato.cli.show import show_facts, show_table, show_text
from sfumato.errors import InvalidParameterError

__all__ = ["hand_over", "model_facts", "require_place", "show_release"]

_NOT_SHOWN = ("format", "version", "name", "outcome", "value", "interval")


def show_release(found: Any, *, as_json: bool) -> None:
    """Print a `statistics.Release`: its JSON, or a table of its numbers and one of what holds for them."""
    from sfumato.statistics import export

    if as_json:
        show_text(found.to_json())
        return
    facts = export.facts(found)
    rest = {name: value for name, value in facts.items() if name not in _NOT_SHOWN}
    if found.parts is None:
        show_facts(found.name, _number(facts) | rest, as_json=False)
        return
    show_table(found.name, [_row(entry) for entry in facts["value"]])
    show_facts("", rest, as_json=False)


def hand_over(found: Any, out: str | None, show: Callable[[], None]) -> None:
    """Write a release that was paid for to a file, as CSV or JSON by its name, and show it.

    Each is done if the other fails: whatever reads our output may have ended, and a disk may be full by now.
    """
    try:
        if out is not None:
            (found.to_csv if Path(out).suffix.lower() == ".csv" else found.to_json)(out)
    finally:
        show()


def require_place(out: str | None, *, suffixes: tuple[str, ...], others: tuple[str | None, ...]) -> None:
    """Raise where a file could not be written, or is one of `others`, before what goes there is paid for."""
    if out is None:
        return
    place = Path(out)
    kept = [Path(other) for other in others if other is not None and Path(other).is_file()]
    if place.exists() and any(place.samefile(other) for other in kept):
        raise InvalidParameterError(f"--out {out!r} is the file of the data or of the ledger. Give another.")
    if suffixes and place.suffix.lower() not in suffixes:
        raise InvalidParameterError(f"--out must end in {' or '.join(suffixes)}, but {out!r} was given.")
    before = place.exists()
    try:
        with place.open("a"):  # leaves what is in it
            pass
        if not before:
            place.unlink()
    except OSError as error:
        raise InvalidParameterError(
            f"the file {out!r} cannot be written: {error.strerror}. Give another --out. Nothing was spent."
        ) from error


def model_facts(guarantee: Any, account: Any, notes: tuple[str, ...]) -> dict[str, Any]:
    """Return what a fitted model says beside its numbers, with the names that a release has for it."""
    from sfumato.ledger.recorded import is_recorded

    return {
        "guarantee": guarantee.to_dict(),
        "recorded": is_recorded(account),
        "account": None if account is None else account.name,
        "notes": list(notes),
    }


def _number(facts: dict[str, Any]) -> dict[str, Any]:
    value = facts["value"]
    return {"value": "failed" if value is None else value, "interval": _told(facts["interval"])}


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    """Return one part of a value for a table; its interval as text, which costs no column of its own."""
    return entry | {"interval": _told(entry["interval"])} if "value" in entry else entry


def _told(interval: dict[str, Any] | None) -> str:
    if interval is None:
        return "none"
    covers = ", ".join(interval["covers"])
    return f"{interval['lower']:.6g} to {interval['upper']:.6g} ({100 * interval['level']:g}%, {covers})"
