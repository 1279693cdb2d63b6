# SPDX-License-Identifier: Apache-2.0
"""The methods that `labels.train` accepts.

Guarantee  `require_method` accepts the methods listed here and nothing else: what a method charges and what
           it releases were checked together. Another object with the same attributes is refused.
"""

from sfumato.errors import InvalidParameterError
from sfumato.labels.methods.clusters import ClusterLabels
from sfumato.labels.methods.label_dp_pro import AltConv, SelfConv, SelfSpan
from sfumato.labels.methods.noisy_gradients import LabelDpSgd, NoisyGradients
from sfumato.labels.methods.released_labels import Alibi, MultiStage, PriorLabels, RandomizedLabels

__all__ = ["GRADIENT_METHODS", "RELEASING_METHODS", "require_method"]

GRADIENT_METHODS: tuple[type[NoisyGradients], ...] = (AltConv, SelfConv, SelfSpan, LabelDpSgd)
RELEASING_METHODS = (ClusterLabels, RandomizedLabels, PriorLabels, MultiStage, Alibi)


def require_method(method: object) -> None:
    """Raise unless this is a method of label privacy.

    Args:
        method: What was passed as `method=`.

    Raises:
        InvalidParameterError: If it is not an instance of a method. The message lists the methods.

    >>> require_method("altconv")
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: method must be one of AltConv(...), SelfConv(...), ...
    """
    methods = (*GRADIENT_METHODS, *RELEASING_METHODS)
    if not isinstance(method, methods):
        names = ", ".join(f"{kind.__name__}(...)" for kind in methods)
        given = f"the class {method.__name__}" if isinstance(method, type) else f"a {type(method).__name__}"
        raise InvalidParameterError(
            f"method must be one of {names} of sfumato.labels, but {given} was given."
        )
