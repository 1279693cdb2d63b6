# SPDX-License-Identifier: Apache-2.0
"""What tests of all catalogues do with a case."""

import numpy as np
import pytest

from attacks import catalogue
from sfumato.audit.mechanisms.event_search import Outcomes
from sfumato.audit.mechanisms.mechanism_attack import Vectorized, audit_outputs, runs_needed
from sfumato.audit.mechanisms.outputs import read
from sfumato.mechanisms.random import words
from sfumato.testing import seeded

CONFIDENCE = 0.999  # of one check; its seed is fixed
TIMES = 40  # as many runs as would contradict a claim if no two outputs were alike


@pytest.fixture
def attacked():
    """Attack a case as its catalogue does, by a fixed seed."""
    return lambda case, trials: catalogue._attacked(case, trials, CONFIDENCE, seeded(0))


@pytest.fixture
def with_known_noise():
    """Attack a case whose noise comes from one of a few seeds that everybody knows: outputs with seeds.

    The search must find those that only one of the data sets has, often enough to contradict the claim. It
    cannot where the neighbors are too near to one another for that claim, or are not read at all.
    """

    def found(case, seeds):
        needed = runs_needed(case.claim.epsilon, delta=case.claim.delta, confidence=CONFIDENCE)
        drawn = (words(TIMES * needed, seeded(0)) % seeds).tolist()
        names = {}  # of each seed with each output
        first, second = (
            [names.setdefault(known, len(names)) for known in _outputs_by_seed(case, data, seeds)]
            for data in (case.first, case.second)
        )
        outputs = (np.array([known[seed] for seed in drawn]) for known in (first, second))
        return audit_outputs(*outputs, claim=case.claim, confidence=CONFIDENCE, events=(Outcomes(),))

    return found


def _outputs_by_seed(case, data, seeds):
    run, count = (case.run.run_many, (1,)) if isinstance(case.run, Vectorized) else (case.run, ())
    return enumerate(read([run(data, *count, seeded(seed)) for seed in range(seeds)]).keys())
