# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.generative.recipes import METHODS, image_method


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_settings_for_small_and_large_data(name):
    large = image_method(name, public_size=60_000, gpu=True)
    assert large != image_method(name, public_size=60_000, gpu=False)
    assert image_method(name, public_size=1000, gpu=True) == image_method(name, public_size=1000, gpu=False)
    assert callable(large.fit)


def test_a_method_that_there_is_not_is_told():
    with pytest.raises(InvalidParameterError, match="Use one of"):
        image_method("vae", public_size=10, gpu=False)
