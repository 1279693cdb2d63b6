# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.federated.recipes import NAMED, federation_recipe


def test_every_recipe_asks_a_share_of_its_clients():
    for name in NAMED:
        recipe = federation_recipe(name)
        assert 0 < recipe.cohort_share <= 1 and recipe.rounds > 0


def test_other_data_is_refused():
    with pytest.raises(InvalidParameterError, match="unknown data 'letters'"):
        federation_recipe("letters")
