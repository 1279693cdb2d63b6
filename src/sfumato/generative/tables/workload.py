# SPDX-License-Identifier: Apache-2.0
"""The marginals that a synthetic table should match, and how much each possible measurement helps.

A measurement of columns r is worth the number of columns that it shares with each marginal of the workload,
added up over the workload.

Guarantee  Nothing here reads data: weights are whole numbers that follow from the number of columns.
Source     McKenna, Mullins, Sheldon, Miklau 2022, arXiv:2201.12677, Section 4.1 (downward closure) and 4.2
           (weights).
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

from sfumato.generative.tables.model.junction_tree import Clique

__all__ = ["all_marginals", "candidates", "target_marginals"]


def all_marginals(columns: int, degree: int) -> list[Clique]:
    """Return all sets of `degree` columns, or of all columns if there are fewer.

    Args:
        columns: The number of columns.
        degree: The number of columns of one marginal.

    Returns:
        The marginals.

    >>> all_marginals(3, 2)
    [(0, 1), (0, 2), (1, 2)]
    """
    return list(combinations(range(columns), min(degree, columns)))


def target_marginals(columns: int, degree: int, target: int) -> list[Clique]:
    """Return all sets of `degree` columns, and all sets of one more column that have the target in them.

    Args:
        columns: The number of columns.
        degree: The number of columns of one marginal.
        target: The column that matters most.

    Returns:
        The marginals.

    >>> target_marginals(3, 1, 2)
    [(0,), (1,), (2,), (0, 2), (1, 2)]
    """
    more = [each for each in all_marginals(columns, degree + 1) if target in each]
    return sorted({*all_marginals(columns, degree), *more}, key=lambda each: (len(each), each))


def candidates(workload: Sequence[Clique]) -> dict[Clique, int]:
    """Return every set of columns inside a marginal of the workload, with its weight.

    Args:
        workload: The marginals.

    Returns:
        The weights, by columns.

    >>> candidates([(0, 1), (1, 2)])
    {(0,): 1, (1,): 2, (2,): 1, (0, 1): 3, (1, 2): 3}
    """
    inside = {part for each in workload for part in _parts(each)}
    ordered = sorted(inside, key=lambda each: (len(each), each))
    return {each: sum(len(set(each) & set(other)) for other in workload) for each in ordered}


def _parts(columns: Clique) -> Iterable[Clique]:
    for size in range(1, len(columns) + 1):
        yield from combinations(columns, size)
