# SPDX-License-Identifier: Apache-2.0
"""What answers cost given the private votes: a number for the holder of the data, never to be published.

The epsilon of a data-independent job holds for all votes. If teachers agree, the same answers cost less, and
this module tells how much. That number depends on the votes, so it reveals something about them, and no
guarantee can be made of it afterwards. `StableLabeling` makes one, by a test.

Guarantee  None: an `UnpublishedEpsilon` is private. It is marked in its text, and has no guarantee.
Source     Papernot et al. 2018, arXiv:1802.08908, Theorem 6.
"""

from dataclasses import dataclass, field

from sfumato import _check
from sfumato.accounting import rdp, votes
from sfumato.pate.votes.aggregators import ConfidentGNMax, Counts, GNMax

__all__ = ["UnpublishedEpsilon", "data_dependent_epsilon"]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpublishedEpsilon:
    """An epsilon that depends on private votes. It must not leave the private side.

    Attributes:
        private_value: The number. It is not in `repr`, so that no log shows it by accident.
        delta: The delta that it was computed for.
    """

    private_value: float = field(repr=False)
    delta: float

    def __str__(self) -> str:
        return "an epsilon that depends on private votes, and must not be published"


def data_dependent_epsilon(
    counts: Counts, aggregator: GNMax | ConfidentGNMax, *, delta: float
) -> UnpublishedEpsilon:
    """Return what the answers to all queries cost, given the votes. Do not publish it.

    Args:
        counts: The votes for each class, [queries, classes], whole numbers. They are private.
        aggregator: How votes become answers.
        delta: The delta.

    Returns:
        The epsilon, marked as private.

    Raises:
        InvalidParameterError: If a parameter is out of range, or the counts are no whole numbers.

    >>> import numpy as np
    >>> found = data_dependent_epsilon(np.array([[250, 0]] * 100), GNMax(stddev=40.0), delta=1e-5)
    >>> print(found)
    an epsilon that depends on private votes, and must not be published
    >>> found.private_value < 0.5
    True
    """
    _check.probability(delta=delta)
    curve = votes.answers(counts, aggregator.votes)
    return UnpublishedEpsilon(private_value=rdp.epsilon_of(curve, delta), delta=delta)
