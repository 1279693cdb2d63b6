# SPDX-License-Identifier: Apache-2.0
"""Student and generator: they follow the answers, and stand still without them."""

import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.networks import NetworkSampler, discriminator_for
from sfumato.generative.adversarial.student_game import Pace, StudentGame
from sfumato.generative.images.mean_embedding import FourierFeatures, Matching

PACE = Pace(student=30, generator=20, generator_rate=3e-3, student_rate=3e-3, blur=0.3)


def game(*, anchor=None, anchor_weight=0.0):
    torch.manual_seed(0)
    return StudentGame(
        NetworkSampler(architecture="dense", shape=[1, 4, 4], classes=2, latent=4),
        discriminator_for("dense", shape=(1, 4, 4), classes=2, width=4),
        classes=2,
        pace=PACE,
        anchor=anchor,
        anchor_weight=anchor_weight,
        draws=torch.Generator().manual_seed(1),
    )


def weights(network):
    return torch.cat([p.detach().flatten().clone() for p in network.parameters()])


def brightness(found):
    return found.images(400)[0].mean()


def test_the_generator_follows_the_answers():
    """Bright images are answered "real": images become brighter; or darker, if dark ones are."""
    for sign in (1, -1):
        found = game()
        before = brightness(found)
        for _ in range(3):
            images, labels = found.images(200)
            bright = images.mean((1, 2, 3)) * sign
            found.learn(images, labels, (bright > bright.median()).long())
        assert float((brightness(found) - before) * sign) > 0.2


@pytest.mark.parametrize("answer", [-1, 0, 1])
def test_answers_of_one_kind_move_nothing(answer):
    found = game()
    before = weights(found.generator)
    found.learn(*found.images(10), torch.full((10,), answer))
    assert torch.equal(weights(found.generator), before)
    assert torch.equal(weights(found.finished()), before)


def test_queries_without_an_answer_are_left_out():
    found = game()
    images, labels = found.images(9)
    found.learn(images, labels, torch.tensor([1, 0, -1] * 3))
    assert found.answered == {0: 3, 1: 3} and len(found._known[0][0]) == 6


def test_an_anchor_holds_the_generator_where_it_is():
    features = FourierFeatures(16, count=50, bandwidths=(0.5,))
    moved = []
    for weight in (0.0, 1000.0):
        found = game()
        images = (found.images(2000)[0] + 1) / 2
        means = features.of(images).unflatten(0, (1000, 2)).mean(0)
        found = game(anchor=Matching(features, means, rows=50), anchor_weight=weight)
        before = brightness(found)
        for _ in range(2):
            asked, labels = found.images(200)
            bright = asked.mean((1, 2, 3))
            found.learn(asked, labels, (bright > bright.median()).long())
        moved.append(float(brightness(found) - before))
    assert moved[0] > 0.1 and abs(moved[1]) < moved[0] / 3


def test_numbers_out_of_range_are_refused():
    for wrong in ({"teacher": 0}, {"batch": 0}, {"student_rate": 0.0}, {"blur": -1.0}):
        with pytest.raises(InvalidParameterError):
            Pace(**wrong)
