# SPDX-License-Identifier: Apache-2.0
import torch

from sfumato.experiments import Scale
from sfumato.experiments.r5 import tasks

QUICK = Scale(quick=True)


def test_the_quick_scale_has_the_first_digits_in_place_of_every_set():
    task = tasks.images("fashion-mnist", QUICK)
    assert task.train[0].shape[1:] == (1, 8, 8) and task.public_size == 600
    assert task.first(10).public_size == 10 and len(task.first(10).test[1]) == len(task.test[1])


def test_the_cnn_has_two_convolutions_and_two_linear_layers():
    task = tasks.images("mnist", QUICK)
    model = tasks.convolutional(task)
    kinds = [type(layer).__name__ for layer in model.modules()]
    assert kinds.count("Conv2d") == kinds.count("Linear") == 2
    assert model(task.train[0][:3]).shape == (3, 10) and tasks.logistic(task)(task.train[0][:3]).shape == (
        3,
        10,
    )


def test_a_seed_decides_first_weights_and_leaves_torch_alone():
    task = tasks.images("mnist", QUICK)
    before = torch.random.get_rng_state()
    first, again, other = (
        tasks.with_seed(lambda: tasks.logistic(task), seed)[1].weight for seed in (1, 1, 2)
    )
    assert first.equal(again) and not first.equal(other)
    assert torch.random.get_rng_state().equal(before)


def test_the_device_that_was_asked_for_is_used():
    assert tasks.device_of(Scale(device="cpu")) == "cpu"
