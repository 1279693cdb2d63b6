# SPDX-License-Identifier: Apache-2.0
import errno

import pytest

from sfumato import _files
from sfumato.experiments import ResultsNotKeptError, Scale, find
from sfumato.experiments.results import load, read
from tests.experiments.helpers import squares

QUICK = Scale(quick=True)


def kept_in(tmp_path, **changed):
    return load(tmp_path / "out", find(squares(tmp_path, **changed))[0], QUICK)


def test_a_measurement_is_there_in_the_next_process(tmp_path):
    kept_in(tmp_path).add({"x": 2, "seed": 0}, {"square": 4}, 0.5)
    again = kept_in(tmp_path)
    assert again.has({"seed": 0, "x": 2}) and not again.has({"x": 3, "seed": 0})
    assert again.rows([{"x": 2, "seed": 0}]) == [{"x": 2, "seed": 0, "square": 4}]
    assert again.seconds([{"x": 2, "seed": 0}, {"x": 3, "seed": 0}]) == 0.5


def test_a_file_says_what_made_it(tmp_path):
    kept = kept_in(tmp_path)
    kept.add({"x": 2}, {"square": 4}, 0.5)
    found = read(kept.path)
    assert found["command"] == "sfumato reproduce squares.py --quick" and found["code"] == kept.code
    assert "torch" in found["machine"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"cases": [{}], "code": "x"}', b"\xff\xfe", b"null"])
def test_a_damaged_file_is_put_aside_and_told(tmp_path, content):
    kept = kept_in(tmp_path)
    kept.path.parent.mkdir()
    kept.path.write_bytes(content)
    again = kept_in(tmp_path)
    assert not again.measured and "could not be read" in again.notes[0]
    assert [p.read_bytes() for p in kept.path.parent.glob("*damaged*")] == [content]


def test_what_other_code_measured_is_put_aside_and_not_mixed(tmp_path):
    kept_in(tmp_path).add({"x": 2}, {"square": 4}, 0.5)
    changed = kept_in(tmp_path, more="# changed")
    assert not changed.measured and "older code" in changed.notes[0]
    changed.add({"x": 2}, {"square": 5}, 0.5)
    files = sorted(changed.path.parent.glob("*.json"))
    assert [read(p)["cases"][0]["measured"]["square"] for p in files] == [4, 5]


def test_a_full_disk_is_told_and_what_was_kept_stays(tmp_path, monkeypatch):
    kept = kept_in(tmp_path)
    kept.add({"x": 1}, {"square": 1}, 0.5)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_files, "write_synced", full)
    with pytest.raises(ResultsNotKeptError, match="is full"):
        kept.add({"x": 2}, {"square": 4}, 0.5)
    assert len(read(kept.path)["cases"]) == 1


def test_machines_that_measured_are_all_named_and_others_are_not(tmp_path):
    kept = kept_in(tmp_path)
    kept.add({"x": 1}, {"square": 1}, 0.5)
    first = kept.facts["machine"]
    again = kept_in(tmp_path)
    again.here = "another one"
    again.show({"title": "Squares"})
    assert read(kept.path)["machine"] == first and read(kept.path)["summary"] == {"title": "Squares"}
    again.add({"x": 2}, {"square": 4}, 0.5)
    again.add({"x": 3}, {"square": 9}, 0.5)
    assert read(kept.path)["machine"] == f"{first}; another one"


def test_nothing_is_written_of_an_experiment_without_measurements(tmp_path):
    kept = kept_in(tmp_path)
    kept.show({"title": "Squares"})
    assert not kept.path.exists()
