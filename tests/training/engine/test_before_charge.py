# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato import Budget, Ledger
from sfumato.errors import InvalidParameterError
from sfumato.training import BandedNoise, CyclicBatches, Runtime, train
from sfumato.training.engine.before_charge import require_finite

DATA = torch.zeros(60, 3), torch.zeros(60, dtype=torch.int64)


def refused(tmp_path, *, model=None, relation="add-remove", **options):
    """Return the words in which a run is refused, with an account that paid nothing."""
    account = Ledger(tmp_path / "l.db").open(
        "x", privacy_unit="example", budget=Budget(epsilon=8, delta=1e-3), relation=relation
    )
    settings = {"public_size": 60, "steps": 3, "noise_multiplier": 1.0, "delta": 1e-3, "clip_norm": 1.0}
    settings |= {} if "sampling" in options else {"expected_batch_size": 20}
    with pytest.raises(InvalidParameterError) as refusal:
        train(
            model or nn.Linear(3, 2),
            DATA,
            **settings | options,
            relation=relation,
            account=account,
            purpose="a model",
        )
    assert account.spent().epsilon == 0
    return str(refusal.value)


@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 1e38},
        {"noise_multiplier": 1e38},
        {"clip_norm": 1e30, "clip_schedule": lambda step: 10.0 ** (4 * step)},
        {
            "clip_norm": 1e38,
            "sampling": CyclicBatches(batch_size=10, public_size=60),
            "correlation": BandedNoise(bands=2),
            "relation": "zero-out",
        },
    ],
)
def test_noise_that_could_overflow_is_refused_before_the_charge(tmp_path, options):
    assert "could overflow torch.float32" in refused(tmp_path, **options)


def model_with(value, *, trainable=True):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(trainable)
    with torch.no_grad():
        model[0].weight[1, 2] = value
    return model


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_refused_before_the_charge(tmp_path, value):
    assert "in ['0.weight']" in refused(tmp_path, model=model_with(value))


def test_a_frozen_weight_may_be_infinite_as_masks_are_but_not_nan():
    require_finite(model_with(-torch.inf, trainable=False))
    with pytest.raises(InvalidParameterError, match=r"0\.weight"):
        require_finite(model_with(torch.nan, trainable=False))


def test_weights_without_values_yet_and_whole_numbers_are_left_alone():
    model = nn.Sequential(nn.LazyLinear(3))
    model.register_parameter("codes", nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False))
    require_finite(model)


def test_a_run_without_checks_takes_any_weights_as_of_a_server_that_is_not_trusted():
    options = {"public_size": 60, "steps": 1, "expected_batch_size": 20, "noise_multiplier": 1.0}
    train(model_with(torch.nan), DATA, **options, delta=1e-3, runtime=Runtime(check=False))
