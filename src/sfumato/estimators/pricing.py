# SPDX-License-Identifier: Apache-2.0
"""What a fit would cost: an estimator's, or that of all steps of a `Pipeline` together.

Promise    A pipeline's price is that of its steps' events, composed. A step that would learn from the data
           without paying is refused: its fit would be outside of any guarantee. Steps that learn nothing
           (scikit-learn's tag `requires_fit` is False, or "passthrough") cost nothing.
Delta      That of the whole is the sum of the steps' deltas.
"""

from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Binarizer, Normalizer

from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators.base import PrivateEstimator, guarantee_of

__all__ = ["cost", "event_of", "private_steps"]

_ROW_BY_ROW = (Normalizer, Binarizer)  # compute each row from itself alone


def private_steps(estimator: Any) -> list[PrivateEstimator]:
    """Return the steps that pay, in order; raises where one learns without paying."""
    if isinstance(estimator, PrivateEstimator):
        return [estimator]
    if not isinstance(estimator, Pipeline):
        raise InvalidParameterError(
            f"a {type(estimator).__name__} has no price: it is neither a private estimator nor a Pipeline of "
            "such. Use the estimators of sfumato.estimators."
        )
    found: list[PrivateEstimator] = []
    for name, step in estimator.steps:
        if isinstance(step, PrivateEstimator | Pipeline):
            found += private_steps(step)
        elif step is not None and step != "passthrough" and type(step) not in _ROW_BY_ROW:
            raise InvalidParameterError(
                f"step {name!r} ({type(step).__name__}) may learn from the data or mix its rows, and pays "
                "nothing, so the pipeline has no guarantee. Use a private one, or Normalizer or Binarizer."
            )
    return found


def event_of(estimator: Any) -> DpEvent:
    """Return what one fit of an estimator or a pipeline costs, as an event."""
    return compose(*(step.event() for step in private_steps(estimator)))


def cost(estimator: Any) -> Guarantee:
    """Return what one fit of an estimator or a pipeline promises; nothing is fitted.

    >>> from sklearn.pipeline import make_pipeline
    >>> from sfumato.estimators import LogisticRegression, StandardScaler
    >>> scaler = StandardScaler(epsilon=0.2, bounds=(0, 10))
    >>> print(cost(make_pipeline(scaler, LogisticRegression(epsilon=0.8, clip_norm=3.0, classes=(0, 1)))))
    (1, 0)-differential privacy for one row, add-remove neighbors
    """
    steps = private_steps(estimator)
    kinds = {(Relation.parse(step.relation), step.privacy_unit) for step in steps}
    if len(kinds) != 1:
        raise InvalidParameterError(
            "all private steps must have the same relation and the same privacy_unit to be priced together."
        )
    relation, unit = kinds.pop()
    event, delta = event_of(estimator), sum(step.delta for step in steps)
    return guarantee_of(event, delta=delta, relation=relation, privacy_unit=unit)
