# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.training.engine import parameter_values


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.b.bias.requires_grad_(False)


def identities(model):
    return {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}


def test_each_trainable_parameter_is_found_once_with_all_its_places():
    model = Tied()
    places = parameter_values.find(model)
    assert list(places.parameters) == ["a.weight", "a.bias"]
    other = torch.zeros(3, 3)
    with places.swapped({"a.weight": other}):
        assert model.a.weight is other and model.b.weight is other


@pytest.mark.parametrize("fails", [False, True])
def test_parameters_and_state_dict_keys_are_the_same_afterwards(fails):
    model = Tied()
    before, keys = identities(model), list(model.state_dict())
    places = parameter_values.find(model)
    try:
        with places.swapped({name: p.detach() for name, p in places.parameters.items()}):
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert identities(model) == before and list(model.state_dict()) == keys


@pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_compute_with_the_swapped_weights_and_then_with_their_own(layer):
    model, x = layer(2, 2), torch.randn(1, 3, 2)
    places = parameter_values.find(model)
    own = model(x)[0]
    with places.swapped({name: torch.zeros_like(p) for name, p in places.parameters.items()}):
        assert not model(x)[0].any()
    assert torch.equal(model(x)[0], own)


def test_a_model_with_nothing_trainable_is_refused():
    with pytest.raises(InvalidParameterError, match=r"no trainable parameter.*requires_grad=True"):
        parameter_values.find(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(InvalidParameterError, match=r"no trainable parameter"):
        parameter_values.find(nn.ReLU())


def test_a_complex_parameter_is_refused_by_name():
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(InvalidParameterError, match=r"w is torch.complex64"):
        parameter_values.find(model)


def test_a_parameter_that_was_replaced_is_named_and_stays():
    model = nn.Linear(2, 2)
    places = parameter_values.find(model)
    new = nn.Parameter(torch.zeros(2, 2))
    model.weight = new
    with (
        pytest.raises(InvalidParameterError, match=r"'weight'.*replaced"),
        places.swapped({"weight": torch.ones(2, 2)}),
    ):
        pass
    assert model.weight is new
