# SPDX-License-Identifier: Apache-2.0
import json
import socket
import time

import pytest

from sfumato.integrations.loggers import WandbLog

from .event_files import history, records
from .runs import FACTS, FIGURES, SHOWN, trained

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*:pytest.PytestUnraisableExceptionWarning"),
]


class Timed(WandbLog):
    """Notes how long the writing takes."""

    seconds = 0.0

    def end(self, facts):
        began = time.monotonic()
        time.sleep(0.01)
        super().end(facts)
        self.seconds = time.monotonic() - began


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder, the logger and the run."""
    folder = tmp_path_factory.mktemp("wandb")
    began = time.monotonic()
    log = Timed(folder, project="digits")
    run = trained(log, steps=60, evaluate_every=20)
    return folder, log, run, time.monotonic() - began


def file_in(folder):
    """Return the file of the run, once another process has written all of it."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    for _ in range(1000):
        if records(file)[-1].WhichOneof("record_type") == "exit":
            return file
        time.sleep(0.02)
    raise AssertionError("the file was not finished")


def test_weights_and_biases_gets_what_may_be_seen_and_the_guarantee(written):
    folder, _, run, _ = written
    rows = history(file_in(folder))
    assert [row["_step"] for row in rows] == [row.step for row in run.history]
    assert {name for row in rows for name in row} == {*FIGURES, "_step", "_timestamp", "_runtime"}
    assert [row["loss"] for row in rows] == pytest.approx([row.loss for row in run.history])
    summary = {
        item.key: json.loads(item.value_json)
        for record in records(file_in(folder))
        if record.WhichOneof("record_type") == "summary"
        for item in record.summary.update
        if item.key.startswith("privacy/")
    }
    assert set(summary) == {f"privacy/{name}" for name in FACTS}
    assert summary["privacy/statement"] == run.statement()


def test_no_figure_has_the_time_of_its_step(written):
    folder, log, _, _ = written
    rows = history(file_in(folder))
    assert len({row["_timestamp"] for row in rows}) == 1 and rows[0]["_timestamp"] % 86_400 == 0
    # the run of Weights & Biases began when ours had ended
    assert all(0 <= row["_runtime"] <= log.seconds for row in rows)


def test_a_folder_that_cannot_be_written_stops_no_run(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(UserWarning, match="the logger WandbLog failed"):
        run = trained(WandbLog(tmp_path / "file" / "wandb"))
    assert len(run.history) == SHOWN


def test_a_failure_in_the_middle_of_writing_stops_no_run(tmp_path, monkeypatch):
    log = WandbLog(tmp_path)
    monkeypatch.setattr(log._wandb, "init", lambda **_: (_ for _ in ()).throw(OSError("no disk")))
    with pytest.warns(UserWarning, match="the logger WandbLog failed .OSError: no disk"):
        run = trained(log)
    assert len(run.history) == SHOWN


def test_nothing_of_the_machine_the_code_or_the_console_is_kept(written):
    folder, _, _, _ = written
    kinds = {record.WhichOneof("record_type") for record in records(file_in(folder))}
    assert not kinds & {"stats", "output", "output_raw", "environment", "metadata"}
    assert socket.gethostname().encode() not in file_in(folder).read_bytes() or len(socket.gethostname()) < 4
    names = {path.name for path in file_in(folder).parent.rglob("*") if path.is_file()}
    assert not names & {"wandb-metadata.json", "requirements.txt", "output.log", "diff.patch"}
