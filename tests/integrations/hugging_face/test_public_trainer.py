# SPDX-License-Identifier: Apache-2.0
import pytest
from torch.utils.data import IterableDataset

from sfumato.errors import InvalidParameterError, UnsupportedUseError
from sfumato.integrations.hugging_face import PrivateTrainer
from sfumato.integrations.hugging_face.public_trainer import refuse_data, refuse_overrides

from . import architectures
from .test_trainer import trainer

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
