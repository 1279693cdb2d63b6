# SPDX-License-Identifier: Apache-2.0
"""DP-GAN and DP-CGAN: right at a large epsilon, one charge, resumed without another, audited by canaries."""

import pytest
import torch

from sfumato.audit import Canaries
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.generative.adversarial import dp_gan
from sfumato.generative.adversarial.dp_gan import DPCGAN, DPGAN
from sfumato.generative.adversarial.game import StepRule

FAST = StepRule(least=1)
SMALL = {"architecture": "dense", "steps": 4, "expected_batch_size": 64, "generator_steps": FAST}
TERMS = {"classes": 2, "public_size": 400, "delta": 1e-5, "progress": False}


def test_images_are_of_their_class_at_a_large_epsilon(stripes):
    torch.manual_seed(0)
    images, labels = stripes
    method = DPCGAN(
        architecture="dense",
        steps=300,
        expected_batch_size=100,
        generator_steps=FAST,
        learning_rate=3e-3,
        generator_learning_rate=3e-3,
        ema_decay=0.9,
    )
    made = method.fit(stripes, epsilon=1e5, **TERMS)
    drawn, asked = made.sample(60, seed=0)
    means = torch.stack([images[labels == number].mean(0) for number in (0, 1)])
    near = (drawn[:, None] - means).flatten(2).norm(dim=2).argmin(1)
    assert float((near == asked).float().mean()) > 0.95
    assert float((drawn - means[asked]).abs().mean()) < 0.1


@pytest.mark.parametrize("loss", ["logistic", "wasserstein"])
def test_without_classes_no_labels_are_needed(stripes, loss):
    made = DPGAN(loss=loss, **SMALL).fit(stripes[0], public_size=400, epsilon=1.0, delta=1e-5, progress=False)
    assert made.classes == 1 and made.method == "dp-gan" and made.sample(3)[1].tolist() == [0, 0, 0]


def test_a_wasserstein_discriminator_has_bounded_weights(stripes, monkeypatch):
    kept = []
    original = dp_gan.discriminator_for
    monkeypatch.setattr(
        dp_gan, "discriminator_for", lambda *a, **k: kept.append(original(*a, **k)) or kept[-1]
    )
    DPGAN(loss="wasserstein", weight_bound=0.02, **SMALL).fit(
        stripes[0], public_size=400, epsilon=1.0, delta=1e-5, progress=False
    )
    assert max(float(p.detach().abs().max()) for p in kept[0].parameters()) <= 0.02 + 1e-9


PAPER = {"learning_rate": 5e-5, "generator_learning_rate": 5e-5}  # Arjovsky et al. 2017, Algorithm 1


@pytest.mark.parametrize(("loss", "rates"), [("wasserstein", 10.0), ("logistic", 1.0)])
def test_the_first_step_of_both_sides_is_that_of_the_stated_optimizer(stripes, monkeypatch, loss, rates):
    """RMSProp divides a first gradient g by sqrt(0.01 g^2): ten rates. Adam divides by |g|: one rate."""
    moved = _first_moves(stripes, monkeypatch, loss=loss, weight_bound=1e3, **PAPER)
    for side in ("discriminator", "generator"):
        largest = max(float(change.abs().max()) for change in moved[side])
        assert largest == pytest.approx(rates * 5e-5, rel=0.02), side


def test_weights_are_clipped_at_the_bound_of_the_paper_after_each_step_and_not_before(stripes, monkeypatch):
    bounds = []
    original = dp_gan._bound_weights

    def watched(optimizer, bound):
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        before = max(float(p.detach().abs().max()) for p in weights)
        original(optimizer, bound)
        bounds.append((before, max(float(p.detach().abs().max()) for p in weights)))

    monkeypatch.setattr(dp_gan, "_bound_weights", watched)
    method = DPGAN(loss="wasserstein", weight_bound=0.01, **PAPER, **SMALL)
    method.fit(stripes[0], public_size=400, epsilon=1.0, delta=1e-5, progress=False)
    assert len(bounds) == SMALL["steps"] and all(after == pytest.approx(0.01) for _, after in bounds)
    assert bounds[0][0] > 0.011  # the first weights were beyond the bound: without clipping they stay there


def _first_moves(stripes, monkeypatch, **settings):
    """Return how far each weight of both sides moves in a run of one step."""
    kept, made = [], []
    original, game = dp_gan.discriminator_for, dp_gan.Game

    def discriminator(*arguments, **more):
        kept.append(original(*arguments, **more))
        made.append(("discriminator", kept[-1], [p.detach().clone() for p in kept[-1].parameters()]))
        return kept[-1]

    def started(generator, **more):
        made.append(("generator", generator, [p.detach().clone() for p in generator.parameters()]))
        return game(generator, **{**more, "ema_decay": 1e-9})  # draws with the last weights

    monkeypatch.setattr(dp_gan, "discriminator_for", discriminator)
    monkeypatch.setattr(dp_gan, "Game", started)
    method = DPGAN(**{**SMALL, "steps": 1, **settings})
    method.fit(stripes[0], public_size=400, epsilon=1.0, delta=1e-5, progress=False)
    return {
        side: [p.detach() - first for p, first in zip(module.parameters(), before, strict=True)]
        for side, module, before in made
    }


def test_a_fit_is_one_charge_of_the_stated_price(stripes, account):
    made = DPCGAN(**SMALL).fit(stripes, epsilon=2.0, account=account, purpose="look", **TERMS)
    assert len(account.releases()) == 1 and 1.9 < made.epsilon <= 2.0
    with pytest.raises(BudgetExceededError):
        DPCGAN(**SMALL).fit(stripes, epsilon=50.0, account=account, purpose="look", **TERMS)
    with pytest.raises(InvalidParameterError):
        DPCGAN(**SMALL).fit(stripes[0], epsilon=1.0, account=account, purpose="look", **TERMS)
    assert len(account.releases()) == 1


def test_a_run_that_died_is_resumed_without_a_second_charge(stripes, account, tmp_path, monkeypatch):
    terms = {**TERMS, "epsilon": 2.0, "account": account, "purpose": "look", "folder": tmp_path / "g"}
    original, calls = dp_gan.Game.denoise, []

    def dies(self, *arguments, **more):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, *arguments, **more)

    monkeypatch.setattr(dp_gan.Game, "denoise", dies)
    with pytest.raises(KeyboardInterrupt):
        DPCGAN(**SMALL).fit(stripes, **terms)
    made = DPCGAN(**SMALL).fit(stripes, resume=True, **terms)
    assert len(account.releases()) == 1 and made.epsilon <= 2.0
    assert len(calls) >= 5


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_an_image_that_is_poison_raises_nothing(stripes, poison, recwarn):
    images, labels = stripes[0].clone(), stripes[1]
    images[0] = poison
    made = DPCGAN(**SMALL).fit((images, labels), epsilon=1.0, **TERMS)
    assert bool(made.sample(4)[0].isfinite().all()) and not list(recwarn)


def test_canaries_audit_the_discriminator(stripes):
    method = DPCGAN(architecture="dense", steps=30, expected_batch_size=64, generator_steps=FAST)
    made = method.fit(stripes, epsilon=3.0, audit=Canaries(count=100), **TERMS)
    assert "canar" in made.statement()


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"loss": "hinge"}, {"clip_norm": 0.0}, {"ema_decay": 1.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        DPCGAN(**wrong)
