# SPDX-License-Identifier: Apache-2.0
"""Code on a page is run. What is shown and not run has a title that says why; no other block hides Python."""

import ast
import re
from pathlib import Path

import pandas as pd
import pytest

import sfumato as sf
from docs.tutorial_notebooks import FENCE
from sfumato.cli.project.settings_file import FILE_NAME, read_settings
from sfumato.cli.settings import read_config
from sfumato.cli.stats_queries import query_of_workload

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Not run with the page, and why.
TITLES = {
    'python title="Before: Opacus"',  # run by test_from_opacus.py, where Opacus is installed
    'python title="On Spark"',  # run by tests/statistics/sources/test_tables_spark.py
    'python title="On a cluster"',  # needs the address of somebody's cluster
    'python title="A script of processes"',  # a file of its own; tests/federated/decentralized runs such ones
    'python title="Under torchrun"',  # needs several processes; tests/training/sharding runs such ones
}
# Blocks with Python that are not run: the first line of each, and why.
EXCEPTIONS = {
    "# server_app.py of flower_secure_sums",  # a part of that project, with which a test compares it
}
RUN = re.compile(r"^(?:python|console)\b")
OPENING = re.compile(r"\s*(?:@\w|def \w+\(|class \w+|from \w[\w.]* import |import \w)|.*[\w\]]\($")


def is_python(line: str) -> bool:
    """Whether a line calls, imports or defines something, or begins to."""
    if OPENING.match(line):
        return True
    try:
        tree = ast.parse(line.strip())
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call) for node in ast.walk(tree))


def hidden(page: str) -> list[str]:
    """Return the first lines of blocks that hold Python, are not run, and are no output."""
    found, before, end = [], "", 0
    for fence in FENCE.finditer(page):
        output = RUN.match(before) and not page[end : fence.start()].strip()
        if fence[1].strip() in ("text", "") and not output and any(map(is_python, fence[2].splitlines())):
            found.append(fence[2].splitlines()[0])
        before, end = fence[1].strip(), fence.end()
    return found


@pytest.mark.parametrize(
    "code",
    [
        "run = train(model)",
        "import ibis",
        "model.fit(x)  # why",
        "x = f(\n    2)",
        "@app.main()\ndef main():",
    ],
)
def test_the_rule_finds_code_that_does_not_run(code: str) -> None:
    for language in ("text", ""):
        assert hidden(f"Words.\n\n```{language}\n{code}\n```\n") == [code.splitlines()[0]]


def test_the_rule_leaves_outputs_and_words_alone() -> None:
    assert hidden("```python\nx\n```\n\n```text\nLinear(2, 3)\n```\n") == []
    assert hidden('```python\nx\n```\n\nOr so:\n\n```text\ny = f("x")\n```\n') == ['y = f("x")']
    assert hidden("```text\ncd study\npip install x (once)\nepsilon 2 (at most)\n```\n") == []


def test_no_block_of_a_page_hides_python() -> None:
    found = {page.name: lines for page in PAGES if (lines := hidden(page.read_text()))}
    assert {line for lines in found.values() for line in lines} - EXCEPTIONS == set(), found


def test_code_that_is_not_run_has_a_title_that_is_listed() -> None:
    titled = {
        f[1].strip() for p in PAGES for f in FENCE.finditer(p.read_text()) if f[1].startswith("python ")
    }
    assert titled == TITLES


def test_the_settings_on_the_page_of_the_command_line_are_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    project, workload, run = (fence[2] for fence in FENCE.finditer(page) if fence[1].strip() == "toml")
    (tmp_path / FILE_NAME).write_text(project)
    (tmp_path / "workload.toml").write_text(workload)
    (tmp_path / "run.toml").write_text(run)
    people = {"city": ["Rome"], "age": [30.0], "income": [1.0], "client_id": ["a"]}
    clients = sf.open(
        "clients", pd.DataFrame(people), privacy_unit="client_id", budget=sf.Budget(epsilon=1, delta=1e-6)
    )
    asked = query_of_workload(clients.table, str(tmp_path / "workload.toml"), {"epsilon": 1.0, "delta": 0.0})
    assert list(asked.workload.statistics) == ["n", "total", "typical", "people"]
    assert read_settings(tmp_path).bounds_of("age") == (18, 100)
    assert read_config(tmp_path / "run.toml").optimizer == "adam"
