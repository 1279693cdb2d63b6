# SPDX-License-Identifier: Apache-2.0
"""The cost of a fit: of one estimator, or of all steps of a `Pipeline` together.

A pipeline is scikit-learn's own class, without `memory`: a cache keeps rows, and a hit reveals that they are
the same. The delta of the whole is the sum of the deltas of the steps.

Guarantee  The price of a pipeline is that of the events of its steps, composed. A step that would learn from
           the data without a charge is refused: its fit would be outside of any guarantee. Steps that compute
           each row from itself (`row_steps`, or "passthrough") cost nothing. scikit-learn's own are refused:
           they run before anything was charged, and can raise because of one row.
"""

from typing import Any

from sklearn.pipeline import Pipeline

from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators.base import PrivateEstimator, guarantee_of
from sfumato.estimators.public_facts import PublicFacts
from sfumato.estimators.row_steps import Binarizer, Normalizer

__all__ = ["cost", "event_of", "private_steps", "require_fitting"]

_FREE = (Normalizer, Binarizer)  # by their very class: a subclass may do anything


def private_steps(estimator: Any) -> list[PrivateEstimator]:
    """Return the charged steps, in order; raise if one learns without a charge, or none is charged."""
    found = _paying(estimator)
    if not found:
        raise InvalidParameterError(
            f"no step of the {type(estimator).__name__} is private, so there is nothing to pay for. Add an "
            "estimator of sfumato.estimators."
        )
    return found


def _paying(estimator: Any) -> list[PrivateEstimator]:
    if isinstance(estimator, PrivateEstimator):
        return [estimator]
    if type(estimator) is not Pipeline:
        raise InvalidParameterError(
            f"a {type(estimator).__name__} has no price: it is neither a private estimator nor a Pipeline of "
            "such, which a subclass is not. Use the estimators of sfumato.estimators."
        )
    if estimator.memory is not None:
        raise InvalidParameterError(
            "a Pipeline with memory=... keeps private rows on disk, and a step that it finds there pays "
            "nothing and tells that the rows are the same. Leave memory out."
        )
    found: list[PrivateEstimator] = []
    for name, step in estimator.steps:
        if isinstance(step, PrivateEstimator | Pipeline):
            found += _paying(step)
        elif type(step) in _FREE:
            step.fit(None)  # reads nothing: refuses parameters that make no sense
        elif not (step is None or (isinstance(step, str) and step == "passthrough")):
            raise InvalidParameterError(
                f"step {name!r} ({type(step).__module__}.{type(step).__name__}) pays nothing, and may learn "
                "from the data, mix its rows or fail because of one, so the pipeline has no guarantee. Use a "
                "private one, or Normalizer or Binarizer of sfumato.estimators."
            )
    return found


def require_fitting(estimator: Any, facts: PublicFacts) -> PublicFacts:
    """Refuse, before anything is charged, what a step would refuse after the steps before it were charged.

    Args:
        estimator: A private estimator, or a pipeline of such.
        facts: What is known of the data before it is read.

    Returns:
        What is known of the rows after the last step.

    Raises:
        InvalidParameterError: If a parameter of a step is out of range, or does not fit the columns.
    """
    if isinstance(estimator, PrivateEstimator):
        return estimator.require_fitting(facts)
    private_steps(estimator)  # refuses what is no pipeline of ours
    for _, step in estimator.steps:
        if isinstance(step, PrivateEstimator | Pipeline):
            facts = require_fitting(step, facts)
    return facts


def event_of(estimator: Any) -> DpEvent:
    """Return the event of one fit of an estimator or a pipeline."""
    return compose(*(step.event() for step in private_steps(estimator)))


def cost(estimator: Any) -> Guarantee:
    """Return the guarantee of one fit of an estimator or a pipeline. Nothing is fitted.

    Args:
        estimator: A private estimator, or a pipeline of such.

    Returns:
        The guarantee.

    Raises:
        InvalidParameterError: If a parameter is out of range, or a step would learn without a charge.

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
