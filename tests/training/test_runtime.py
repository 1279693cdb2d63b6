# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.training import Engines, Runtime


def test_an_engine_can_be_named_by_text():
    assert Runtime(engine="book-keeping").engine is Engines("book-keeping")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"engine": "steam"}, "unknown engine 'steam'"),
        ({"microbatch_size": 0}, "microbatch_size"),
        ({"evaluation_batch_size": 0}, "evaluation_batch_size"),
        ({"timeout": 0.0}, "timeout"),
        ({"autocast": torch.float16}, "bfloat16"),
    ],
)
def test_settings_out_of_range_are_refused(options, says):
    with pytest.raises(InvalidParameterError, match=says):
        Runtime(**options)


def test_a_run_is_where_its_model_is_unless_told_otherwise(monkeypatch):
    assert Runtime().device_for(nn.Linear(1, 1)) == torch.device("cpu")
    assert Runtime().device_for(nn.Identity()) == torch.device("cpu")
    assert Runtime(device="meta").device_for(nn.Linear(1, 1)) == torch.device("meta")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert Runtime(device="cuda").device_for(nn.Linear(1, 1)) == torch.device("cuda", 1)


def test_products_are_coarser_inside_and_as_before_outside():
    x = torch.ones(2, 2)
    with Runtime(autocast=torch.bfloat16).forward(torch.device("cpu")):
        assert (x @ x).dtype is torch.bfloat16
    with Runtime().forward(torch.device("cpu")):
        assert (x @ x).dtype is torch.float32
    assert (x @ x).dtype is torch.float32
