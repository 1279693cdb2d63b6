# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as hf

from sfumato.errors import NotPrivateError
from sfumato.integrations.hugging_face import PrivateTrainer
from sfumato.integrations.hugging_face.held_objects import Others, Own
from sfumato.testing import seeded
from sfumato.training.integrity import comparison

from . import architectures
from .test_trainer import COUNT, PRIVACY, arguments, weights


class Note(hf.TrainerCallback):
    """A callback with attributes."""


class Collator:
    """A collator with attributes."""

    def __init__(self):
        self.plain = torch.ones(2)

    def __call__(self, rows):
        return hf.default_data_collator(rows)


class Leaking(PrivateTrainer):
    """Runs `leak` for one of its rows."""

    def __init__(self, *args, leak, mark, **keywords):
        self.leak, self.mark = leak, mark
        self.plain, self.array = torch.ones(2), np.ones(2)
        self.inner = {"meters": [SimpleNamespace(seen=0.0, values=[1.0, 2.0])]}
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
    "method of the optimizer": lambda own, loss: setattr(own.optimizer, "state_dict", lambda: {"leak": loss}),
    "method of a callback": lambda own, loss: setattr(own.callback_handler.callbacks[-1], "on_log", print),
    "object in a dict": lambda own, loss: setattr(own.inner["meters"][0], "seen", loss),
    "list in an object": lambda own, loss: own.inner["meters"][0].values.append(loss),
    "list of the same length": lambda own, loss: own.inner["meters"][0].values.__setitem__(0, loss),
    "list in another order": lambda own, loss: own.inner["meters"][0].values.reverse(),
    "name of an entry": lambda own, loss: own.inner.update({str(loss): own.inner.pop("meters")}),
    "rates of a schedule": lambda own, loss: own.lr_scheduler.base_lrs.__setitem__(0, loss),
    "tensor": lambda own, loss: own.plain.add_(loss),
    "tensor without a mark": lambda own, loss: own.plain.data.add_(loss),
    "array": lambda own, loss: own.array.__iadd__(loss),
    "tensor of the collator": lambda own, loss: own.data_collator.plain.add_(loss),
    "tensor of the model": lambda own, loss: own.model.plain.add_(loss),
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
    model = architectures.model("GPT-2")
    model.plain = torch.ones(2)
    own = Leaking(model, args, leak=leak, mark=list(rows[3]["input_ids"]), **given)
    own.train()
    assert SEEN
    saved = vars(torch.load(folder / "checkpoint-2" / "training_args.bin", weights_only=False))
    saved = {name: str(value).replace(str(folder), "") for name, value in saved.items()}
    state = json.loads((folder / "checkpoint-2" / "trainer_state.json").read_text())
    parts = [vars(own.callback_handler.callbacks[-1]), vars(own.data_collator), own.label_names]
    parts += [sorted(vars(own.model.config))]
    parts += [own.inner, sorted(vars(own.optimizer)), own.lr_scheduler.base_lrs]
    parts += [own.plain, own.array, own.data_collator.plain, own.model.plain]
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


def test_what_stands_apart_is_not_looked_into():
    near, far = [1], [1]
    with Others({"near": near, "far": far}, apart=[far]).kept():
        near.append(2)
        far.append(2)
    assert near == [1] and far == [1, 2]


@pytest.mark.parametrize("kind", [Others, Own])
@pytest.mark.parametrize(
    "write",
    [
        lambda tensor, array: tensor.add_(1),
        lambda tensor, array: tensor.data.mul_(3),
        lambda tensor, array: tensor.resize_(9),
        lambda tensor, array: array.__iadd__(1),
    ],
)
def test_tensors_and_arrays_that_are_written_to_hold_what_they_held(kind, write):
    tensor, array = torch.ones(2), np.ones(2)
    given = {"inner": [{"tensor": tensor}], "array": array}
    held = Others(given, apart=()) if kind is Others else Own(given)
    held.rehearsing = False
    for _ in range(2):
        with held.kept():
            write(tensor, array)
        assert tensor.tolist() == [1, 1] and array.tolist() == [1, 1]
        tensor.copy_(torch.ones(2))  # by public code


def test_what_synthetic_rows_write_to_tensors_of_a_subclass_is_refused():
    tensor = torch.ones(2)
    with pytest.raises(NotPrivateError, match="changes \\['tensor'\\]"), Own({"tensor": tensor}).kept():
        tensor.data.add_(1)
    assert tensor.tolist() == [1, 1]


def test_a_write_to_tensors_too_large_to_be_copied_is_refused(monkeypatch):
    monkeypatch.setattr(comparison, "KEEP", 0)
    tensor = torch.ones(2)
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
