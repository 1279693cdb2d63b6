# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from sfumato.integrations.loggers import TensorBoardLog

from .runs import FACTS, FIGURES, SHOWN, trained

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")


def text(read: EventAccumulator, name: str) -> str:
    (found,) = read.Tensors(f"{name}/text_summary")
    return found.tensor_proto.string_val[0].decode()


def test_tensorboard_gets_what_may_be_seen_and_the_guarantee(tmp_path):
    run = trained(TensorBoardLog(tmp_path))
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == sorted(FIGURES)
    assert {tag.partition("/")[0] for tag in read.Tags()["tensors"]} == {"settings", *FACTS}
    assert [event.step for event in read.Scalars("epsilon")] == [row.step for row in run.history]
    assert [event.value for event in read.Scalars("loss")] == pytest.approx([row.loss for row in run.history])
    assert text(read, "guarantee") == str(run.guarantee)
    assert text(read, "statement") == run.statement()
    assert "| noise_multiplier | 1.0 |" in text(read, "settings")


def test_no_time_and_no_name_of_the_machine_is_written(tmp_path):
    trained(TensorBoardLog(tmp_path))
    (file,) = Path(tmp_path).iterdir()
    assert file.name == "events.out.tfevents.0.sfumato"
    times = {event.wall_time for event in EventFileLoader(str(file)).Load()}
    assert len(times) == 1 and times.pop() % 86_400 == 0


def test_a_resumed_run_writes_the_file_anew(tmp_path):
    log = TensorBoardLog(tmp_path)
    log.begin({"steps": 2})
    log.figures(1, {"epsilon": 0.5})
    log.begin({"steps": 2})
    log.figures(1, {"epsilon": 0.5})
    log.figures(2, {"epsilon": 0.7})
    log.end(None)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [event.step for event in read.Scalars("epsilon")] == [1, 2]
    assert text(read, "state") == "The run did not finish. It is charged as a whole."


def test_a_disk_that_is_full_stops_no_run(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(UserWarning, match="the logger TensorBoardLog failed"):
        run = trained(TensorBoardLog(tmp_path / "file" / "events"))
    assert len(run.history) == SHOWN
