# SPDX-License-Identifier: Apache-2.0
"""Only the methods of sfumato.labels can be passed as `method=`."""

import inspect

import pytest
import torch
from torch import nn

from sfumato import labels
from sfumato.errors import InvalidParameterError
from sfumato.labels import AltConv, NoisyGradients, RandomizedLabels, train
from sfumato.labels.methods.catalogue import GRADIENT_METHODS, RELEASING_METHODS, require_method
from sfumato.labels.methods.denoisers import AltConvDenoiser

X, Y = torch.randn(40, 4), torch.arange(40) % 3
METHODS = {*GRADIENT_METHODS, *RELEASING_METHODS}


def test_the_catalogue_has_every_public_method():
    public = [getattr(labels, name) for name in labels.__all__]
    with_event = {value for value in public if inspect.isclass(value) and hasattr(value, "event")}
    assert with_event == METHODS | {NoisyGradients}


@pytest.mark.parametrize(
    "wrong",
    [
        AltConvDenoiser(features=X, classes=3, batch_size=5),
        AltConv,
        "altconv",
        None,
        nn.Linear(4, 3),
    ],
    ids=["denoiser", "class", "name", "none", "model"],
)
def test_anything_else_is_refused_with_the_methods_there_are(wrong):
    with pytest.raises(InvalidParameterError, match="method must be one of") as refusal:
        train(nn.Linear(4, 3), X, Y, method=wrong)
    assert all(f"{kind.__name__}(...)" in str(refusal.value) for kind in METHODS)
    assert "tensor" not in str(refusal.value)


def test_something_that_only_looks_like_a_method_is_refused():
    class Free(RandomizedLabels.__mro__[1]):  # the base of reporting methods, which is not public
        name = "free"

        def _mechanism(self):
            return RandomizedLabels(epsilon=self.epsilon, classes=self.classes)

    with pytest.raises(InvalidParameterError, match="Free"):
        require_method(Free(epsilon=1.0, classes=3))


def test_methods_pass():
    require_method(RandomizedLabels(epsilon=1.0, classes=3))
    require_method(AltConv(epsilon=1.0, delta=1e-5, classes=3, public_size=40, steps=1))
