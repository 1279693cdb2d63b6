# SPDX-License-Identifier: Apache-2.0
"""`PrivateGradients` with settings of its passes among its options, as tests vary them."""

from dataclasses import fields

from sfumato.training import PassSettings, PrivateGradients, cross_entropy


def private_gradients(model, loss=cross_entropy, **options):
    own = {each.name for each in fields(PassSettings)} & options.keys()
    passes = PassSettings(**{name: options.pop(name) for name in own})
    return PrivateGradients(model, loss, passes=passes, **options)
