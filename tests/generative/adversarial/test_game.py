# SPDX-License-Identifier: Apache-2.0
"""The generator's side of a GAN: it sees noisy gradients and weights alone, and adds clipped gradients."""

import copy

import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.game import Game, StepRule
from sfumato.generative.adversarial.losses import loss_named
from sfumato.generative.adversarial.networks import NetworkSampler, discriminator_for
from sfumato.mechanisms.random import SeededGenerator

SHAPE = (1, 4, 4)


def game(**changed):
    torch.manual_seed(0)
    generator = NetworkSampler(architecture="dense", shape=list(SHAPE), classes=2)
    settings = {
        "loss": loss_named("logistic"),
        "classes": 2,
        "rows": 16,
        "clip_norm": 0.5,
        "rule": StepRule(least=2),
        "optimizer": torch.optim.Adam(generator.parameters(), lr=0.01),
        "ema_decay": 0.9,
    }
    return Game(generator, **{**settings, **changed})


def discriminator():
    torch.manual_seed(1)
    return discriminator_for("dense", shape=SHAPE, classes=2, width=4)


def zeros(model):
    return {name: torch.zeros_like(p) for name, p in model.named_parameters()}


def test_the_gradient_on_generated_images_is_added_and_bounded():
    model, play = discriminator(), game()
    found = play.denoise(model, zeros(model), rows=None, generator=SeededGenerator(3))
    norm = torch.cat([part.flatten() for part in found.values()]).norm()
    assert 0 < float(norm) <= 0.5 + 1e-6
    given = {name: torch.ones_like(part) for name, part in zeros(model).items()}
    again = game().denoise(model, given, rows=None, generator=SeededGenerator(3))
    for name in found:
        assert torch.allclose(again[name] - 1, found[name], atol=1e-6)
    assert all(p.grad is None for p in model.parameters())


def test_the_generator_moves_as_often_as_the_rule_says():
    model, play = discriminator(), game(rule=StepRule(least=3))
    before = [p.clone() for p in play.generator.parameters()]
    for step in range(7):
        play.denoise(model, zeros(model), rows=None, generator=SeededGenerator(step))
        moved = any(not torch.equal(a, b) for a, b in zip(before, play.generator.parameters(), strict=True))
        assert moved == (step >= 2)
    assert play.moves == 2


def test_the_generator_learns_to_look_real_to_a_fixed_discriminator():
    model, play = discriminator(), game(rule=StepRule(least=1))

    def score():
        labels = torch.arange(50) % 2
        images = play.generator(play.generator.latent(50, torch.Generator().manual_seed(0)), labels)
        return float(model(images, labels).detach().mean())

    before = score()
    for step in range(30):
        play.denoise(model, zeros(model), rows=None, generator=SeededGenerator(step))
    assert score() > before + 0.1


def test_it_waits_until_images_are_told_apart():
    rule = StepRule(least=2, most=5, told_apart=0.6)
    assert [rule.due(waited, 0.5) for waited in range(1, 7)] == [False] * 4 + [True] * 2
    assert [rule.due(waited, 0.7) for waited in range(1, 4)] == [False, True, True]
    for wrong in ({"least": 0}, {"most": 0}, {"told_apart": 1.5}):
        with pytest.raises(InvalidParameterError):
            StepRule(**wrong)


def test_it_goes_on_from_what_it_remembers():
    model, first = discriminator(), game()
    for step in range(3):
        first.denoise(model, zeros(model), rows=None, generator=SeededGenerator(step))
    second = game()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for step in range(3, 6):
        one = first.denoise(model, zeros(model), rows=None, generator=SeededGenerator(step))
        other = second.denoise(model, zeros(model), rows=None, generator=SeededGenerator(step))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert first.moves == second.moves == 3


def test_it_states_what_it_holds():
    assert not game().holds_rows and not game().reveals_batches and "private image" in game().statement()
    assert "clip_norm=0.5" in repr(game())
