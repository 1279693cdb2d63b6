# SPDX-License-Identifier: Apache-2.0
"""Parameters that all questions of one column share: budget, neighbors, contribution bound, interval level.

Failure    Parameters are public. They are checked when a question is constructed, before any data is read.
"""

from dataclasses import dataclass

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.mechanisms import inputs

__all__ = ["Terms"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """The parameters that all questions about one column share.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> Terms(epsilon=0.5).relation
    <Relation.ADD_REMOVE: 'add-remove'>
    """

    epsilon: float
    delta: float = 0.0
    relation: Relation = Relation.ADD_REMOVE
    contribution_bound: int = 1
    level: float = 0.95
    column: str = "values"

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        if self.delta != 0:
            _check.delta(delta=self.delta)
        inputs.settle(self, "epsilon", "delta")
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        _check.count(contribution_bound=self.contribution_bound)
        _check.probability(level=self.level)
        _check.text(column=self.column)
