# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.experiments import experiments, find
from sfumato.experiments.catalog import REPORTS
from tests.experiments.helpers import squares


def test_each_report_is_found_by_its_name_and_all_by_all():
    assert [one.experiment.name for one in find("all")] == list(experiments())
    for report in REPORTS:
        assert {one.experiment.report for one in find(report.upper())} <= {report.upper()}


def test_a_name_begins_with_its_report():
    assert [
        name for name, one in experiments().items() if not name.startswith(one.experiment.report.lower())
    ] == []


def test_an_unknown_name_is_told_with_the_nearest_ones():
    with pytest.raises(InvalidParameterError, match="Did you mean 'r2-composition'"):
        find("r2-compositon")


def test_a_file_of_ones_own_is_an_experiment(tmp_path):
    found = find(squares(tmp_path))
    assert [one.experiment.name for one in found] == ["squares"]


def test_a_file_without_an_experiment_is_told(tmp_path):
    (tmp_path / "empty.py").write_text("X = 1\n")
    with pytest.raises(InvalidParameterError, match="defines no EXPERIMENT"):
        find(str(tmp_path / "empty.py"))
    with pytest.raises(InvalidParameterError, match="there is no file"):
        find(str(tmp_path / "absent.py"))


def test_other_code_has_another_mark(tmp_path):
    first = find(squares(tmp_path))[0].code
    assert find(squares(tmp_path))[0].code == first
    assert find(squares(tmp_path, more="# changed"))[0].code != first


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\nraise ValueError('no')\n", "own.py cannot be run: ValueError: no (own.py, line 2)."),
        ("x = (\n", "SyntaxError: '(' was never closed (own.py, line 1)"),
        ("import numpy\nimport sys\nsys.exit(3)\n", "SystemExit: 3 (own.py, line 3)"),
        ("import there_is_no_such_module\n", "ModuleNotFoundError: .*(own.py, line 1)"),
    ],
)
def test_a_file_that_fails_is_told_with_its_line(tmp_path, text, said):
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(InvalidParameterError, match=said.replace("(", r"[(]").replace(")", "[)]")):
        find(str(tmp_path / "own.py"))


@pytest.mark.parametrize("name", ["r2-composition", "r1-mine", "r5"])
def test_a_file_cannot_take_the_name_of_an_experiment_of_the_reports(tmp_path, name):
    path = squares(
        tmp_path, more=f"from dataclasses import replace\nEXPERIMENT = replace(EXPERIMENT, name={name!r})"
    )
    with pytest.raises(InvalidParameterError, match="Give it another name, such as 'my-r"):
        find(path)


def test_a_command_names_a_file_without_a_path_that_only_this_machine_has(tmp_path, monkeypatch):
    (tmp_path / "of mine").mkdir()
    path = squares(tmp_path / "of mine")
    assert find(path)[0].asked == "squares.py"
    monkeypatch.chdir(tmp_path)
    assert find(path)[0].asked == "'of mine/squares.py'" == find("of mine/squares.py")[0].asked
    assert find("r2-composition")[0].asked == "r2-composition"
