# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
import torch

from sfumato import Relation
from sfumato.datasets import Examples, load
from sfumato.errors import InvalidParameterError
from sfumato.labels import NoisyGradients, Study, train
from sfumato.labels.recipes import METHODS, recipe, tiny_cnn

every_method = pytest.mark.parametrize("method", list(METHODS))


@pytest.fixture(scope="module")
def digits():
    """The small data set, and little of it."""
    data = load("digits")
    return replace(data, train=Examples(*data.train[:400]), test=Examples(*data.test[:100]))


def shortened(made):
    """Return method and study of a recipe with hardly any steps: what they cost is not known to be less."""
    if isinstance(made.method, NoisyGradients):
        return replace(made.method, steps=2), None
    return made.method, replace(made.study, epochs=1)


@every_method
def test_every_recipe_trains_within_the_epsilon_that_was_asked_for(digits, method):
    epsilon = 0.7
    made = recipe(digits, method, epsilon=epsilon, delta=1e-4, seed=1)
    asked, study = shortened(made)
    run = train(
        made.model,
        made.features,
        digits.train.labels,
        method=asked,
        study=study,
        evaluation=(made.test_features, digits.test.labels),
        progress=False,
    )
    assert asked.name == method
    assert 0 < run.guarantee.epsilon <= epsilon and run.guarantee.delta <= 1e-4
    assert run.guarantee.relation is Relation.REPLACE_LABEL
    assert 0 <= run.accuracy <= 1


@every_method
def test_a_recipe_is_for_all_rows_and_classes_of_its_data(digits, method):
    made = recipe(digits, method, epsilon=1.0, delta=1e-4, seed=1)
    assert len(made.features) == digits.public_size and len(made.test_features) == len(digits.test.labels)
    assert made.features.shape[1:] == made.test_features.shape[1:]
    assert made.method.classes == digits.num_classes and made.method.epsilon == 1.0
    assert (made.study is None) == isinstance(made.method, NoisyGradients)
    assert made.study is None or isinstance(made.study, Study)


def state(made):
    return [value.clone() for value in made.model.state_dict().values()]


@pytest.mark.parametrize("method", ["clusters", "altconv", "alibi"])
def test_a_seed_makes_first_weights_the_same_again_and_leaves_global_randomness_alone(digits, method):
    before = torch.get_rng_state()
    first = recipe(digits, method, epsilon=1.0, delta=1e-4, seed=3)
    assert torch.get_rng_state().equal(before)
    torch.rand(5)
    again, other = (recipe(digits, method, epsilon=1.0, delta=1e-4, seed=seed) for seed in (3, 4))
    assert all(a.equal(b) for a, b in zip(state(first), state(again), strict=True))
    assert not all(a.equal(b) for a, b in zip(state(first), state(other), strict=True))
    if method == "clusters":
        assert first.method.clusters.equal(again.method.clusters)


@pytest.mark.parametrize("method", ["magic", "AltConv", "prior-response", ""])
def test_an_unknown_method_is_refused_with_those_that_are_known(digits, method):
    with pytest.raises(InvalidParameterError, match="unknown method") as refusal:
        recipe(digits, method, epsilon=1.0, delta=1e-4)
    assert all(name in str(refusal.value) for name in METHODS)


@every_method
@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf")])
def test_an_epsilon_that_makes_no_sense_is_refused(digits, method, epsilon):
    with pytest.raises(InvalidParameterError, match="epsilon"):
        recipe(digits, method, epsilon=epsilon, delta=1e-4)


def test_the_small_network_takes_images_of_any_channels_and_size():
    for shape in ((1, 28, 28), (3, 32, 32), (1, 12, 12)):
        assert tiny_cnn(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)
