# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.experiments import Scale
from sfumato.experiments.r4 import generators

QUICK = Scale(quick=True, device="cpu")


@pytest.mark.parametrize("name", list(generators.SETTINGS))
def test_every_setting_is_one_of_its_method(name):
    setting = generators.SETTINGS[name]
    method = setting.made(public_size=60_000, gpu=True)
    assert all(getattr(method, field) == value for field, value in setting.settings.items())


def test_ten_teachers_are_asked_three_queries_and_with_a_start_one():
    assert generators.planned_queries("pate-r4", Scale()) == 3
    assert generators.planned_queries("pate-10", Scale()) == 1


def test_images_are_drawn_within_the_budget_beside_test_images():
    state = torch.get_rng_state()
    made = generators.drawn_images("dp-cgan", QUICK, seed=1)
    assert made.generator.guarantee.epsilon <= generators.SETTINGS["dp-cgan"].epsilon
    assert made.generator.guarantee.delta == generators.DELTA
    assert made.synthetic.features.shape[1:] == made.holdout.features.shape[1:]
    assert torch.equal(torch.get_rng_state(), state)


def test_classifiers_learn_more_from_real_images_than_by_chance():
    real, holdout = generators.real_images(QUICK)
    found = generators.scored(real, holdout, QUICK, seed=0, names=["logistic regression"])
    assert found["logistic regression"].auroc > 0.95
