# SPDX-License-Identifier: Apache-2.0
"""What an experiment is: cases to measure, and what to make of the measurements.

One file declares one experiment, as `EXPERIMENT = Experiment(...)`. It says which table or figure it repeats,
which cases there are (one for each setting and seed), how one case is measured, and how tables, figures and a
finding follow from all of them. Everything else is the same for all experiments: running cases in parallel,
keeping results, resuming, the page (`running`, `results`, `conclusions`, `summary_page`).

A case and what is measured are JSON: numbers, text, lists, and objects of these. A case decides its
measurement up to noise, so a case that was measured is not measured again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from sfumato import _check
from sfumato.errors import InvalidParameterError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Case", "Experiment", "Finding", "Row", "Scale", "Table", "Verdict"]

Case: TypeAlias = Mapping[str, Any]
Row: TypeAlias = Mapping[str, Any]  # a case together with what was measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much is run, and where.

    Args:
        quick: Small data that ships with the package, few steps and one seed or two: whether it works.
            False: the data and settings of the report.
        device: Where networks are trained, such as "cuda". None: a GPU if there is one.
    """

    quick: bool = False
    device: str | None = None

    @property
    def name(self) -> str:
        """`quick` or `full`."""
        return "quick" if self.quick else "full"


class Verdict(StrEnum):
    """What became of a claim.

    An experiment returns `CONFIRMED`, `REFUTED` or `PARTLY`. `NOT_TESTED` is the verdict of a quick run, and
    of a run in which not all cases were measured.
    """

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    PARTLY = "partly confirmed"
    NOT_TESTED = "not tested"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about a claim, in a sentence with its numbers.

    Args:
        verdict: What became of the claim.
        sentence: What was found.

    Raises:
        InvalidParameterError: If the verdict is no `Verdict`, or the sentence is empty.
    """

    verdict: Verdict
    sentence: str

    def __post_init__(self) -> None:
        _check.text(sentence=self.sentence)
        if not isinstance(self.verdict, Verdict):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            known = ", ".join(f"Verdict.{name}" for name in Verdict.__members__)
            raise InvalidParameterError(f"verdict must be one of {known}, but {self.verdict!r} was given.")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of results.

    Args:
        title: What it shows.
        heads: The names of the columns.
        rows: The cells, as they are to be shown.

    Raises:
        InvalidParameterError: If a row does not have one cell for each column.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.heads) for row in self.rows):
            raise InvalidParameterError(f"table {self.title!r}: each row needs {len(self.heads)} cells.")


def _nothing(rows: Sequence[Row]) -> dict[str, "Figure"]:
    return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A table or figure that can be made again.

    Args:
        name: Its name, such as "r1-table-2".
        report: Where it was published, such as "R1".
        shows: What of the report it repeats, such as ("Table 2", "Figure 1").
        title: What it is about.
        claim: What the report says, in a sentence.
        cases: From a scale to the cases, in order. Each is measured on its own.
        measure: From a case and a scale to what is measured.
        tables: From all rows, each a case with what was measured, to tables.
        figures: From all rows to figures by name.
        finding: From all rows to what was found. A quick run calls it too, to see that it works, and shows
            no verdict.
        data: The data sets that full scale needs.

    Raises:
        InvalidParameterError: If the name has other characters than a-z, 0-9 and hyphens.

    >>> experiment = Experiment(
    ...     name="my-squares", report="mine", shows=(), title="Squares", claim="They grow.",
    ...     cases=lambda scale: [{"x": x} for x in range(3)],
    ...     measure=lambda case, scale: {"square": case["x"] ** 2},
    ...     tables=lambda rows: [Table("Squares", ("x", "square"), [(r["x"], r["square"]) for r in rows])],
    ...     finding=lambda rows: Finding(Verdict.CONFIRMED, f"The last one is {rows[-1]['square']}."),
    ... )
    >>> experiment.name
    'my-squares'
    """

    name: str
    report: str
    shows: tuple[str, ...]
    title: str
    claim: str
    cases: Callable[[Scale], Sequence[Case]]
    measure: Callable[[Case, Scale], Mapping[str, Any]]
    tables: Callable[[Sequence[Row]], Sequence[Table]]
    finding: Callable[[Sequence[Row]], Finding]
    figures: Callable[[Sequence[Row]], Mapping[str, "Figure"]] = field(default=_nothing)
    data: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check.text(name=self.name, title=self.title, claim=self.claim)
        if not self.name.replace("-", "").isalnum() or self.name != self.name.lower():
            raise InvalidParameterError(
                f"name must have lower-case letters, digits and hyphens alone, not {self.name!r}."
            )
