# SPDX-License-Identifier: Apache-2.0
"""Whether a column of unknown type holds numbers or categories: bought, because one value must not decide it.

A CSV file has no types. Three noisy counts tell what most cells of a column are: whole numbers, other numbers
or words. What is bought next, bins or categories, follows from these counts.

Guarantee  `KindQuestion` costs its event: one histogram of three counts with discrete Laplace noise. Each row
           counts in at most one of them, so a unit moves them by at most `rows_per_unit` in sum.
           `UntypedQuestion` charges a second event that holds for each of the questions that may follow: all
           of them satisfy the same (epsilon, delta), whatever the counts said.
Edge cases Empty cells, words for missing values such as "NA", infinite numbers, and cells that are neither
           numbers nor text count nowhere. True and false are the numbers 1 and 0. Without more numbers than
           words a column is one of categories. Numbers are whole if fractions are less than half as many.
"""

from dataclasses import dataclass

import numpy as np

from sfumato import _check
from sfumato.accounting.events import ApproximateDpEvent, DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.generative.tables.bought_bins import BinsQuestion
from sfumato.generative.tables.cells import Cells, is_word, numbers_of
from sfumato.mechanisms.random import Generator
from sfumato.statistics.arrays import Integers
from sfumato.statistics.groups.key_discovery import KeyDiscovery
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts

__all__ = ["KindQuestion", "UntypedQuestion", "kind_counts"]

_COUNTS = 3  # whole numbers, other numbers, words
_WHOLE = 2.0  # whole numbers for each other number, at least, in a column of whole numbers


def kind_counts(cells: Cells) -> Integers:
    """Return how many cells are whole numbers, other numbers, and words. They are private.

    Args:
        cells: The private cells.

    Returns:
        The three counts.

    >>> kind_counts(["39", "2.5", "tea", "", None, float("nan"), 7]).tolist()
    [2, 1, 1]
    """
    numbers = numbers_of(cells)
    known = np.isfinite(numbers)
    whole = int((numbers[known] == np.floor(numbers[known])).sum())
    words = sum(map(is_word, cells))
    return np.array([whole, int(known.sum()) - whole, words], dtype=np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class KindQuestion:
    """What the cells of one column are.

    Args:
        epsilon: The epsilon of this purchase.
        rows_per_unit: The most rows of one unit.

    Raises:
        InvalidParameterError: If a parameter is out of range.
    """

    epsilon: float
    rows_per_unit: int = 1

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        _check.count(rows_per_unit=self.rows_per_unit)

    def event(self) -> DpEvent:
        """Return the event that the purchase is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return self._noise().event()

    def _noise(self) -> WholeNoise:
        return WholeNoise(
            epsilon=self.epsilon,
            delta=0.0,
            relation=Relation.ADD_REMOVE,
            kind=Kind.COUNTS,
            l1_sensitivity=self.rows_per_unit,
            l2_sensitivity=l2_of_counts(self.rows_per_unit, Relation.ADD_REMOVE),
            coordinates=min(_COUNTS, self.rows_per_unit),
        )

    def buy(self, cells: Cells, *, generator: Generator | None) -> str:
        """Return what the column is.

        Args:
            cells: The private cells.
            generator: Source of randomness. None is secure.

        Returns:
            "category", "number" or "whole".
        """
        whole, other, words = self._noise().add(kind_counts(cells), generator=generator).tolist()
        if whole + other <= words:
            return "category"
        return "whole" if whole > _WHOLE * other else "number"


@dataclass(frozen=True, kw_only=True, slots=True)
class UntypedQuestion:
    """What a column of unknown type holds: its kind, and then its categories or its bins.

    Args:
        kind: The question that comes first.
        categories: What is asked of words.
        numbers: What is asked of numbers.
        whole: What is asked of whole numbers.
    """

    kind: KindQuestion
    categories: KeyDiscovery
    numbers: BinsQuestion
    whole: BinsQuestion

    def event(self) -> DpEvent:
        """Return the event that the purchase is charged with.

        Returns:
            The event, which an accountant prices.
        """
        dearest = max(self.categories.epsilon, self.numbers.epsilon, self.whole.epsilon)
        return compose(self.kind.event(), ApproximateDpEvent(dearest, self.categories.delta))

    def next(self, cells: Cells, *, generator: Generator | None) -> KeyDiscovery | BinsQuestion:
        """Return the question that follows from what the column is.

        Args:
            cells: The private cells.
            generator: Source of randomness. None is secure.

        Returns:
            The question.
        """
        answers = {"category": self.categories, "number": self.numbers, "whole": self.whole}
        return answers[self.kind.buy(cells, generator=generator)]
