# SPDX-License-Identifier: Apache-2.0
import copy
import pickle

import pytest

from sfumato.accounting import dp_sgd, price

from .loops import data_of, private


def one_epoch(parts):
    for x, y in parts.data_loader:
        parts.criterion(parts.module(x), y).backward()
        parts.optimizer.step()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise_multiplier", 5.0),
        ("steps", 0),
        ("history", ()),
        ("sampling", None),
        ("relation", None),
        ("planned_steps", 1000),
        ("_taken", None),
        ("anything", 1),
    ],
)
def test_nothing_of_a_claim_can_be_edited(name, value):
    parts = private(*data_of("mlp"), noise_multiplier=0.5)
    one_epoch(parts)
    before = parts.privacy.get_epsilon(1e-5)
    assert before == price(dp_sgd(noise_multiplier=0.5, sampling_rate=0.2, steps=5), delta=1e-5).epsilon
    with pytest.raises((AttributeError, TypeError)):
        setattr(parts.privacy, name, value)
    with pytest.raises((AttributeError, TypeError)):
        delattr(parts.privacy, name)
    assert parts.privacy.get_epsilon(1e-5) == before and parts.privacy.steps == 5


def test_a_step_keeps_the_noise_that_it_had():
    parts = private(*data_of("mlp"), noise_multiplier=1.0)
    one_epoch(parts)
    assert parts.privacy.history == ((1.0, 5),)
    with pytest.raises(AttributeError):
        parts.privacy.history.append((9.0, 1))


@pytest.mark.parametrize(
    "copying", [copy.copy, copy.deepcopy, lambda privacy: pickle.loads(pickle.dumps(privacy))]
)
def test_a_copy_is_the_account_as_it_was_then(copying):
    parts = private(*data_of("mlp"), noise_multiplier=1.0)
    one_epoch(parts)
    copied = copying(parts.privacy)
    before = parts.privacy.get_epsilon(1e-5)
    one_epoch(parts)
    assert copied.steps == 5 and copied.get_epsilon(1e-5) == before
    assert parts.privacy.steps == 10 and parts.privacy.get_epsilon(1e-5) > before
