# SPDX-License-Identifier: Apache-2.0
"""What was measured, kept in one JSON file for each experiment.

Guarantee  A measurement that was kept is on disk: files are written whole after each case, so a killed run
           loses the cases that were being measured and nothing else. A file that cannot be read is put aside
           under another name, never overwritten. Measurements by other code are not mixed with new ones; the
           file that holds them is put aside as well.
Not here   Two commands that measure the same experiment in the same folder at once: the last one wins.
"""

import errno
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sfumato
from sfumato import _files, _json
from sfumato.errors import SfumatoError
from sfumato.experiments.catalog import Listed
from sfumato.experiments.experiment import Case, Row, Scale

__all__ = ["Kept", "ResultsNotKeptError", "load", "read"]


class ResultsNotKeptError(SfumatoError, OSError):
    """A measurement could not be written, such as on a full disk; those before it are kept."""


@dataclass(kw_only=True)
class Kept:
    """The measurements of one experiment at one scale.

    Attributes:
        path: The file.
        code: The mark of the code that measured.
        here: The machine at work.
        notes: What happened to an older file.
        facts: What else the file says of the measurements, such as the command and the machines.
    """

    path: Path
    code: str
    here: str = ""
    measured: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    notes: list[str] = field(default_factory=list[str])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    def has(self, case: Case) -> bool:
        """Whether a case was measured."""
        return _key(case) in self.measured

    def rows(self, cases: Sequence[Case]) -> list[Row]:
        """Return the cases that were measured, each with its measurement, in order."""
        return [{**case, **self.measured[_key(case)]["measured"]} for case in cases if self.has(case)]

    def seconds(self, cases: Sequence[Case]) -> float:
        """Return how long it took to measure these cases, in sum."""
        return sum(self.measured[_key(case)]["seconds"] for case in cases if self.has(case))

    def add(self, case: Case, measured: Mapping[str, Any], seconds: float) -> None:
        """Keep a measurement.

        Raises:
            ResultsNotKeptError: If it cannot be written.
        """
        entry = {"case": _json.plain(case), "measured": _json.plain(measured), "seconds": round(seconds, 3)}
        self.measured[_key(case)] = entry
        if self.here not in self.facts["machine"].split("; "):  # the older ones were measured elsewhere
            self.facts["machine"] = "; ".join(filter(None, (self.facts["machine"], self.here)))
        self._write()

    def show(self, summary: Mapping[str, Any]) -> None:
        """Keep what a page shows of the measurements, if there are any.

        Raises:
            ResultsNotKeptError: If it cannot be written.
        """
        self.facts["summary"] = _json.plain(summary)
        if self.measured:
            self._write()

    def _write(self) -> None:
        content = {**self.facts, "code": self.code, "cases": list(self.measured.values())}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _files.write_whole(self.path, (_json.dumps(content) + "\n").encode())
        except OSError as error:
            raise ResultsNotKeptError(_not_kept(self.path, error)) from error


def load(folder: Path, listed: Listed, scale: Scale) -> Kept:
    """Return what a folder has of an experiment, by the code as it is now.

    Args:
        folder: The folder of this scale's results.
        listed: The experiment.
        scale: How much is run.

    Returns:
        The measurements, none if there are none by this code.
    """
    path = folder / f"{listed.experiment.name}.json"
    kept = Kept(path=path, code=listed.code, here=machine(scale), facts=_facts(listed, scale))
    if not path.exists():
        return kept
    try:
        found = read(path)
    except ValueError as error:
        kept.notes.append(
            f"{path.name} could not be read ({error}); it is kept as {_aside(path, 'damaged').name}"
        )
        return kept
    if found["code"] != kept.code:
        kept.notes.append(
            f"older code measured {path.name}; it is kept as {_aside(path, found['code']).name}"
        )
        return kept
    kept.measured = {_key(entry["case"]): entry for entry in found["cases"]}
    kept.facts["machine"] = str(found.get("machine", ""))
    return kept


def read(path: Path) -> dict[str, Any]:
    """Return the content of a file of results.

    Raises:
        ValueError: If it is not one.
    """
    try:
        found: Any = json.loads(path.read_bytes())
        whole = isinstance(found["code"], str) and all(map(_is_entry, found["cases"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError("it is not a file of results") from error
    if not whole:
        raise ValueError("a part of it is missing")
    return found


def _is_entry(entry: dict[str, Any]) -> bool:
    kinds = {"case": dict, "measured": dict, "seconds": int | float}
    return all(isinstance(entry[name], kind) for name, kind in kinds.items())


def _key(case: Case) -> str:
    return json.dumps(_json.plain(case), sort_keys=True)


def _facts(listed: Listed, scale: Scale) -> dict[str, Any]:
    options = " --quick" if scale.quick else ""
    return {
        "name": listed.experiment.name,
        "scale": scale.name,
        "command": f"sfumato reproduce {listed.asked}{options}",
        "sfumato": sfumato.__version__,
        "machine": "",
    }


def machine(scale: Scale) -> str:
    """Return what the measurements were made with, in words."""
    import torch

    device = scale.device or ("cuda" if torch.cuda.is_available() else "cpu")
    where = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return f"{where}, Python {platform.python_version()}, torch {torch.__version__.split('+')[0]}"


def _aside(path: Path, why: str) -> Path:
    number = 1
    while (place := path.with_name(f"{path.stem}.{why}-{number}.json")).exists():
        number += 1
    path.replace(place)
    return place


def _not_kept(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {str(path.parent)!r} is full. Make room, or give another folder with --out, and "
            "run the same command again: what was measured before is kept."
        )
    return f"{str(path)!r} cannot be written: {error.strerror or error}. What was measured before is kept."
