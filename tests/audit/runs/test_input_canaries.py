# SPDX-License-Identifier: Apache-2.0
"""Input canaries: no true claim is called false for its kind of noise, and learning by heart shows."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.accounting import gaussian
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.runs.input_canaries import audit_inputs, mislabeled
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded

COUNT = 2000
DELTA = 1e-8
NUMBERED = torch.arange(COUNT).float()[:, None], torch.zeros(COUNT, dtype=torch.int64)
CONFIDENCE = 0.999  # of one check; its seed is fixed


def claim(epsilon):
    return Guarantee(epsilon=epsilon, delta=DELTA, relation=Relation.ADD_REMOVE, privacy_unit="example")


class Table(nn.Module):
    """A model that holds a number for each canary, and is sure of class 0 where it is large."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers = nn.Parameter(numbers)

    def forward(self, rows):
        found = self.numbers[rows[:, 0].long()]
        return torch.stack([found, torch.zeros_like(found)], dim=1)


def told(release, seed):
    """Return a trainer that learns who was in, as `release` of the truth tells it."""
    draws = np.random.default_rng(seed)

    def train(rows):
        present = np.zeros(COUNT, dtype=bool)
        present[rows[0][:, 0].long().numpy()] = True
        return Table(torch.from_numpy(release(present, draws)).float())

    return train


def randomized_response(present, draws):
    """Tell the truth of each with the chance that makes it exactly 1-DP."""
    honest = draws.random(COUNT) < math.e / (1 + math.e)
    return np.where(honest, present, ~present) + 1e-3 * draws.random(COUNT)


def gaussian_noise(present, draws):
    """Add noise with which telling is exactly (4, 1e-8)-DP."""
    return present + draws.normal(size=COUNT) * gaussian.stddev_for(4.0, DELTA, sensitivity=1.0)


def audited(release, epsilon, seed=0, **settings):
    return audit_inputs(
        told(release, seed),
        NUMBERED,
        claim=claim(epsilon),
        generator=seeded(seed),
        **({"confidence": CONFIDENCE} | settings),
    )


@pytest.mark.parametrize("seed", range(5))
def test_randomized_response_is_not_called_false(seed):
    assert not audited(randomized_response, 1.0, seed).refuted


def test_what_is_for_gaussian_noise_calls_randomized_response_false_so_it_must_be_asked_for():
    assert audited(randomized_response, 1.0, gaussian=True).refuted
    (bound,) = audited(randomized_response, 1.0).bounds
    assert bound.attack.startswith("binary guesses") and bound.confidence == CONFIDENCE


def test_gaussian_noise_shows_more_where_it_is_said_to_be_there():
    said, unsaid = (audited(gaussian_noise, 4.0, gaussian=gaussian) for gaussian in (True, False))
    assert not said.refuted and not unsaid.refuted
    assert said.best.epsilon > 1.1 * unsaid.best.epsilon > 0
    assert [bound.confidence for bound in said.bounds] == pytest.approx([1 - 5e-4] * 2)


def test_a_claim_that_is_too_small_is_contradicted():
    assert audited(randomized_response, 0.5).refuted
    assert audited(gaussian_noise, 0.5).refuted


def test_a_model_that_learns_by_heart_is_found_out_and_its_scores_are_kept():
    features = torch.eye(200)
    canaries = mislabeled(features, classes=2, generator=seeded(1))

    def by_heart(rows):
        model = nn.Linear(200, 2, bias=False)
        with torch.no_grad():
            model.weight.zero_()
            for row, label in zip(*rows, strict=True):
                model.weight[label] += 5 * row
        return model

    found = audit_inputs(by_heart, canaries, claim=claim(1.0), generator=seeded(2), subject="by heart")
    assert found.refuted and found.subject == "by heart"
    assert len(found.in_scores) + len(found.out_scores) == 200
    assert min(found.in_scores) > max(found.out_scores)


def test_the_trainer_is_given_the_canaries_that_are_in_and_no_others():
    given = []

    def train(rows):
        given.append(rows)
        return Table(torch.zeros(COUNT))

    features, labels = NUMBERED[0], torch.arange(COUNT) % 2
    audit_inputs(train, (features, labels), claim=claim(1.0), generator=seeded(0))
    ((inside, their_labels),) = given
    places = inside[:, 0].long()
    assert torch.equal(places % 2, their_labels) and len(places.unique()) == len(places)
    assert abs(len(places) - COUNT / 2) < 5 * math.sqrt(COUNT) / 2


def test_labels_of_canaries_are_uniform_and_features_stay():
    features = torch.randn(3000, 2)
    same, labels = mislabeled(features, classes=3, generator=seeded(0))
    assert same is features
    assert all(abs(int((labels == label).sum()) - 1000) < 150 for label in range(3))  # 5.8 deviations


@pytest.mark.parametrize("classes", [1, 0, -1, 2.0])
def test_labels_of_fewer_than_two_classes_are_refused(classes):
    with pytest.raises(InvalidParameterError, match="classes"):
        mislabeled(torch.zeros(3, 2), classes=classes)


@pytest.mark.parametrize(
    ("canaries", "settings", "says"),
    [
        ((torch.zeros(30, 1), torch.zeros(29, dtype=torch.int64)), {}, "not 30 and 29"),
        ((torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64)), {}, "num_rows"),
        ((torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)), {}, "at least"),
        (NUMBERED, {"confidence": 1.0}, "confidence"),
    ],
    ids=["unequal", "none", "few", "confidence"],
)
def test_what_cannot_be_audited_is_refused(canaries, settings, says):
    with pytest.raises(InvalidParameterError, match=says):
        audit_inputs(
            lambda rows: Table(torch.zeros(COUNT)),
            canaries,
            claim=claim(1.0),
            generator=seeded(3),
            **settings,
        )


def test_a_trainer_that_returns_no_model_is_refused():
    with pytest.raises(InvalidParameterError, match="a NoneType came back"):
        audit_inputs(lambda rows: None, NUMBERED, claim=claim(1.0))
