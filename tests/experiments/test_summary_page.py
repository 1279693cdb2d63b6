# SPDX-License-Identifier: Apache-2.0
from sfumato.experiments import Scale, Table, Verdict, reproduce, write_results
from sfumato.experiments.summary_page import finding_of, markdown_of
from tests.experiments.helpers import squares

FIGURE = """
from dataclasses import replace
from sfumato.report import plot_lines
EXPERIMENT = replace(EXPERIMENT, figures=lambda rows: {
    "squares": plot_lines({"s": {r["x"]: r["square"] for r in rows}}, title="S", x_label="x", y_label="y")
})
"""


def made(tmp_path, *, quick=False, **changed):
    scale = Scale(quick=quick)
    outcomes = reproduce([squares(tmp_path, **changed)], scale=scale, folder=tmp_path / "out")
    return outcomes[0], write_results(outcomes, scale=scale, folder=tmp_path / "out")


def test_the_page_has_claim_finding_tables_figures_and_the_command(tmp_path):
    _, page = made(tmp_path, more=FIGURE)
    text = page.read_text()
    for part in ("They grow.", "Confirmed", "The last one is 4.", "<svg", "sfumato reproduce squares"):
        assert part in text
    names = sorted(p.name for p in page.parent.iterdir())
    assert names == ["report.html", "squares-squares.png", "squares-squares.svg", "squares.json"]


def test_figures_of_the_same_results_have_the_same_bytes(tmp_path):
    def drawn():
        page = made(tmp_path, more=FIGURE)[1]
        return [(page.parent / f"squares-squares{suffix}").read_bytes() for suffix in (".svg", ".png")]

    assert drawn() == drawn()


def test_a_quick_or_unfinished_run_finds_nothing(tmp_path):
    assert finding_of(made(tmp_path, quick=True)[0]).verdict is Verdict.NOT_TESTED
    (tmp_path / "failed").mkdir()
    for quick in (True, False):
        failed = finding_of(made(tmp_path / "failed", fails=1, quick=quick)[0])
        assert failed.sentence == "Not all cases were measured."
    outcome, page = made(tmp_path, fails=1)
    assert finding_of(outcome).verdict is Verdict.NOT_TESTED
    assert "this case is hopeless" in page.read_text()
    assert finding_of(made(tmp_path)[0]).verdict is Verdict.CONFIRMED


def test_a_table_becomes_markdown():
    assert markdown_of(Table("t", ("a", "b"), [(1, "x")])) == "| a | b |\n| --- | --- |\n| 1 | x |"
