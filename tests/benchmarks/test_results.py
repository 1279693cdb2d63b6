# SPDX-License-Identifier: Apache-2.0
"""What every benchmark prints, and that every file of the folder prints it."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROGRAM = "all.py"  # runs the others
FILES = sorted(path for path in BENCHMARKS.glob("*.py") if path.name != PROGRAM)
SHARED = {"command_line", "report"}


def shared_names(path: Path) -> set[str]:
    """Return what a file calls of `models.results`; where it imports its `main`, what that file calls."""
    tree = ast.parse(path.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        if any(name.name == "main" for name in node.names):
            return shared_names(BENCHMARKS / f"{(node.module or '').replace('.', '/')}.py")
    known = {name.name for node in imports if node.module == "models.results" for name in node.names}
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return known & {call.id for call in calls if isinstance(call, ast.Name)}


def own_rows(path: Path) -> Iterator[str]:
    """Yield what a module does by itself that `models.results` does for all."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == "Row":
            yield "a Row"
        if isinstance(node, ast.Constant) and node.value in ("--quick", "--json"):
            yield str(node.value)


def test_there_are_benchmarks():
    assert len(FILES) >= 17


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_benchmark_takes_the_shared_options_and_prints_the_shared_rows(path: Path):
    assert shared_names(path) >= SHARED


def test_no_module_has_rows_or_options_of_its_own():
    modules = [path for path in BENCHMARKS.rglob("*.py") if path.name not in (PROGRAM, "results.py")]
    assert {path.name: found for path in modules if (found := list(own_rows(path)))} == {}


def test_these_rules_have_power(tmp_path: Path):
    own = tmp_path / "own.py"
    own.write_text("class Row: ...\nparser.add_argument('--quick')\nreport = print\nreport('x')\n")
    assert shared_names(own) == set()
    assert list(own_rows(own)) == ["a Row", "--quick"]


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_benchmark_names_its_options(path: Path):
    done = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, text=True, check=True)
    assert "--quick" in done.stdout and "--json" in done.stdout


def test_a_parser_knows_quick_and_json(results: ModuleType):
    options = results.command_line("How fast is it?", quick="few runs").parse_args(["--quick", "--json"])
    assert options.quick and options.json
    options = results.command_line("How fast is it?", quick="few runs").parse_args([])
    assert not options.quick and not options.json


def test_a_bar_is_met_from_its_side_only(results: ModuleType):
    def met(value: float | None, **bar: float) -> bool | None:
        return results.Row(subject="speed", name="ratio", value=value, **bar).met

    assert met(1.0, bar=1.0) and not met(1.1, bar=1.0)
    assert met(1.0, bar=1.0, at_least=True) and not met(0.9, bar=1.0, at_least=True)
    assert met(1.0) is None
    assert met(None, bar=1.0) is False
    assert met(float("nan"), bar=1.0) is False and met(float("nan"), bar=1.0, at_least=True) is False


def test_rows_are_json_with_what_value_bar_and_met(results: ModuleType, capsys: pytest.CaptureFixture[str]):
    rows = [
        results.Row(subject="speed", name="ratio", value=np.float64(2.0), bar=1.5, at_least=True),
        results.Row(subject="speed", name="s", value=0.25),
        results.left_out("Adult", "no data"),
    ]
    assert results.report("Speeds", rows, as_json=True) == 0
    printed = capsys.readouterr()
    first, second, third = json.loads(printed.out)
    assert {name: first[name] for name in ("what", "value", "bar", "met", "limit")} == {
        "what": "speed: ratio", "value": 2.0, "bar": 1.5, "met": True, "limit": ">= 1.5",
    }  # fmt: skip
    assert (second["bar"], second["met"]) == (None, None)
    assert not second["left_out"] and third["left_out"] and third["note"] == "no data"
    assert "speed: ratio 2.00 >= 1.5 yes" in printed.err  # as it came


def test_a_missed_bar_is_the_exit_status(results: ModuleType, capsys: pytest.CaptureFixture[str]):
    rows = [results.Row(subject="speed", name="ratio", value=2.0, bar=1.5)]
    assert results.report("Speeds", rows, as_json=False) == 1
    assert "NO" in capsys.readouterr().out
