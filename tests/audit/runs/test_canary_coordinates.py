# SPDX-License-Identifier: Apache-2.0
"""Each canary has one direction of its own, in float32, and parameters lie around those of the model."""

import pytest
import torch
from torch import nn

from sfumato.audit.runs.canary_coordinates import CanaryCoordinates, ModelWithCanaries

COUNT = 7


@pytest.mark.parametrize("tables", [2, 4])
def test_the_gradient_of_a_canary_is_one_along_its_own_direction_and_no_other(tables):
    for number in range(1, COUNT + 1):
        coordinates = CanaryCoordinates(COUNT, tables=tables)
        coordinates(torch.tensor([number])).sum().backward()
        own, _ = coordinates.gradients()
        assert own.tolist() == [float(each == number) for each in range(1, COUNT + 1)]
        squares = sum(float(table.weight.grad.square().sum()) for table in coordinates.tables)
        assert squares == 1.0


def test_nobody_contributes_to_the_idle_coordinates_of_two_tables():
    coordinates = CanaryCoordinates(COUNT, tables=2)
    coordinates(torch.arange(1, COUNT + 1)).sum().backward()
    own, idle = coordinates.gradients()
    assert own.tolist() == [1.0] * COUNT and idle.tolist() == [0.0] * COUNT


def test_coordinates_are_float32_whatever_the_default_is():
    torch.set_default_dtype(torch.float64)
    try:
        coordinates = CanaryCoordinates(COUNT, tables=2)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {table.weight.dtype for table in coordinates.tables} == {torch.float32}


def test_parameters_of_canaries_lie_before_and_after_those_of_the_model():
    host = ModelWithCanaries(nn.Linear(2, 2), CanaryCoordinates(COUNT, tables=4))
    names = [name.split(".")[0] for name, _ in host.named_parameters()]
    assert names == ["before", "before", "model", "model", "canaries", "canaries"]
    assert torch.equal(host(torch.ones(1, 2)), host.model(torch.ones(1, 2)))
