# SPDX-License-Identifier: Apache-2.0
"""What the statistical tests of mechanisms share."""

import math
from collections.abc import Callable

import pytest
from scipy.stats import beta

ALPHA = 1e-6  # chance that correct code fails one check on a fresh seed


def _lower_bound(hits: int, other_hits: int, trials: int, delta: float = 0.0) -> float:
    """Clopper-Pearson lower bound on epsilon from how often an event happened on two neighbors.

    The event must be fixed before the draws. Each side may err with ALPHA / 2.
    """
    likely = beta.ppf(ALPHA / 2, hits, trials - hits + 1) if hits else 0.0
    unlikely = beta.ppf(1 - ALPHA / 2, other_hits + 1, trials - other_hits) if other_hits < trials else 1.0
    return math.log((likely - delta) / unlikely) if likely > delta else -math.inf


@pytest.fixture
def epsilon_lower_bound() -> Callable[..., float]:
    return _lower_bound
