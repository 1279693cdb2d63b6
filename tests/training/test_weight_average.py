# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.training.weight_average import WeightAverage


def set_to(parameter, value):
    with torch.no_grad():
        parameter.fill_(value)


def test_the_average_follows_its_formula_with_warm_up():
    weight = nn.Parameter(torch.zeros(1))
    average = WeightAverage({"w": weight}, decay=0.3)
    expected = 0.0
    for t, value in enumerate([1.0, 5.0, -2.0, 4.0]):
        set_to(weight, value)
        average.update()
        decay = min(0.3, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * value
    with average.applied():
        assert weight.item() == pytest.approx(expected)
    assert weight.item() == 4.0
    average.keep()
    assert weight.item() == pytest.approx(expected)


def test_weights_come_back_after_an_exception():
    weight = nn.Parameter(torch.ones(1))
    average = WeightAverage({"w": weight}, decay=0.9)
    set_to(weight, 2.0)
    with pytest.raises(RuntimeError), average.applied():
        raise RuntimeError
    assert weight.item() == 2.0


def test_a_saved_average_goes_on():
    weight = nn.Parameter(torch.zeros(1))
    first, second = (WeightAverage({"w": weight}, decay=0.5) for _ in range(2))
    set_to(weight, 3.0)
    first.update()
    second.load_state_dict(first.state_dict())
    set_to(weight, 1.0)
    first.update()
    second.update()
    assert torch.equal(first.state_dict()["averages"]["w"], second.state_dict()["averages"]["w"])


@pytest.mark.parametrize("decay", [0.0, 1.0, -1.0, float("nan")])
def test_a_decay_must_lie_between_0_and_1(decay):
    with pytest.raises(InvalidParameterError, match="ema_decay"):
        WeightAverage({}, decay=decay)
