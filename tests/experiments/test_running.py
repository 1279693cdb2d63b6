# SPDX-License-Identifier: Apache-2.0
from sfumato.experiments import Scale, reproduce
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
