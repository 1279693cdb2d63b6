# SPDX-License-Identifier: Apache-2.0
import json

import pytest
import transformers as hf

from sfumato.integrations.hugging_face.callback_reporting import Actions, CallbackReporting

from . import architectures
from .test_trainer import PRIVACY, trainer


class Epochs(hf.TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.steps.append(("begin", state.global_step))

    def on_epoch_end(self, args, state, control, **kwargs):
        self.steps.append(("end", state.global_step, round(state.epoch, 6)))


def test_epochs_are_counted_by_the_sampling_rate(tmp_path):
    epochs = Epochs()
    found = trainer(
        tmp_path,
        args={"max_steps": -1, "num_train_epochs": 2, "logging_strategy": "epoch"},
        callbacks=[epochs],
    )
    found.train()  # a third of all rows in a step
    assert epochs.steps == [("begin", 0), ("end", 3, 1), ("begin", 3), ("end", 6, 2)]
    assert [row["epoch"] for row in found.state.log_history] == [1, 2]
    assert found.state.max_steps == 6 and found.state.num_train_epochs == 2


def test_the_evaluation_at_the_start_sees_the_first_weights(tmp_path):
    found = trainer(
        tmp_path,
        args={"max_steps": 1, "eval_on_start": True, "eval_strategy": "steps"},
        eval_dataset=architectures.rows("GPT-2", 2),
    )
    found.train()
    assert [row["step"] for row in found.state.log_history if "eval_loss" in row] == [0, 1]


def test_an_evaluation_that_cannot_work_is_known_before_anything_is_spent(tmp_path):
    broken = [{"input_ids": [999], "labels": [1]}]
    found = trainer(tmp_path, args={"eval_strategy": "steps"}, eval_dataset=broken)
    with pytest.raises(IndexError):
        found.train()
    with_check = trainer(tmp_path, args={"eval_strategy": "steps"}, eval_dataset=broken, runtime=None)
    with pytest.raises(IndexError):
        with_check.train()
    assert with_check.state.global_step == 0


def test_the_state_of_callbacks_goes_with_the_checkpoint(tmp_path):
    stopping = hf.EarlyStoppingCallback(3)
    found = trainer(tmp_path, callbacks=[stopping], privacy=PRIVACY)
    nothing = Actions(try_out=dict, rehearsed=dict, evaluate=dict, save=dict, choose=dict)

    def reporting():
        return CallbackReporting(
            found, found._handler, nothing, delta=1e-3, steps_per_epoch=3, evaluated=False, resumable=True
        )

    stopping.early_stopping_patience_counter, found.state.global_step = 2, 5
    found.control.should_save = True
    kept = reporting().state()
    assert json.loads(kept["trainer"])["stopped"] is False
    stopping.early_stopping_patience_counter, found.state.global_step = 0, 0
    found.control.should_save = False
    reporting().load_state(kept)
    assert stopping.early_stopping_patience_counter == 2 and found.state.global_step == 5
    assert found.control.should_save and found.state.is_world_process_zero
