# SPDX-License-Identifier: Apache-2.0
"""What follows from the measurements of an experiment: its tables and its finding.

Failure    An error in `tables` or `finding` of an experiment becomes a sentence with the line of the file, as
           that of a case does: what was measured is kept, and other experiments go on.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from sfumato.errors import SfumatoError
from sfumato.experiments.experiment import Experiment, Finding, Row, Scale, Table, Verdict

__all__ = ["NOT_ALL", "Conclusion", "conclude", "told"]

NOT_ALL: Final = Finding(Verdict.NOT_TESTED, "Not all cases were measured.")
_FAILED: Final = Finding(Verdict.NOT_TESTED, "The finding could not be computed.")
_RANDOM: Final = "A quick run shows that it works; its numbers, of small data and few steps, mean nothing."
_EXACT: Final = "A quick run shows that it works; it has too few cases for a verdict."
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Conclusion:
    """What was found, the tables, and why any of them could not be computed."""

    finding: Finding = NOT_ALL
    tables: Sequence[Table] = ()
    errors: list[str] = field(default_factory=list[str])


def conclude(experiment: Experiment, scale: Scale, rows: Sequence[Row], *, file: str | None) -> Conclusion:
    """Compute the tables and the finding of an experiment of which all cases were measured.

    Args:
        experiment: The experiment.
        scale: How much was run. The finding of a quick run is computed, to see that it works, and not told.
        rows: All cases with what was measured.
        file: The file of the experiment, whose line an error names.

    Returns:
        What was found.
    """
    errors: list[str] = []

    def tried(name: str, compute: Callable[[], _T]) -> _T | None:
        try:
            return compute()
        except Exception as error:  # of whatever an experiment calls: it is told, and others go on
            errors.append(f"{name} failed: {told(error, file)}")
            return None

    tables = tried("tables", lambda: list(map(_table, experiment.tables(rows))))
    found = tried("finding", lambda: _finding(experiment.finding(rows)))
    if found is not None and scale.quick:
        found = Finding(Verdict.NOT_TESTED, _RANDOM if any("seed" in row for row in rows) else _EXACT)
    return Conclusion(finding=found or _FAILED, tables=tables or (), errors=errors)


def told(error: BaseException, file: str | None) -> str:
    """Return an error in a sentence, with the last line of a file that led to it.

    Args:
        error: The error.
        file: The path of the file; only its name is told.

    Returns:
        The sentence.

    >>> told(ValueError("x is negative"), None)
    'ValueError: x is negative'
    """
    if isinstance(error, SyntaxError):
        said, lines = f"{type(error).__name__}: {error.msg}", [error.lineno] * (error.filename == file)
    else:
        said = str(error) if isinstance(error, SfumatoError) else f"{type(error).__name__}: {error}"
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file
        ]
    if isinstance(error, AttributeError) and error.obj is Verdict:
        said += f". There are {', '.join(Verdict.__members__)}"
    return f"{said} ({Path(str(file)).name}, line {lines[-1]})" if lines else said


def _table(made: object) -> Table:
    if not isinstance(made, Table):
        raise TypeError(f"it returned {type(made).__name__} in a list of Table(title, heads, rows)")
    return made


def _finding(made: object) -> Finding:
    if not isinstance(made, Finding):
        raise TypeError(f"it returned {type(made).__name__}, not Finding(verdict, sentence)")
    return made
