# SPDX-License-Identifier: Apache-2.0
"""Recipes: which rows are private, public and evaluated; their labels do not reach teachers or students."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato.datasets import Examples, load
from sfumato.errors import InvalidParameterError
from sfumato.pate.pipeline import train
from sfumato.pate.planning import plan
from sfumato.pate.recipes import RECIPES, recipe
from sfumato.pate.votes.aggregators import ConfidentGNMax, GNMax

ROOT = Path(__file__).parents[2]


def loaded(name):
    """Return a set from its files, or skip where they are absent."""
    folder = Path(os.environ.get("SFUMATO_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("the benchmark sets are not here: set SFUMATO_DATA to a folder that holds them")
    return load(name, folder=folder)


def images(name, side=28, rows=(40, 60)):
    """Return a set of random images under the name of a large one."""
    made = [Examples(torch.rand(n, 1, side, side), torch.arange(n) % 10) for n in rows]
    return replace(load("digits"), name=name, train=made[0], test=made[1])


def test_private_public_and_evaluated_rows_are_apart():
    data = load("digits")
    made = recipe(data)
    assert len(made.features) == len(made.labels) == len(data.train)
    assert len(made.public) == len(made.student_public) == 240
    assert len(made.evaluation[0]) == len(made.evaluation[1]) == 120
    together = np.concatenate([made.public, np.asarray(made.evaluation[0])])
    assert np.array_equal(together, data.test.features.flatten(1).numpy())
    assert made.labels[:3].tolist() == [data.classes[i] for i in data.train.labels[:3]]


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_embedded_sets_learn_by_their_recipe(name):
    made = recipe(load(name))
    aggregator, agreement = made.aggregator(20)
    run = train(
        made.teacher,
        made.student,
        made.features,
        made.labels,
        public=made.public,
        student_public=made.student_public,
        evaluation=made.evaluation,
        classes=made.classes,
        teachers=20,
        epsilon=30.0,
        delta=1e-4,
        aggregator=aggregator,
        agreement=agreement,
        progress=False,
    )
    assert run.accuracy > 0.75 and list(run.answers.per_class) == list(made.classes)


def test_teachers_of_large_images_see_directions_of_edges():
    made = recipe(images("fashion-mnist", rows=(40, 1030)))
    assert made.features.shape == (40, 392) and made.public.shape == (30, 392)
    assert made.student_public.shape == (30, 1, 28, 28) and len(made.evaluation[0]) == 1000


def test_mnist_is_asked_with_a_threshold_and_expects_agreement():
    made = recipe(images("mnist", rows=(40, 1030)))
    aggregator, agreement = made.aggregator(250)
    assert aggregator == ConfidentGNMax(threshold=230.0, threshold_stddev=120.0, stddev=30.0)
    job = plan(epsilon=1.97, delta=1e-5, teachers=250, aggregator=aggregator, agreement=agreement)
    assert job.queries > 600


def test_noise_grows_with_the_number_of_teachers():
    made = recipe(load("breast-cancer"))
    assert made.aggregator(50) == (GNMax(stddev=15.0), None)


def test_what_is_not_classified_has_no_recipe():
    with pytest.raises(InvalidParameterError, match="no recipe for 'shakespeare'"):
        recipe(replace(load("digits"), name="shakespeare"))
    assert "shakespeare" not in RECIPES


@pytest.mark.parametrize("name, public", [("mnist", 9000), ("fashion-mnist", 9000), ("adult", 10854)])
def test_large_sets_are_split_as_published(name, public):
    data = loaded(name)
    few = replace(data, train=Examples(*data.train[:100]))
    made = recipe(few)
    assert len(made.public) == public and len(made.public) + len(made.evaluation[0]) == len(data.test)
