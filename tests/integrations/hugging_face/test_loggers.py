# SPDX-License-Identifier: Apache-2.0
"""Loggers of sfumato in a `PrivateTrainer`."""

import pytest
import torch
import transformers as hf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sfumato.errors import UnsupportedUseError
from sfumato.integrations.hugging_face import PrivateTrainer
from sfumato.integrations.loggers import TensorBoardLog
from sfumato.testing import seeded
from sfumato.training import Privacy, Runtime

from . import architectures

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
COUNT = 24


class Recorder:
    """Notes what it gets; fails if it is told to."""

    def __init__(self, fails=()):
        self.got, self._fails = [], fails

    def _take(self, kind, *given):
        self.got.append((kind, *given))
        if kind in self._fails:
            raise OSError(28, "No space left on device")

    def begin(self, settings):
        self._take("begin", dict(settings))

    def figures(self, step, values):
        self._take("figures", step, dict(values))

    def end(self, facts):
        self._take("end", facts)


def trained(folder, *loggers, callbacks=(), **more):
    torch.set_num_threads(1)
    given = {"max_steps": 3, "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    given |= {"learning_rate": 0.01, "optim": "sgd", "logging_steps": 1}
    trainer = PrivateTrainer(
        architectures.model("GPT-2"),
        hf.TrainingArguments(str(folder), **given | more),
        train_dataset=architectures.rows("GPT-2", COUNT),
        eval_dataset=architectures.rows("GPT-2", 4, seed=2),
        privacy=Privacy(noise_multiplier=1.0, delta=1e-3, public_size=COUNT),
        runtime=Runtime(check=False),
        generator=seeded(1),
        callbacks=list(callbacks),
        loggers=list(loggers),
    )
    trainer.train()
    return trainer


def test_a_logger_gets_the_figures_and_the_guarantee_and_no_loss_of_private_rows(tmp_path):
    log = Recorder()
    found = trained(tmp_path, log, eval_strategy="steps", eval_steps=2)
    assert [given[0] for given in log.got] == ["begin", *["figures"] * 3, "end"]
    steps = {given[1]: set(given[2]) for given in log.got if given[0] == "figures"}
    assert steps == {
        1: {"epsilon", "learning_rate"},
        2: {"epsilon", "learning_rate", "loss"},  # of evaluation data
        3: {"epsilon", "learning_rate", "loss"},
    }
    shown = {row["step"]: row["eval_loss"] for row in found.state.log_history if "eval_loss" in row}
    assert log.got[2][2]["loss"] == shown[2]
    assert log.got[-1][1]["guarantee"] == str(found.run.guarantee)


def test_the_last_step_is_a_figure_whatever_is_logged(tmp_path):
    log = Recorder()
    trained(tmp_path, log, logging_strategy="no")
    assert [given[1] for given in log.got if given[0] == "figures"] == [3]


@pytest.mark.parametrize("fails", ["begin", "figures", "end"])
def test_a_logger_that_fails_stops_nothing(fails, tmp_path):
    with pytest.warns(UserWarning, match="the logger Recorder failed"):
        found = trained(tmp_path, Recorder(fails=(fails,)))
    assert [row.step for row in found.run.history] == [1, 2, 3]


def test_a_logger_is_told_of_a_run_that_did_not_finish(tmp_path):
    class Stop(hf.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                raise KeyboardInterrupt

    log = Recorder()
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, log, callbacks=[Stop()])
    assert log.got[-1] == ("end", None)


def test_an_event_file_is_written(tmp_path):
    trained(tmp_path / "out", TensorBoardLog(tmp_path / "events"))
    read = EventAccumulator(str(tmp_path / "events"))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == ["epsilon", "learning_rate"]


def test_loggers_of_transformers_are_refused_with_the_way_to_ours(tmp_path):
    with pytest.raises(UnsupportedUseError, match=r"PrivateTrainer\(loggers=\[...\]\)"):
        trained(tmp_path, report_to=["tensorboard"])
