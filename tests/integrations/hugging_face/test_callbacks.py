# SPDX-License-Identifier: Apache-2.0
import pytest
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, trainer_callback
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from sfumato.errors import UnsupportedUseError
from sfumato.integrations.hugging_face.callbacks import PublicCallbacks, public

# What transformers logs, at the version that the extra allows.
PRIVATE = {
    "loss": 0.5,
    "grad_norm": 1.0,
    "train_loss": 0.5,
    "total_flos": 1e9,
    "num_input_tokens_seen": 7,
    "train_runtime": 1.0,
    "train_samples_per_second": 1.0,
    "train_steps_per_second": 1.0,
    "train_tokens_per_second": 1.0,
    "eval_runtime": 1.0,
    "eval_samples_per_second": 1.0,
    "eval_model_preparation_time": 1.0,
    "eval_jit_compilation_time": 1.0,
}
PUBLIC = {"eval_loss": 0.4, "eval_accuracy": 1.0, "eval_member_accuracy": 1.0, "epsilon": 2.0, "epoch": 1.0}


class Seen(TrainerCallback):
    def __init__(self):
        self.last = {}

    def on_log(self, args, state, control, **kwargs):
        self.last = kwargs

    on_evaluate = on_predict = on_step_end = on_log


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture
def event(seen):
    """Call an event as a trainer does, with logs or metrics."""
    model = nn.Linear(1, 1)
    given = CallbackHandler([DefaultFlowCallback(), seen], model, None, "optimizer", "schedule")
    own = PublicCallbacks(given)
    args, state, control = TrainingArguments("out", use_cpu=True), TrainerState(), TrainerControl()
    state.logging_steps = state.eval_steps = state.save_steps = 1
    return own, lambda name, *more: getattr(own, name)(args, state, control, *more)


def test_nothing_is_said_of_callbacks_that_are_there(seen, monkeypatch):
    given = CallbackHandler([DefaultFlowCallback(), seen], nn.Linear(1, 1), None, None, None)
    said: list[str] = []
    monkeypatch.setattr(trainer_callback.logger, "warning", said.append)
    assert PublicCallbacks(given).callbacks == given.callbacks and said == []
    PublicCallbacks(CallbackHandler([], nn.Linear(1, 1), None, None, None))
    assert said  # of callbacks that are missing


def test_what_is_private_is_left_out():
    assert public(PRIVATE | PUBLIC) == PUBLIC


@pytest.mark.parametrize(
    ("name", "key"), [("on_log", "logs"), ("on_evaluate", "metrics"), ("on_predict", "metrics")]
)
def test_callbacks_get_what_may_be_seen(name, key, event, seen):
    event[1](name, PRIVATE | PUBLIC)
    assert seen.last[key] == PUBLIC


def test_weights_are_withheld_and_shown_again(event, seen):
    own, call = event
    own.show(weights=False)
    call("on_step_end")
    for name in ("model", "optimizer", "lr_scheduler"):
        with pytest.raises(UnsupportedUseError, match="on_save"):
            seen.last[name].state_dict()
    assert isinstance(own.model, nn.Linear)
    own.show(weights=True)
    call("on_step_end")
    assert seen.last["model"] is own.model and seen.last["lr_scheduler"] == "schedule"


def test_the_order_of_callbacks_is_kept(event, seen):
    assert event[0].callbacks[-1] is seen and len(event[0].callbacks) == 2
