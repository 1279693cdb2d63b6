# SPDX-License-Identifier: Apache-2.0
import sys
import warnings
from dataclasses import replace

import pytest
from torch.utils.data import IterableDataset

from sfumato import Budget, Ledger
from sfumato.errors import InvalidParameterError, NotPrivateError, UnsupportedUseError
from sfumato.integrations.hugging_face import PrivateTrainer
from sfumato.integrations.hugging_face.public_trainer import refuse_data, refuse_overrides
from sfumato.training import Charge

from . import architectures
from .test_trainer import COUNT, PRIVACY, arguments, trainer

ROWS = [{"x": 1}]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(ROWS)


@pytest.mark.parametrize("data", [Stream(), iter(ROWS), (row for row in ROWS)])
def test_a_stream_is_refused(data):
    with pytest.raises(UnsupportedUseError, match="rows by number"):
        refuse_data(data, None)


def test_an_evaluation_on_private_rows_is_refused():
    refuse_data(ROWS, [{"x": 1}])
    refuse_data(None, ROWS)
    for shown in (ROWS, {"a": [], "b": ROWS}):
        with pytest.raises(UnsupportedUseError, match="eval_dataset is train_dataset"):
            refuse_data(ROWS, shown)


def test_an_override_that_would_not_be_called_is_refused():
    class Sampling(PrivateTrainer):
        def get_train_dataloader(self):
            return None

    class Losing(PrivateTrainer):
        def compute_loss(self, *args, **keywords):
            return None

    with pytest.raises(InvalidParameterError, match=r"Sampling\.get_train_dataloader"):
        refuse_overrides(Sampling)
    refuse_overrides(Losing)
    refuse_overrides(PrivateTrainer)


def test_evaluation_leaves_the_model_as_it_was_in_bfloat16_too(tmp_path):
    found = trainer(tmp_path, args={"bf16": True}, eval_dataset=architectures.rows("GPT-2", 2))
    before = set(vars(found.model))
    assert set(found.evaluate()) == {"eval_loss", "epoch"}
    assert set(vars(found.model)) == before and "forward" not in vars(found.model)


def test_several_evaluation_sets_are_measured_without_times(tmp_path):
    found = trainer(tmp_path, eval_dataset={"a": architectures.rows("GPT-2", 2)})
    assert set(found.evaluate()) == {"eval_a_loss", "epoch"}


def test_logs_of_the_user_hold_nothing_private(tmp_path):
    found = trainer(tmp_path)
    found.log({"loss": 1.0, "note": 2.0})
    assert found.state.log_history == [{"note": 2.0, "epoch": 0, "step": 0}]


# --- what compute_loss keeps --------------------------------------------------------------------------------


class Meter:
    def __init__(self):
        self.values = []


class Filling(PrivateTrainer):
    """Fills something that it holds, once `compute_loss` was called so often in a pass over training rows."""

    def __init__(self, *args, fill, after, **keywords):
        self.early = []
        super().__init__(*args, **keywords)
        self.late, self.named, self.meter, self.calls = [], {}, Meter(), iter(range(1000))
        self.fill, self.after = fill, after

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs)
        loss.item()  # so rows are run one by one, and values can be kept
        if len(CALLS) >= self.after:
            self.fill(self, loss.item())
        CALLS.append(0)
        return loss


CALLS = []  # a global is not watched
FILLS = {
    "early": lambda own, loss: own.early.append(loss),
    "late": lambda own, loss: own.late.append(loss),
    "named": lambda own, loss: own.named.update(loss=loss),
    "meter": lambda own, loss: own.meter.values.append(loss),
}


def filling(folder, fill, after):
    CALLS.clear()
    rows = architectures.rows("GPT-2", COUNT)
    # every row is in every batch, so two runs make the same calls
    privacy = replace(PRIVACY, expected_batch_size=COUNT)
    args = arguments(folder, per_device_train_batch_size=COUNT)
    given = {"train_dataset": rows, "privacy": privacy, "fill": fill, "after": after}
    return Filling(architectures.model("GPT-2"), args, **given)


@pytest.mark.filterwarnings("ignore:torch.func.vmap cannot run this model")
@pytest.mark.parametrize("name", FILLS)
def test_a_compute_loss_that_fills_what_the_trainer_holds_is_refused_before_the_charge(name, tmp_path):
    account = Ledger(tmp_path / "l.db").open("a", privacy_unit="row", budget=Budget(epsilon=100, delta=1e-2))
    own = filling(tmp_path, FILLS[name], after=0)
    own._charge = Charge(account=account, purpose="test")
    with pytest.raises(NotPrivateError, match=f"compute_loss changes \\['{name}'\\] of the trainer"):
        own.train()
    assert account.spent().epsilon == 0 and not own.early + own.late + own.meter.values + list(own.named)


@pytest.mark.filterwarnings("ignore:torch.func.vmap cannot run this model")
def test_what_compute_loss_fills_for_private_rows_alone_is_put_back(tmp_path):
    def fill(own, loss):
        for each in FILLS.values():
            each(own, loss)
        own.state.log_history.append({"loss": loss})
        own.state.best_metric = loss
        own.control.should_training_stop = True
        sys.stdout.write("row")
        warnings.warn("row", stacklevel=1)

    calls = filling(tmp_path / "a", lambda own, loss: None, after=0)
    calls.train()
    own = filling(tmp_path / "b", fill, after=len(CALLS) - 3)
    own.train()
    assert len(CALLS) > own.after  # private rows were run
    assert not own.early + own.late + own.meter.values + list(own.named)
    assert own.state.global_step == calls.state.global_step and own.state.best_metric is None
    assert own.state.log_history == calls.state.log_history


@pytest.mark.filterwarnings("ignore:torch.func.vmap cannot run this model")
def test_a_compute_loss_that_ends_the_program_for_a_row_stops_nothing(tmp_path):
    rows = architectures.rows("GPT-2", COUNT)
    ends = []

    class Ends(PrivateTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if inputs["input_ids"][0].tolist() == list(rows[3]["input_ids"]):
                ends.append(3)
                sys.exit(3)
            return super().compute_loss(model, inputs)

    given = {"train_dataset": rows, "privacy": replace(PRIVACY, expected_batch_size=COUNT)}
    args = arguments(tmp_path, per_device_train_batch_size=COUNT)
    own = Ends(architectures.model("GPT-2"), args, **given)
    assert own.train().global_step == 3 and ends
