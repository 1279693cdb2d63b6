# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.errors import InvalidParameterError

from .loops import LOSS, clipped_sum, data_of, first_batch, private, same


def test_a_backward_pass_through_an_output_is_refused():
    module, _, _, loader, privacy = private(*data_of("mlp"))
    x, y = first_batch(loader)
    with pytest.raises(InvalidParameterError, match="criterion that make_private returned"):
        LOSS(module(x), y).mean().backward()
    assert privacy.steps == 0 and all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize(
    "change",
    [
        lambda out: out.mul_(2),
        lambda out: out.detach().sub_(out.detach().mean(0)),
        lambda out: out.relu_(),
    ],
    ids=["multiplied", "centered", "cut off"],
)
def test_an_output_that_is_changed_in_place_is_refused(change):
    module, _, criterion, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    out = module(x)
    change(out)
    with pytest.raises(InvalidParameterError, match="changed in place"):
        criterion(out, y)


def test_a_change_that_leaves_no_mark_reaches_no_gradient():
    module, optimizer, criterion, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    out = module(x)
    seen = out.detach().numpy()
    seen -= seen.mean(0)
    criterion(out, y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)


def test_outputs_can_be_looked_at():
    module, _, _, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    out = module(x)
    assert out.argmax(1).shape == y.shape and 0 <= (out.argmax(1) == y).double().mean() <= 1
    assert torch.is_tensor(out) and type(out) is torch.Tensor and len(out.tolist()) == len(x)


class Cache:
    def __init__(self, rows) -> None:
        self.rows = rows


def test_what_is_no_tensor_and_no_constant_is_withheld():
    class Caching(torch.nn.Linear):
        def forward(self, x):
            return {"out": super().forward(x), "cache": Cache(x), "number": 3, "none": None}

    module, optimizer, criterion, loader, _ = private(
        Caching(6, 3).double(), data_of("mlp")[1], criterion=lambda out, y: LOSS(out["out"], y)
    )
    x, y = first_batch(loader)
    out = module(x)
    assert out["number"] == 3 and out["none"] is None and "Cache, withheld" in repr(out["cache"])
    with pytest.raises(InvalidParameterError, match="not handed out"):
        _ = out["cache"].rows
    criterion(out, y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y, lambda o, t: LOSS(o["out"], t).sum()), 8)


def test_numbers_that_were_computed_from_rows_are_withheld():
    class Telling(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x), float(x.mean())

    module, _, _, loader, _ = private(Telling(6, 3).double(), data_of("mlp")[1])
    x, _ = first_batch(loader)
    assert "float, withheld" in repr(module(x)[1])
