# SPDX-License-Identifier: Apache-2.0
"""Canaries of votes: right noise is not accused, wrong noise is, and other noise is refused."""

import pytest

from sfumato.accounting.guarantee import round_up
from sfumato.audit import VoteCanaries
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import arrays
from sfumato.pate import ConfidentGNMax, GNMax, IndividualBudgets, Labeling, LNMax, StableLabeling
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


WEIGHTED = IndividualBudgets(epsilons=(1.0, 3.0), shares=(1.0, 1.0), delta=1e-5)
CONFIDENT = ConfidentGNMax(threshold=9.0, threshold_stddev=9.0, stddev=8.0)
STABLE = StableLabeling(
    aggregator=GNMax(stddev=30.0),
    queries=500,
    teachers=250,
    epsilon=2.0,
    delta=1e-5,
    order=16.0,
    test_stddev=4.0,
    test_delta=1e-6,
)


@pytest.mark.parametrize(
    "job, parts",
    [
        (Labeling(aggregator=GNMax(stddev=4.0), **TERMS), ("The noise of 30 answers",)),
        (
            Labeling(aggregator=GNMax(stddev=9.0), **{**TERMS, "queries": 90}),
            ("40 of 90 answers", "the other"),
        ),
        (Labeling(aggregator=CONFIDENT, **TERMS), ("the comparison with the threshold",)),
        (Labeling(aggregator=GNMax(stddev=9.0), individual=WEIGHTED, **TERMS), ("weights, copies",)),
        (STABLE, ("the test of agreement", "40 of 500 answers")),
    ],
)
def test_the_statement_speaks_of_votes_and_names_what_was_not_audited(job, parts):
    found = VoteCanaries(count=400).attack(job, generator=seeded(0))
    told = found.statement()
    for part in (*parts, "which rows reach which teacher", "canary teachers"):
        assert part in told
    everything = " ".join([told, *(f"{c.name} {c.message} {c.sees}" for c in found.checks)])
    for word in ("gradient", "tensor", "step", "clipping", "batch", "coordinates"):
        assert word not in everything
    assert f"epsilon {round_up(found.claim.epsilon):g}" in told


def test_a_repr_is_short():
    found = VoteCanaries(count=400).attack(
        Labeling(aggregator=GNMax(stddev=4.0), **TERMS), generator=seeded(0)
    )
    assert len(repr(found)) < 200 and "not refuted" in repr(found) and str(found) == repr(found)


def test_a_check_of_votes_that_was_not_made_is_named():
    job = Labeling(aggregator=GNMax(stddev=1e-6), **TERMS)
    told = VoteCanaries(count=400).attack(job, generator=seeded(0)).statement()
    assert "votes of canaries, because noise is below" in told and "clip" not in told
