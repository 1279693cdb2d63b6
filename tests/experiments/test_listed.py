# SPDX-License-Identifier: Apache-2.0
"""Every table and figure of the reports has an experiment, each one runs, and docs name no others."""

import json
import re
from pathlib import Path

import pytest

from sfumato.experiments import Scale, experiments, reproduce, write_results
from sfumato.experiments.results import read

ROOT = Path(__file__).resolve().parents[2]
QUICK = Scale(quick=True)
REFUSED = re.compile(r"^```console title=.*?^```", re.MULTILINE | re.DOTALL)  # examples of mistakes
# The tables and figures of results. R3 is a poster without numbers; R5 are slides: their figures have titles.
PUBLISHED = {
    "R1": {*(f"Table {n}" for n in range(1, 5)), *(f"Figure {n}" for n in range(1, 4))},
    "R2": {f"Figure {n}" for n in range(1, 9)},
    "R3": {
        "Insight: inverse relationship",
        "Insight: less accurate for DP and less-trained models",
        "Insight: drop in accuracy between generations",
    },
    "R4": {f"Figure 6.{n}" for n in range(1, 7)},
    "R5": {
        "Table: Clipping Types and Convergence",
        "Effect of Noise on Convergence",
        "Experimental Results (a)",
        "Experimental Results (b)",
        "Accuracy-Privacy Trade-off",
        "Effects of Batch Size (a)",
        "Effects of Batch Size (b)",
        "Transfer Learning Results",
        "Improving Efficiency (a)",
    },
}


@pytest.mark.parametrize("report", list(PUBLISHED))
def test_every_table_and_figure_of_a_report_is_shown(report):
    listed = [one.experiment for one in experiments().values()]
    shown = {what for one in listed if one.report == report for what in one.shows}
    assert PUBLISHED[report] - shown == set()


@pytest.mark.parametrize("name", list(experiments()))
def test_an_experiment_has_cases_at_both_scales_each_once(name):
    for scale in (QUICK, Scale()):
        keys = [json.dumps(case, sort_keys=True) for case in experiments()[name].experiment.cases(scale)]
        assert keys and len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", list(experiments()))
def test_an_experiment_runs_quickly_and_is_shown(name, tmp_path):
    outcomes = reproduce([name], scale=QUICK, folder=tmp_path)
    assert outcomes[0].errors == [] and outcomes[0].complete
    text = write_results(outcomes, scale=QUICK, folder=tmp_path).read_text()
    tables = outcomes[0].experiment.tables(outcomes[0].rows)
    assert tables and all(table.title and table.rows for table in tables)
    assert outcomes[0].kept.facts["command"] in text


def test_docs_name_experiments_that_there_are():
    known = {
        *experiments(),
        *PUBLISHED,
        *(report.lower() for report in PUBLISHED),
        "all",
        "--list",
        "NAME",
        "NAME...",
    }
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        text = REFUSED.sub("", page.read_text())
        named = set(re.findall(r"sfumato reproduce ([\w.-]+)", text)) - known
        # A file of one's own is written on the page itself.
        assert all(name.endswith(".py") and text.count(name) > 1 for name in named), page
    by_report = {report: ROOT / "docs" / "reports" / f"{report.lower()}.md" for report in PUBLISHED}
    for name, one in experiments().items():
        assert name in by_report[one.experiment.report].read_text(), name


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "results").rglob("*.json")), ids=lambda path: path.stem
)
def test_results_in_docs_are_whole_runs_of_experiments_at_full_scale(path):
    found = read(path)
    assert found["scale"] == "full" and found["machine"] and found["command"].endswith(path.stem)
    cases = experiments()[path.stem].experiment.cases(Scale())
    measured = {json.dumps(entry["case"], sort_keys=True) for entry in found["cases"]}
    assert {json.dumps(case, sort_keys=True) for case in cases} <= measured
    assert path.stat().st_size < 200_000
