# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.experiments import Scale, Verdict, reproduce
from sfumato.experiments.results import read
from tests.experiments.helpers import squares

QUICK = Scale(quick=True)


def run(tmp_path, *, processes=1, watcher=lambda outcome, measured: None, **changed):
    name = squares(tmp_path, **changed)
    return reproduce([name], scale=QUICK, folder=tmp_path / "out", processes=processes, watcher=watcher)[0]


def test_all_cases_are_measured_and_watched(tmp_path):
    seen = []
    outcome = run(tmp_path, watcher=lambda one, measured: seen.append((one.experiment.name, measured)))
    assert outcome.complete and outcome.errors == []
    assert [row["square"] for row in outcome.rows] == [0, 1, 4]
    assert seen == [("squares", 1), ("squares", 2), ("squares", 3)]


def test_what_is_kept_is_not_measured_again(tmp_path):
    run(tmp_path)
    seen = []
    outcome = run(tmp_path, watcher=lambda *told: seen.append(told))
    assert outcome.complete and seen == []


def test_a_case_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path):
    outcome = run(tmp_path, fails=1)
    assert not outcome.complete and [row["x"] for row in outcome.rows] == [0, 2]
    assert outcome.errors == ["ValueError: this case is hopeless"]
    seen = []
    run(tmp_path, fails=1, watcher=lambda one, measured: seen.append(measured))
    assert seen == [2]


def test_a_name_that_is_given_twice_is_run_once(tmp_path):
    name = squares(tmp_path)
    assert len(reproduce([name, name], scale=QUICK, folder=tmp_path / "out")) == 1


def test_several_processes_measure_the_same(tmp_path):
    outcome = run(tmp_path, processes=2)
    assert outcome.complete and [row["square"] for row in outcome.rows] == [0, 1, 4]


@pytest.mark.parametrize("quick", [True, False])
def test_a_finding_that_fails_keeps_what_was_measured(tmp_path, quick):
    name = squares(tmp_path, more="Verdict = type('Verdict', (), {})")
    outcome = reproduce([name], scale=Scale(quick=quick), folder=tmp_path / "out")[0]
    assert outcome.complete and outcome.finding.verdict is Verdict.NOT_TESTED
    assert "finding failed: AttributeError" in outcome.errors[0] and "squares.py, line" in outcome.errors[0]
    assert [table.title for table in outcome.tables] == ["Squares"] and len(
        read(outcome.kept.path)["cases"]
    ) == 3


CHANGE = "from dataclasses import replace\nEXPERIMENT = replace(EXPERIMENT, {})"


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        (
            "lambda scale: 1 / 0",
            "the cases of squares failed: ZeroDivisionError: division by zero .squares.py",
        ),
        ("lambda scale: [3]", "the cases of squares failed: TypeError"),
        ("lambda scale: []", "squares has no cases"),
    ],
)
def test_cases_that_cannot_be_listed_are_told_before_anything_is_measured(tmp_path, cases, said):
    with pytest.raises(InvalidParameterError, match=said):
        run(tmp_path, more=CHANGE.format(f"cases={cases}"))
    assert not (tmp_path / "out").exists()


def test_a_measurement_that_is_no_mapping_is_a_case_that_fails(tmp_path):
    outcome = run(tmp_path, more=CHANGE.format("measure=lambda case, scale: 3"))
    assert not outcome.complete and outcome.errors[0].startswith("TypeError")


def test_two_files_with_one_name_are_refused(tmp_path):
    (tmp_path / "other").mkdir()
    names = [squares(tmp_path), squares(tmp_path / "other")]
    with pytest.raises(InvalidParameterError, match="two files define an experiment 'squares'"):
        reproduce(names, scale=QUICK, folder=tmp_path / "out")
