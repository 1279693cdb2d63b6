# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.datasets import load, names
from sfumato.errors import InvalidParameterError
from sfumato.training.models.networks import suitable_models
from sfumato.training.models.recipes import models_of, recipe


def test_every_data_set_has_a_recipe():
    for name in names():
        assert models_of(name)


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_every_model_that_fits_has_a_recipe_whose_batch_fits(name):
    data = load(name)
    assert set(models_of(name)) == set(suitable_models(data))
    assert all(recipe(name, model).expected_batch_size <= data.public_size for model in models_of(name))


def test_what_is_not_known_is_refused_with_what_is():
    with pytest.raises(InvalidParameterError, match="unknown data set 'letters'"):
        models_of("letters")
    with pytest.raises(InvalidParameterError, match="Use one of: mlp, cnn, linear"):
        recipe("digits", "lstm")
