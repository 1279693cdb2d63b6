# SPDX-License-Identifier: Apache-2.0
"""Canaries of votes: right noise is not accused, wrong noise is, and other noise is refused."""

import pytest

from sfumato.audit import VoteCanaries
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import arrays
from sfumato.pate import ConfidentGNMax, GNMax, Labeling, LNMax
from sfumato.pate.votes import aggregators
from sfumato.testing import seeded

TERMS = {"queries": 30, "teachers": 50, "delta": 1e-5}


@pytest.mark.parametrize("relation", ["add-remove", "zero-out", "replace-one"])
@pytest.mark.parametrize(
    "aggregator", [GNMax(stddev=4.0), ConfidentGNMax(threshold=9.0, threshold_stddev=9.0, stddev=8.0)]
)
def test_right_noise_is_not_accused_and_something_is_shown(aggregator, relation):
    job = Labeling(aggregator=aggregator, relation=relation, **TERMS)
    found = VoteCanaries(count=1000).attack(job, privacy_unit="person", generator=seeded(0))
    assert not found.refuted
    assert 0.3 * found.claim.epsilon < found.best.epsilon <= found.claim.epsilon
    assert found.claim.privacy_unit == "person"


def test_noise_that_is_too_small_is_found(monkeypatch):
    def noisy(counts, *, stddev, generator=None):
        noise = arrays.gaussian(counts.size, stddev=0.9 * stddev, generator=generator)
        return counts + noise.reshape(counts.shape)

    monkeypatch.setattr(aggregators, "noisy_counts", noisy)
    job = Labeling(aggregator=GNMax(stddev=4.0), **TERMS)
    assert VoteCanaries(count=1000).attack(job, generator=seeded(0)).refuted


def test_laplace_noise_and_too_few_canaries_are_refused():
    with pytest.raises(InvalidParameterError, match="LNMax"):
        VoteCanaries().attack(Labeling(aggregator=LNMax(scale=4.0), **TERMS))
    with pytest.raises(InvalidParameterError):
        VoteCanaries(count=2).attack(Labeling(aggregator=GNMax(stddev=4.0), **TERMS))
