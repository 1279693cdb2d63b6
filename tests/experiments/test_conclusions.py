# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Experiment, Finding, Scale, Table, Verdict
from sfumato.experiments.conclusions import conclude, told

QUICK, FULL = Scale(quick=True), Scale()
FOUND = Finding(Verdict.REFUTED, "They shrink.")


def concluded(scale=FULL, rows=({"x": 1},), **changed):
    parts = {
        "tables": lambda rows: [Table("Squares", ("x",), [(r["x"],) for r in rows])],
        "finding": lambda rows: FOUND,
    }
    experiment = Experiment(
        name="squares",
        report="mine",
        shows=(),
        title="Squares",
        claim="They grow.",
        cases=lambda scale: rows,
        measure=lambda case, scale: {},
        **{**parts, **changed},
    )
    return conclude(experiment, scale, rows, file=__file__)


def test_the_finding_and_the_tables_are_those_of_the_experiment():
    made = concluded()
    assert made.finding == FOUND and [table.rows for table in made.tables] == [[(1,)]] and made.errors == []


def test_a_quick_run_computes_the_finding_and_shows_no_verdict():
    asked = []

    def finding(rows):
        asked.append(rows)
        return FOUND

    made = concluded(QUICK, finding=finding)
    assert asked and made.finding.verdict is Verdict.NOT_TESTED and "too few cases" in made.finding.sentence
    random = concluded(QUICK, rows=({"x": 1, "seed": 0},))
    assert "mean nothing" in random.finding.sentence


@pytest.mark.parametrize("scale", [QUICK, FULL])
@pytest.mark.parametrize(
    ("finding", "said"),
    [
        (lambda rows: Finding(Verdict.CONFIRMD, "x"), "There are CONFIRMED, REFUTED, PARTLY, NOT_TESTED"),
        (lambda rows: Finding("confirmed", "x"), "must be one of Verdict.CONFIRMED"),
        (lambda rows: None, "it returned NoneType, not Finding"),
        (lambda rows: rows[7], "IndexError"),
    ],
)
def test_a_finding_that_fails_is_told_with_the_line_and_tables_stay(scale, finding, said):
    made = concluded(scale, finding=finding)
    assert made.finding.verdict is Verdict.NOT_TESTED and made.tables
    assert made.errors[0].startswith("finding failed: ") and said in made.errors[0]


def test_the_line_of_the_file_is_told_without_its_folder():
    made = concluded(finding=lambda rows: rows[0]["y"])
    assert made.errors[0].startswith("finding failed: KeyError: 'y' (test_conclusions.py, line ")
    assert told(ValueError("no"), "/somewhere/else.py") == "ValueError: no"


@pytest.mark.parametrize("tables", [lambda rows: ["x"], lambda rows: None, lambda rows: [rows[7]]])
def test_tables_that_fail_are_told_and_the_finding_stays(tables):
    made = concluded(tables=tables)
    assert made.finding == FOUND and made.tables == () and made.errors[0].startswith("tables failed: ")
