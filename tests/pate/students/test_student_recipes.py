# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.pate.students.student_recipes import student_for, student_network


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 13, 15), (1, 8, 8), (30,)])
def test_a_network_returns_one_score_for_each_class(shape):
    assert student_network(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


def test_the_same_seed_gives_the_same_first_weights_and_global_state_stays():
    state = torch.get_rng_state()
    models = [student_for("mnist", shape=(1, 28, 28), classes=10, seed=seed).model for seed in (1, 1, 2)]
    first = [model[0].weight for model in models]  # pyright: ignore[reportIndexIssue]
    assert first[0].equal(first[1])
    assert not first[0].equal(first[2])
    assert torch.get_rng_state().equal(state)


def test_only_sets_whose_images_may_be_changed_have_changes():
    assert student_for("mnist", shape=(1, 28, 28), classes=10).settings.augment is not None
    assert student_for("adult", shape=(112,), classes=2).settings.augment is None


def test_seed_and_device_reach_the_settings():
    settings = student_for("fashion-mnist", shape=(1, 28, 28), classes=10, seed=5, device="cpu").settings
    assert (settings.seed, settings.device) == (5, "cpu")


def test_a_digit_is_never_mirrored():
    assert student_for("mnist", shape=(1, 28, 28), classes=10).settings.augment.mirror is False
    assert student_for("fashion-mnist", shape=(1, 28, 28), classes=10).settings.augment.mirror is True


@pytest.mark.parametrize(("shape", "classes"), [((), 2), ((0,), 2), ((4,), 1)])
def test_bad_shapes_and_classes_are_refused(shape, classes):
    with pytest.raises(InvalidParameterError):
        student_network(shape, classes)
