# SPDX-License-Identifier: Apache-2.0
"""The terms that every question is asked on: its budget, its neighbors, its units, and how sure it should be.

Promise    Terms are public and checked when a question is made, before any data is seen. A name that the
           caller gives is text, a relation is one that we know, a level is a probability.
"""

from dataclasses import dataclass

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.mechanisms import inputs

__all__ = ["Terms"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What a question of one column has in common with all others.

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
