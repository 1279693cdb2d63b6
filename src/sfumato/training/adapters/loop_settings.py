# SPDX-License-Identifier: Apache-2.0
"""Settings of a private loop that most loops leave as they are: its samples, and whom its claim is about."""

from dataclasses import dataclass

from sfumato import _check
from sfumato.accounting.guarantee import Relation

__all__ = ["LoopSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopSettings:
    """How the samples of a private loop are drawn, and whom its claim is about.

    Args:
        expected_batch_size: How many units a step has on average; None: the loader's batch size times
            `batches_per_step`.
        batches_per_step: How many batches of the loader make one step.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        privacy_unit: What a row of the data set is; None means that of the account, or else "example".

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> LoopSettings(batches_per_step=4, relation="replace-one").relation
    <Relation.REPLACE_ONE: 'replace-one'>
    """

    expected_batch_size: float | None = None
    batches_per_step: int = 1
    relation: Relation | str = Relation.ADD_REMOVE
    privacy_unit: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        _check.count(batches_per_step=self.batches_per_step)
        if self.expected_batch_size is not None:
            _check.positive(expected_batch_size=self.expected_batch_size)
