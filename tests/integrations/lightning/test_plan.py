# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest

import sfumato as sf
from sfumato.errors import InvalidParameterError
from sfumato.integrations.lightning.plan import planned, steps_per_epoch, with_steps
from sfumato.training import Privacy


@pytest.mark.parametrize(
    ("max_epochs", "max_steps", "steps"), [(3, -1, 30), (-1, 7, 7), (3, 7, 7), (1, 100, 10), (None, 5, 5)]
)
def test_the_trainer_says_how_many_steps_there_are(max_epochs, max_steps, steps):
    assert planned(SimpleNamespace(max_epochs=max_epochs, max_steps=max_steps), 10) == steps


@pytest.mark.parametrize(("max_epochs", "max_steps"), [(-1, -1), (0, -1), (3, 0)])
def test_a_run_without_a_fixed_number_of_steps_is_refused(max_epochs, max_steps):
    with pytest.raises(InvalidParameterError, match="fixed number of steps"):
        planned(SimpleNamespace(max_epochs=max_epochs, max_steps=max_steps), 10)


def test_an_epoch_is_the_public_size_divided_by_the_batch_size():
    assert steps_per_epoch(Privacy(), batch_size=64, public_size=1000) == 16
    assert steps_per_epoch(Privacy(), batch_size=2000, public_size=1000) == 1
    with pytest.raises(InvalidParameterError, match="public_size"):
        steps_per_epoch(Privacy(), batch_size=64, public_size=None)


def test_a_plan_must_have_the_batch_size_and_the_steps_of_lightning():
    plan = sf.plan(epsilon=3, delta=1e-5, public_size=1000, expected_batch_size=100, epochs=2)
    privacy = Privacy.of(plan)
    assert steps_per_epoch(privacy, batch_size=100, public_size=1000) == 10
    assert with_steps(privacy, 20, batch_size=100).steps == 20
    with pytest.raises(InvalidParameterError, match="batch_size=50"):
        steps_per_epoch(privacy, batch_size=50, public_size=1000)
    with pytest.raises(InvalidParameterError, match="max_steps=20"):
        with_steps(privacy, 30, batch_size=100)


def test_the_batch_size_of_the_loader_is_the_expected_one():
    made = with_steps(Privacy(epsilon=1.0), 5, batch_size=32)
    assert (made.steps, made.expected_batch_size, made.epsilon) == (5, 32.0, 1.0)
    with pytest.raises(InvalidParameterError, match="max_epochs"):
        with_steps(Privacy(epochs=3), 5, batch_size=32)
