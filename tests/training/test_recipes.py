# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.datasets import load, names
from sfumato.errors import InvalidParameterError
from sfumato.training.models import fitting
from sfumato.training.recipes import delta_for, models_of, recipe


@given(st.integers(1, 10**15))
def test_delta_is_the_largest_power_of_ten_below_one_over_the_size(size):
    delta = delta_for(size)
    assert delta * size < 1 <= 10 * delta * size * (1 + 1e-12)
    assert f"{delta:e}".startswith("1.000000e-")


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InvalidParameterError, match="public_size"):
        delta_for(size)


def test_every_data_set_has_a_recipe():
    for name in names():
        assert models_of(name)


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_every_model_that_fits_has_a_recipe_whose_batch_fits(name):
    data = load(name)
    assert set(models_of(name)) == set(fitting(data))
    assert all(recipe(name, model).expected_batch_size <= data.public_size for model in models_of(name))


def test_what_is_not_known_is_refused_with_what_is():
    with pytest.raises(InvalidParameterError, match="unknown data set 'letters'"):
        models_of("letters")
    with pytest.raises(InvalidParameterError, match="Use one of: mlp, cnn, linear"):
        recipe("digits", "lstm")
