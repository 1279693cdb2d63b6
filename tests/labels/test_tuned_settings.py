# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.labels.methods.catalogue import GRADIENT_METHODS
from sfumato.labels.tuned_settings import _TUNED, Start, tuned_method

NAMES = ["altconv", "selfconv", "selfspan", "dp-sgd"]
TERMS = {"delta": 1e-5, "classes": 3}


@pytest.mark.parametrize("start", Start)
def test_every_method_with_noisy_gradients_has_settings_for_every_start(start):
    assert sorted(_TUNED[start]) == sorted(NAMES)
    kinds = {type(tuned_method(name, start, epsilon=1.0, public_size=1000, **TERMS)) for name in NAMES}
    assert kinds == set(GRADIENT_METHODS)


@pytest.mark.parametrize("start", Start)
@pytest.mark.parametrize("name", NAMES)
def test_settings_are_those_of_the_search_at_its_own_size_and_epsilon(name, start):
    searched = _TUNED[start][name].method
    found = tuned_method(name, start, epsilon=0.1, delta=1e-6, classes=10, public_size=60_000)
    assert found == searched


@pytest.mark.parametrize("start", Start)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1e6])
@pytest.mark.parametrize("size", [1, 5, 60_000, 10**9])
def test_any_budget_and_size_have_settings_that_fit_them(name, start, epsilon, size):
    method = tuned_method(name, start, epsilon=epsilon, public_size=size, **TERMS)
    assert (method.epsilon, method.delta, method.classes, method.public_size) == (epsilon, 1e-5, 3, size)
    assert 1 <= method.expected_batch_size <= max(1, size // 4)
    method.check_size(rows=size, units=size)


def test_a_larger_budget_takes_more_steps_but_not_without_end():
    steps = [
        tuned_method("selfconv", Start.PUBLIC_FEATURES, epsilon=e, public_size=60_000, **TERMS).steps
        for e in (0.001, 0.1, 0.5, 10.0, 1000.0)
    ]
    assert steps == sorted(steps) and steps[0] < steps[1] < steps[2] and steps[3] == steps[4]
