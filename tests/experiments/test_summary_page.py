# SPDX-License-Identifier: Apache-2.0
import json
import re

from sfumato.experiments import Scale, Table, Verdict, reproduce, write_results
from sfumato.experiments.summary_page import markdown_of
from tests.experiments.helpers import squares

QUICK = Scale(quick=True)
FIGURE = """
from dataclasses import replace
from sfumato.report import plot_lines
EXPERIMENT = replace(EXPERIMENT, figures=lambda rows: {
    "squares": plot_lines({"s": {r["x"]: r["square"] for r in rows}}, title="S", x_label="x", y_label="y")
})
"""


def made(tmp_path, *, quick=False, **changed):
    return written(tmp_path, squares(tmp_path, **changed), quick=quick)


def written(tmp_path, *names, quick=False):
    scale = Scale(quick=quick)
    outcomes = reproduce(names, scale=scale, folder=tmp_path / "out")
    return outcomes[0], write_results(outcomes, scale=scale, folder=tmp_path / "out")


def parts(page):
    return re.findall(r"<section><h2>(.*?)</h2>", page.read_text())


def test_the_page_has_claim_finding_tables_figures_and_the_command(tmp_path):
    _, page = made(tmp_path, more=FIGURE)
    text = page.read_text()
    for part in ("They grow.", "Confirmed", "The last one is 4.", "<svg", "sfumato reproduce squares.py"):
        assert part in text
    names = sorted(p.name for p in page.parent.iterdir())
    assert names == ["report.html", "squares-squares.png", "squares-squares.svg", "squares.json"]


def test_figures_of_the_same_results_have_the_same_bytes(tmp_path):
    def drawn():
        page = made(tmp_path, more=FIGURE)[1]
        return [(page.parent / f"squares-squares{suffix}").read_bytes() for suffix in (".svg", ".png")]

    assert drawn() == drawn()


def test_figures_with_points_in_their_names_are_files_of_their_own(tmp_path):
    named = FIGURE.replace('"squares":', '"epsilon-0.1":')
    _, page = made(tmp_path, more=named)
    assert (page.parent / "squares-epsilon-0.1.svg").exists() and "<svg" in page.read_text()


def test_a_quick_or_unfinished_run_finds_nothing(tmp_path):
    assert made(tmp_path, quick=True)[0].finding.verdict is Verdict.NOT_TESTED
    (tmp_path / "failed").mkdir()
    for quick in (True, False):
        failed = made(tmp_path / "failed", fails=1, quick=quick)[0].finding
        assert failed.sentence == "Not all cases were measured."
    outcome, page = made(tmp_path, fails=1)
    assert outcome.finding.verdict is Verdict.NOT_TESTED
    assert "this case is hopeless" in page.read_text()
    assert made(tmp_path)[0].finding.verdict is Verdict.CONFIRMED


def test_the_page_has_every_experiment_of_the_folder_whichever_command_measured_it(tmp_path):
    made(tmp_path, quick=True, more=FIGURE)
    (tmp_path / "squares.py").unlink()  # nothing is read from it
    _, page = written(tmp_path, "r2-composition", quick=True)
    assert parts(page) == ["R2: Figure 1", "mine: Table 1"]
    text = page.read_text()
    assert (
        text.count("<svg") == 2
        and "squares.py --quick" in text
        and "made again, and 1 other experiment (quick" in text
    )
    _, page = made(tmp_path, quick=True)
    assert parts(page) == ["mine: Table 1", "R2: Figure 1"]
    assert parts(made(tmp_path)[1]) == ["mine: Table 1"]  # at another scale


def test_results_that_are_old_unfinished_or_damaged_are_named(tmp_path):
    _, page = written(tmp_path, "r2-composition", quick=True)
    kept = page.parent / "r2-composition.json"
    found = json.loads(kept.read_text())
    for name, content, said in (
        ("older", {**found, "code": "0" * 16}, "measured by another version of the code"),
        (
            "unfinished",
            {k: v for k, v in found.items() if k != "summary"},
            "its run did not end. Run it again",
        ),
        ("odd", {**found, "summary": {**found["summary"], "tables": [{"title": 3}]}}, "could not be read"),
        ("no file of results", [], "could not be read"),
    ):
        kept.write_text(json.dumps(content))
        _, page = made(tmp_path, quick=True)
        assert said in page.read_text(), name


def test_a_figure_that_was_deleted_is_named(tmp_path):
    _, page = made(tmp_path, quick=True, more=FIGURE)
    (page.parent / "squares-squares.svg").unlink()
    assert (
        "squares-squares.svg is no longer there"
        in written(tmp_path, "r2-composition", quick=True)[1].read_text()
    )


def test_what_cannot_be_drawn_is_told_and_the_rest_is_there(tmp_path):
    outcome, page = made(tmp_path, more=FIGURE.replace('r["square"]', 'r["cube"]'))
    assert "figures failed: KeyError: 'cube' (squares.py, line" in outcome.errors[0]
    text = page.read_text()
    assert "figures failed" in text and "The last one is 4." in text and "<h3>Squares</h3>" in text


def test_the_title_says_what_is_on_the_page(tmp_path):
    assert "<h1>Squares</h1>" in made(tmp_path)[1].read_text()


def test_a_table_becomes_markdown():
    assert markdown_of(Table("t", ("a", "b"), [(1, "x")])) == "| a | b |\n| --- | --- |\n| 1 | x |"


def test_no_file_names_a_folder_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "private" / "ages.csv"
    finding = f"lambda rows: open({str(place)!r})"
    reading = f"from dataclasses import replace\nEXPERIMENT = replace(EXPERIMENT, finding={finding})"
    _, page = made(tmp_path, more=reading)
    for path in page.parent.iterdir():
        assert str(tmp_path) not in path.read_text(), path.name
    assert "private/ages.csv" in page.read_text()
