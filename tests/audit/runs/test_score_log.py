# SPDX-License-Identifier: Apache-2.0
"""Who is in is decided by fair coins, and scores are log likelihood ratios of in over out."""

import math

import pytest
import torch

from sfumato.accounting.guarantee import Relation
from sfumato.audit.runs import score_log
from sfumato.audit.runs.canaries import Canaries
from sfumato.audit.runs.score_log import ScoreLog, halves, least_canaries, require_enough
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded


def test_coins_leave_canaries_enough_on_both_sides():
    fewest = Canaries(count=20)
    least = least_canaries(fewest.confidence)
    plain = [int(score_log._coins(20, seeded(seed).fork("canaries", 0)).sum()) for seed in range(300)]
    assert any(not least <= count <= 20 - least for count in plain)  # so these are thrown again
    drawn = torch.stack([halves(20, least, seeded(seed)) for seed in range(300)])
    assert all(least <= int(count) <= 20 - least for count in drawn.sum(1))
    assert (drawn.sum(0) - 150).abs().max() < 5 * math.sqrt(300) / 2  # nobody is preferred


def test_too_few_canaries_are_refused_with_the_number_that_is_needed():
    with pytest.raises(InvalidParameterError, match="use at least 20"):
        require_enough(19, 0.95)
    require_enough(20, 0.95)


def normal_density(x, mean, stddev):
    return math.exp(-((x - mean) ** 2) / (2 * stddev**2))


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_scores_are_log_likelihood_ratios(relation, rate):
    log, noise, seen = ScoreLog(torch.tensor([True]), relation, sampling_rate=rate), 1.7, (0.4, -1.2)
    for value in seen:
        log.add(torch.tensor([value], dtype=torch.float64), noise=noise)
    out = -1.0 if relation.replaces else 0.0
    expected = 0.0
    for value in seen:
        absent = normal_density(value, 0, noise)
        inside = rate * normal_density(value, 1, noise) + (1 - rate) * absent
        outside = rate * normal_density(value, out, noise) + (1 - rate) * absent
        expected += math.log(inside / outside)
    assert log.inside[0] == pytest.approx(expected) and not len(log.outside)


def test_only_counted_canaries_get_a_score_and_a_log_goes_on_where_it_was():
    log, again = (ScoreLog(torch.tensor([True, False]), Relation.ADD_REMOVE, sampling_rate=1.0) for _ in "ab")
    log.add(torch.ones(2, dtype=torch.float64), noise=1.0, counted=torch.tensor([0.0, 1.0]))
    assert log.inside.tolist() == [0.0] and log.outside.tolist() == [0.5]
    again.load_state_dict(log.state_dict())
    assert again.outside.tolist() == [0.5]
