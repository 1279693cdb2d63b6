# SPDX-License-Identifier: Apache-2.0
"""Shadow models: who is in which, what is read off them, and a leak found without DP and not with it."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

from sfumato.audit.evidence.roc import Roc
from sfumato.audit.models.membership import Lira, loss_from_confidences
from sfumato.audit.models.shadow_models import (
    coin_flips,
    confidences,
    halves,
    loss_scores,
    select,
    shadow_models,
)
from sfumato.datasets import load
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training.budget import dp_sgd_for
from sfumato.training.description import Privacy
from sfumato.training.privacy.clipping import Clipping
from sfumato.training.trainer import Trainer

ALPHA = 1e-6  # chance that correct code fails one check on a fresh seed


# --- who is in which -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 5, 16])
def test_each_row_is_in_half_of_the_models(count):
    found = halves(2000, count, generator=seeded(0)).sum(0)
    assert set(found.tolist()) == ({count // 2} if count % 2 == 0 else {count // 2, count // 2 + 1})


def test_halves_are_drawn_for_each_row_on_its_own():
    members = halves(20_000, 4, generator=seeded(1))
    patterns, counts = np.unique(members.T, axis=0, return_counts=True)
    assert len(patterns) == 6  # every way to choose two of four
    assert all(binomtest(int(c), 20_000, 1 / 6).pvalue > ALPHA for c in counts)


def test_an_attacked_models_rows_are_fair_coins():
    assert binomtest(int(coin_flips(20_000, generator=seeded(2)).sum()), 20_000, 0.5).pvalue > ALPHA


def test_one_model_has_no_halves():
    with pytest.raises(InvalidParameterError, match="2 or more"):
        halves(10, 1)


# --- what is read off a model ----------------------------------------------------------------------------


def some_rows(count=7, classes=4, scale=3.0):
    draws = torch.Generator().manual_seed(0)
    return scale * torch.randn(count, classes, generator=draws), torch.arange(count) % classes


def test_a_confidence_is_the_log_odds_of_the_own_label():
    rows = some_rows()
    p = rows[0].double().softmax(1)[torch.arange(7), rows[1]].numpy()
    assert confidences(nn.Identity(), rows, batch_size=3)[:, 0] == pytest.approx(np.log(p / (1 - p)))


def test_a_confidence_does_not_round_to_certainty():
    rows = torch.tensor([[1000.0, 0.0, -5.0]]).repeat(2, 1), torch.tensor([0, 1])
    found = confidences(nn.Identity(), rows)[:, 0]
    assert found[0] == pytest.approx(1000 - np.log1p(np.exp(-5.0))) and found[1] == pytest.approx(-1000)


def test_views_are_asked_after_the_row_itself():
    rows = some_rows(classes=2)
    found = confidences(nn.Identity(), rows, views=[lambda x: x.flip(1), lambda x: 2 * x])
    assert found[:, 1] == pytest.approx(-found[:, 0]) and found[:, 2] == pytest.approx(2 * found[:, 0])


def test_asking_leaves_the_model_as_it_was_and_switches_dropout_off():
    model = nn.Sequential(nn.Dropout(0.9)).train()
    rows = some_rows()
    assert np.array_equal(confidences(model, rows), confidences(nn.Identity(), rows))
    assert model.training


def test_the_loss_score_is_minus_the_loss_of_each_row():
    rows = some_rows()
    own = -nn.functional.cross_entropy(*rows, reduction="none").numpy()
    assert loss_scores(nn.Identity(), rows) == pytest.approx(own)
    assert loss_from_confidences(confidences(nn.Identity(), rows)) == pytest.approx(own, rel=1e-5)
    squared = loss_scores(nn.Identity(), rows, loss=lambda model, x, y: ((x - 1) ** 2).sum(1))
    assert squared == pytest.approx(-((rows[0] - 1) ** 2).sum(1).numpy())


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(InvalidParameterError, match="2 classes or more"):
        confidences(nn.Identity(), (torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)))
    with pytest.raises(InvalidParameterError, match="at least one"):
        confidences(nn.Identity(), (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)))
    with pytest.raises(InvalidParameterError, match="as many"):
        loss_scores(nn.Identity(), (torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64)))


# --- training --------------------------------------------------------------------------------------------


def test_each_shadow_model_is_trained_on_the_rows_that_its_mask_says():
    rows = torch.arange(20.0)[:, None].repeat(1, 2), torch.arange(20) % 2
    halves_seen = []
    shadows = shadow_models(
        lambda: nn.Linear(2, 2),
        rows,
        count=4,
        train=lambda model, half: halves_seen.append((model, half)),
        generator=seeded(3),
    )
    assert shadows.members.shape == (4, 20) and shadows.confidences(rows).shape == (4, 20, 1)
    assert len({id(model) for model in shadows.models}) == 4
    for model, mask, (trained, (x, y)) in zip(shadows.models, shadows.members, halves_seen, strict=True):
        assert trained is model
        assert x[:, 0].tolist() == np.flatnonzero(mask).tolist() and torch.equal(y, x[:, 0].long() % 2)


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    return data.train.features[:600], data.train.labels[:600]


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def openly(model, rows):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows[0]), rows[1]).backward()
        optimizer.step()


def privately(model, rows):
    mechanism = dp_sgd_for(
        Privacy(
            public_size=300,
            expected_batch_size=60,
            steps=8,
            epsilon=1,
            delta=1e-4,
            clipping=Clipping(clip_norm=1.0),
        )
    )
    Trainer(
        model, rows, mechanism=mechanism, public_size=300, delta=1e-4, learning_rate=0.5, progress=False
    ).fit()


def attacked(rows, fit):
    """Return the curves of the loss threshold and of LiRA over two attacked models."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        shadows = shadow_models(network, rows, count=8, train=fit, generator=seeded(4))
        seen, found = shadows.confidences(rows), []
        for target in range(2):
            inside, model = coin_flips(len(rows[0]), generator=seeded(5 + target)), network()
            fit(model, select(rows, inside))
            asked = confidences(model, rows)
            scores = Lira().scores(asked, shadows=seen, members=shadows.members)
            found.append((inside, loss_from_confidences(asked), scores))
    return [
        Roc(
            np.concatenate([part[i][part[0]] for part in found]),
            np.concatenate([part[i][~part[0]] for part in found]),
        )
        for i in (1, 2)
    ]


def test_lira_finds_members_of_a_model_trained_openly(digits):
    loss, lira = attacked(digits, openly)
    assert lira.tpr_at(0.01).p_value < ALPHA
    assert lira.area > loss.area + 0.05
    assert lira.tpr_at(0.01).tpr > 2 * loss.tpr_at(0.01).tpr


def test_no_attack_finds_members_of_a_model_trained_at_epsilon_1(digits):
    for curve in attacked(digits, privately):
        assert curve.tpr_at(0.01).p_value > ALPHA
        assert 0.5 in curve.area_interval(confidence=1 - ALPHA)
