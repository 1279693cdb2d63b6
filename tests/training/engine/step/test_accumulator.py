# SPDX-License-Identifier: Apache-2.0
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sfumato.training.engine.step.accumulator import Sums


def parameters(dtype=torch.float32):
    return {"w": nn.Parameter(torch.ones(2, 3, dtype=dtype)), "b": nn.Parameter(torch.ones(2, dtype=dtype))}


@given(st.lists(st.sampled_from([("w",), ("b",), ("w", "b"), ()]), max_size=5))
def test_sums_add_up_whatever_is_named_and_start_anew_after_clear(pieces):
    model = parameters()
    sums = Sums(model)
    for _ in range(2):
        for names in pieces:
            sums.add_({name: torch.ones_like(model[name]) for name in names})
        (flat,) = sums.flat()
        counts = [sum(name in names for names in pieces) for name in ("w", "b")]
        assert flat.tolist() == [counts[0]] * 6 + [counts[1]] * 2
        sums.clear()


def test_what_is_done_to_the_flat_sums_is_in_every_grad():
    model = parameters()
    sums = Sums(model)
    sums.add_({"w": torch.ones(2, 3)})
    for total in sums.flat():
        total.add_(0.5)
    sums.to_grad()
    assert model["w"].grad.tolist() == [[1.5] * 3] * 2 and model["b"].grad.tolist() == [0.5] * 2


def test_sums_are_as_fine_as_float32_and_grads_have_the_type_of_the_parameter():
    for dtype, wanted in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        model = parameters(dtype)
        sums = Sums(model)
        assert [t.dtype for t in sums.flat()] == [wanted]
        sums.to_grad()
        assert model["w"].grad.dtype is dtype


def test_parameters_of_two_types_have_a_flat_sum_each():
    model = {"w": nn.Parameter(torch.ones(3)), "v": nn.Parameter(torch.ones(2, dtype=torch.float64))}
    assert [(t.dtype, t.numel()) for t in Sums(model).flat()] == [(torch.float32, 3), (torch.float64, 2)]


def test_a_parameter_that_moved_to_another_type_gets_new_sums():
    model = parameters()
    sums = Sums(model)
    sums.add_({"w": torch.ones(2, 3)})
    model["w"].data = model["w"].data.double()
    sums.add_({"w": torch.ones(2, 3, dtype=torch.float64)})
    flats = {t.dtype: t for t in sums.flat()}
    assert flats[torch.float64].tolist() == [1.0] * 6


def test_a_sum_without_noise_is_never_seen_in_a_grad():
    model = parameters()
    sums = Sums(model)
    sums.flat()
    sums.to_grad()
    sums.clear()
    kept = nn.Parameter(torch.zeros(2))
    own = torch.zeros(2)
    kept.grad = own  # a gradient of somebody else's stays
    model["b"].grad = own
    sums.add_({"w": torch.full((2, 3), 7.0)})
    assert model["w"].grad is None and model["b"].grad is own


def test_gradients_are_returned_as_they_were_before_rounding_unless_they_were_changed():
    kinds = {"fine": torch.float32, "coarse": torch.bfloat16, "changed": torch.float16, "none": torch.float16}
    parameters = {name: nn.Parameter(torch.zeros(3, dtype=dtype)) for name, dtype in kinds.items()}
    sums, third = Sums(parameters), torch.full((3,), 1 / 3)
    assert sums.released() == {}
    sums.add_(dict.fromkeys(parameters, third))
    sums.to_grad()
    parameters["changed"].grad = parameters["changed"].grad * 2
    parameters["none"].grad = None
    found = sums.released()
    assert set(found) == {"fine", "coarse", "changed"}
    assert torch.equal(found["fine"], third) and torch.equal(found["coarse"], third)
    assert found["coarse"].dtype == torch.float32 and found["changed"] is parameters["changed"].grad


def test_after_drop_no_parameter_has_a_gradient():
    model = parameters()
    sums = Sums(model)
    sums.add_({"w": torch.ones(2, 3)})
    sums.flat()
    sums.to_grad()
    sums.drop()
    assert all(parameter.grad is None for parameter in model.values())
    sums.hide()  # nothing is left to take out
