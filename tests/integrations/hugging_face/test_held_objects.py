# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace

import pytest
import torch
import transformers as hf

from sfumato.errors import NotPrivateError
from sfumato.integrations.hugging_face import PrivateTrainer
from sfumato.integrations.hugging_face.held_objects import Others
from sfumato.testing import seeded

from . import architectures
from .test_trainer import COUNT, PRIVACY, arguments, weights


class Note(hf.TrainerCallback):
    """A callback with attributes."""


class Collator:
    """A collator with attributes."""

    def __call__(self, rows):
        return hf.default_data_collator(rows)


class Leaking(PrivateTrainer):
    """Runs `leak` for one of its rows."""

    def __init__(self, *args, leak, mark, **keywords):
        self.leak, self.mark = leak, mark
        super().__init__(*args, **keywords)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs)
        if inputs["input_ids"][0].tolist() == self.mark:
            SEEN.append(1)
            self.leak(self, loss.item())
        return loss


SEEN = []
LEAKS = {
    "argument": lambda own, loss: setattr(own.args, "run_name", str(loss)),
    "new argument": lambda own, loss: setattr(own.args, "leak", loss),
    "state": lambda own, loss: own.state.stateful_callbacks.update(leak={"v": loss}),
    "callback": lambda own, loss: setattr(own.callback_handler.callbacks[-1], "leak", loss),
    "new callback": lambda own, loss: own.add_callback(Note()),
    "collator": lambda own, loss: setattr(own.data_collator, "leak", loss),
    "labels": lambda own, loss: own.label_names.append(str(loss)),
    "accelerator": lambda own, loss: setattr(own.accelerator, "leak", loss),
    "evaluation": lambda own, loss: own.eval_dataset.append(own.eval_dataset[0]),
    "rate": lambda own, loss: own.optimizer.param_groups[0].update(lr=77.0),
    "place": lambda own, loss: setattr(own.lr_scheduler, "last_epoch", 10**6),
    "model": lambda own, loss: setattr(own.model.config, "leak", loss),
    "defaults": lambda own, loss: own.optimizer.defaults.update(leak=loss),
}  # fmt: skip


def left_by(leak, folder):
    """Return all that a run leaves behind."""
    rows = architectures.rows("GPT-2", COUNT)
    given = {"train_dataset": rows, "eval_dataset": architectures.rows("GPT-2", 2), "callbacks": [Note()]}
    given |= {
        "privacy": replace(PRIVACY, expected_batch_size=COUNT),
        "generator": seeded(3),
        "data_collator": Collator(),
    }
    args = arguments(
        folder, per_device_train_batch_size=COUNT, save_strategy="steps", save_steps=1, max_steps=2
    )
    SEEN.clear()
    own = Leaking(architectures.model("GPT-2"), args, leak=leak, mark=list(rows[3]["input_ids"]), **given)
    own.train()
    assert SEEN
    saved = vars(torch.load(folder / "checkpoint-2" / "training_args.bin", weights_only=False))
    saved = {name: str(value).replace(str(folder), "") for name, value in saved.items()}
    state = json.loads((folder / "checkpoint-2" / "trainer_state.json").read_text())
    parts = [vars(own.callback_handler.callbacks[-1]), vars(own.data_collator), own.label_names]
    parts += [sorted(vars(own.model.config))]
    parts += [sorted(vars(own.accelerator)), len(own.callback_handler.callbacks), len(own.eval_dataset)]
    parts += [sorted(vars(own.model.config))]
    parts += [
        own.lr_scheduler.last_epoch,
        sorted(own.optimizer.defaults),
        own.optimizer.param_groups[0]["lr"],
    ]
    return str(parts), str(saved), state, weights(own.model)


@pytest.fixture(scope="module")
def nothing_leaked(tmp_path_factory):
    return left_by(lambda own, loss: loss, tmp_path_factory.mktemp("plain") / "a")


@pytest.mark.filterwarnings("ignore:torch.func.vmap cannot run this model")
@pytest.mark.parametrize("name", LEAKS)
def test_what_one_row_sets_in_objects_of_transformers_is_in_no_file_and_no_object(
    name, nothing_leaked, tmp_path
):
    found = left_by(LEAKS[name], tmp_path / "a")
    assert found[:3] == nothing_leaked[:3]
    if name != "evaluation":  # which the row does not see, so it fails, and adds nothing
        assert torch.equal(found[3], nothing_leaked[3])


def test_what_stands_apart_is_not_looked_into_and_a_tensor_cannot_be_put_back():
    near, far, tensor = [1], [1], torch.ones(2)
    with Others({"near": near, "far": far}, apart=[far]).kept():
        near.append(2)
        far.append(2)
    assert near == [1] and far == [1, 2]
    with (
        pytest.raises(NotPrivateError, match="changes \\['tensor'\\]"),
        Others({"tensor": tensor}, apart=()).kept(),
    ):
        tensor.add_(1)


def test_a_large_vocabulary_does_not_hide_what_comes_after_it():
    words, near = {str(i): i for i in range(1 << 15)}, {"seen": 0}
    with Others({"words": words, "near": near}, apart=()).kept():
        near["seen"] = 5
    assert near == {"seen": 0}
