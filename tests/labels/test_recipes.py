# SPDX-License-Identifier: Apache-2.0
import math
from dataclasses import replace

import pytest
import torch

from sfumato import Relation
from sfumato.datasets import Examples, load
from sfumato.errors import InvalidParameterError
from sfumato.labels import Learner, NoisyGradients, train
from sfumato.labels.recipes import METHODS, Start, recipe, standardized

every_method = pytest.mark.parametrize("method", list(METHODS))


@pytest.fixture(scope="module")
def digits():
    """The small data set, and little of it."""
    data = load("digits")
    return replace(data, train=Examples(*data.train[:400]), test=Examples(*data.test[:100]))


def shortened(made):
    """Return method and learner of a recipe with hardly any steps: what they cost is not known to be less."""
    if isinstance(made.method, NoisyGradients):
        return replace(made.method, steps=2), None
    return made.method, replace(made.learner, epochs=1)


@every_method
def test_every_recipe_trains_within_the_epsilon_that_was_asked_for(digits, method):
    epsilon = 0.7
    made = recipe(digits, method, epsilon=epsilon, delta=1e-4, seed=1)
    asked, learner = shortened(made)
    run = train(
        made.model,
        made.features,
        digits.train.labels,
        method=asked,
        learner=learner,
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
    assert (made.learner is None) == isinstance(made.method, NoisyGradients)
    assert made.learner is None or isinstance(made.learner, Learner)


@pytest.mark.parametrize("method", ["clusters", "multi-stage"])
def test_few_rows_are_passed_often_enough_to_learn_from(digits, method):
    learner = recipe(digits, method, epsilon=1.0, delta=1e-4, seed=1).learner
    batches = math.ceil(digits.public_size / learner.batch_size)
    assert 300 <= learner.epochs * batches < 300 + batches


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


@pytest.mark.parametrize("method", ["altconv", "dp-sgd", "selfconv", "selfspan"])
def test_a_recipe_for_random_weights_has_features_weights_and_settings_of_its_own(digits, method):
    warm = recipe(digits, method, epsilon=0.7, delta=1e-4, seed=1, model=torch.nn.Linear(64, 10))
    made = recipe(digits, method, epsilon=0.7, delta=1e-4, seed=1, start=Start.RANDOM)
    flat = made.features.flatten(1) if made.features.dim() == 2 else made.features
    over = 0 if flat.dim() == 2 else (0, 2, 3)
    assert flat.mean(over).abs().max() < 1e-4 and (flat.var(over, correction=0).max() - 1).abs() < 1e-3
    assert type(made.method) is type(warm.method) and made.method != warm.method
    first, again = (
        recipe(digits, method, epsilon=0.7, delta=1e-4, seed=seed, start=Start.RANDOM) for seed in (1, 2)
    )
    assert all(a.equal(b) for a, b in zip(state(made), state(first), strict=True))
    assert not all(a.equal(b) for a, b in zip(state(made), state(again), strict=True))
    asked, _ = shortened(made)
    run = train(made.model, made.features, digits.train.labels, method=asked, progress=False)
    assert 0 < run.guarantee.epsilon <= 0.7


def test_from_public_features_the_last_layer_alone_learns_on_whitened_inputs(digits):
    made = recipe(digits, "altconv", epsilon=1.0, delta=1e-4, seed=1)
    *before, last = made.model
    assert not any(p.requires_grad for layer in before for p in layer.parameters())
    assert all(p.requires_grad and not p.any() for p in last.parameters())
    inputs = torch.nn.Sequential(*before)(made.features)
    assert inputs.mean(0).abs().max() < 1e-3
    assert float(inputs.var(0, correction=0).mean()) == pytest.approx(1.0, abs=1e-3)


def test_from_random_weights_first_predictions_are_almost_even(digits):
    made = recipe(digits, "altconv", epsilon=1.0, delta=1e-4, seed=1, start=Start.RANDOM)
    with torch.no_grad():
        chances = made.model(made.features).softmax(1)
    assert float(chances.min()) > 0.05 and float(chances.max()) < 0.2


def test_test_rows_are_standardized_by_the_training_rows():
    train_rows, test_rows = torch.randn(50, 3) * 4 + 1, torch.zeros(2, 3)
    found = standardized(test_rows, by=train_rows)
    assert torch.allclose(found, -train_rows.mean(0) / train_rows.std(0, correction=0), atol=1e-6)
