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
