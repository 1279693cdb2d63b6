# SPDX-License-Identifier: Apache-2.0
"""A small experiment in a file, as a researcher would write one."""

from pathlib import Path

TEXT = """
from sfumato.experiments import Experiment, Finding, Table, Verdict


def measure(case, scale):
    if case["x"] == FAILS:
        raise ValueError("this case is hopeless")
    return {"square": case["x"] ** 2}


EXPERIMENT = Experiment(
    name="squares",
    report="mine",
    shows=("Table 1",),
    title="Squares",
    claim="They grow.",
    cases=lambda scale: [{"x": x, "seed": 0} for x in range(3)],
    measure=measure,
    tables=lambda rows: [Table("Squares", ("x", "square"), [(r["x"], r["square"]) for r in rows])],
    finding=lambda rows: Finding(Verdict.CONFIRMED, f"The last one is {rows[-1]['square']}."),
)
"""


def squares(folder: Path, *, fails: int | None = None, more: str = "") -> str:
    """Write the experiment to a file; return its path."""
    path = folder / "squares.py"
    path.write_text(f"FAILS = {fails}\n{TEXT}\n{more}")
    return str(path)
