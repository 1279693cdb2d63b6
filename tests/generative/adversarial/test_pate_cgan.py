# SPDX-License-Identifier: Apache-2.0
"""PATE-CGAN: right at a large epsilon; one charge; parts drawn once; no private image beyond the teachers."""

import numpy as np
import pytest
import torch

from sfumato.accounting.price import price
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.generative.adversarial import pate_cgan
from sfumato.generative.adversarial.pate_cgan import PateCGAN
from sfumato.generative.adversarial.student_game import Pace, StudentGame
from sfumato.generative.adversarial.teacher_panel import TeacherPanel
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.kernel_mean import KernelMean
from sfumato.pate import ConfidentGNMax
from sfumato.testing import seeded

START = KernelMean(features=100, steps=3, rows=4)
SMALL = {
    "teachers": 20,
    "queries": 30,
    "rounds": 3,
    "architecture": "dense",
    "latent": 4,
    "start": START,
    "pace": Pace(teacher=2, student=2, generator=2, batch=8, blur=0.0),
}
TERMS = {"classes": 2, "public_size": 400, "delta": 1e-5, "progress": False}
EXACT = ConfidentGNMax(threshold=11.0, threshold_stddev=0.01, stddev=0.01)


def test_images_are_of_their_class_at_a_large_epsilon_from_random_weights(stripes):
    """Without noisy means: everything that the generator learns comes from votes."""
    torch.manual_seed(0)
    images, labels = stripes
    method = PateCGAN(
        teachers=20,
        aggregator=EXACT,
        queries=3000,
        rounds=20,
        architecture="dense",
        latent=4,
        start=None,
        pace=Pace(generator_rate=3e-3),
    )
    made = method.fit(stripes, epsilon=1e8, generator=seeded(0), **TERMS)
    drawn, asked = made.sample(60, seed=0)
    means = torch.stack([images[labels == number].mean(0) for number in (0, 1)])
    near = (drawn[:, None] - means).flatten(2).norm(dim=2).argmin(1)
    assert float((near == asked).float().mean()) > 0.95
    assert float((drawn - means[asked]).abs().mean()) < 0.1


def test_votes_that_are_not_relative_teach_nothing_and_the_statement_says_so(stripes):
    slow = Pace(teacher=40, student=2, generator=2, batch=8, blur=0.0, teacher_rate=1e-2)
    settings = {**SMALL, "start": None, "aggregator": EXACT, "pace": slow}
    torch.manual_seed(0)
    terms = {**TERMS, "epsilon": 1e8, "generator": seeded(0)}
    plain = PateCGAN(**settings, relative_votes=False).fit(stripes, **terms)
    assert "0 times real" in plain.statement() and "had nothing to tell apart" in plain.statement()
    assert "nothing to tell" not in PateCGAN(**settings).fit(stripes, **terms).statement()


def test_a_collapsed_generator_is_told(stripes, monkeypatch):
    monkeypatch.setattr(pate_cgan, "_ALIKE", 10.0)
    assert "collapsed" in PateCGAN(**SMALL).fit(stripes, epsilon=5.0, **TERMS).statement()


def test_a_fit_is_one_charge_before_an_image_is_read(stripes, account, monkeypatch):
    charged = []

    def watched(original):
        def inner(*arguments, **more):
            charged.append(len(account.releases()))
            return original(*arguments, **more)

        return inner

    monkeypatch.setattr(KernelMean, "sums", watched(KernelMean.sums))
    monkeypatch.setattr(TeacherPanel, "__init__", watched(TeacherPanel.__init__))
    made = PateCGAN(**SMALL).fit(stripes, epsilon=5.0, account=account, purpose="look", **TERMS)
    (release,) = account.releases()
    assert charged == [1, 1] and release.purpose == "look"
    assert made.epsilon == pytest.approx(price(account.event(), delta=1e-5).epsilon)
    assert made.epsilon <= 5.0 and "20 teachers" in made.statement()


def test_the_plan_is_the_most_that_the_budget_covers():
    method = PateCGAN(**{**SMALL, "teachers": 200, "queries": 10**6})
    noise, job = method.plan(epsilon=3.0, delta=1e-5)
    assert 2.9 < price(method.event(noise, job), delta=1e-5).epsilon <= 3.0
    more = pate_cgan.Labeling(aggregator=job.aggregator, queries=job.queries + 1, teachers=200, delta=1e-5)
    assert price(method.event(noise, more), delta=1e-5).epsilon > 3.0
    assert PateCGAN(**{**SMALL, "teachers": 200, "queries": 7}).plan(epsilon=3.0, delta=1e-5)[1].queries == 7
    assert PateCGAN(start=None).plan(epsilon=3.0, delta=1e-5)[0] == float("inf")


def test_refusals_cost_nothing(stripes, account):
    terms = {**TERMS, "account": account, "purpose": "look"}
    with pytest.raises(InvalidParameterError, match="does not cover one query"):
        PateCGAN(**SMALL).fit(stripes, epsilon=0.05, **terms)
    with pytest.raises(BudgetExceededError):
        PateCGAN(**{**SMALL, "queries": 10**6}).fit(stripes, epsilon=50.0, **terms)
    for data, wrong in (
        (stripes[0], {"epsilon": 1.0}),
        (stripes, {"epsilon": -1.0}),
        (stripes, {"epsilon": 1.0, "audit": 1}),
        (stripes, {"epsilon": 1.0, "resume": True}),
        (stripes, {"epsilon": 1.0, "public": stripes}),
        (stripes, {"epsilon": 5.0, "public_size": 19}),  # one below the number of teachers
    ):
        with pytest.raises(InvalidParameterError):
            PateCGAN(**SMALL).fit(data, **{**terms, **wrong})
    assert account.releases() == []


def test_the_partition_is_drawn_once(stripes, monkeypatch):
    drawn, made = [], []
    original, panel = pate_cgan.Partition.draw, TeacherPanel.__init__

    def draw(teachers, generator=None):
        drawn.append(original(teachers, generator))
        return drawn[-1]

    def init(self, rows, partition, *arguments, **more):
        made.append(partition)
        panel(self, rows, partition, *arguments, **more)

    monkeypatch.setattr(pate_cgan.Partition, "draw", staticmethod(draw))
    monkeypatch.setattr(TeacherPanel, "__init__", init)
    PateCGAN(**SMALL).fit(stripes, epsilon=5.0, **TERMS)
    assert len(drawn) == len(made) == 1 and made[0] is drawn[0] and drawn[0].teachers == (20,)


def reached(stripes, monkeypatch, *, redrawn):
    """Return for each image the teachers that were shown it over all rounds; images differ in brightness."""
    images = torch.linspace(0, 1, 400)[:, None, None, None].expand(400, 1, 8, 8).clone()
    seen: dict[float, set[int]] = {}
    original, learn = TeacherPanel._own_rows, TeacherPanel.learn

    def own_rows(self):
        found = original(self)
        for teacher, shown in enumerate(self._images[found][:, :, 0, 0, 0].tolist()):
            for brightness in shown:
                seen.setdefault(brightness, set()).add(teacher)
        return found

    def redraw(self, *arguments):
        if redrawn:  # the planted bug: parts are drawn anew, as public implementations do
            self._images = self._images[torch.randperm(len(self._images))]
        learn(self, *arguments)

    monkeypatch.setattr(TeacherPanel, "_own_rows", own_rows)
    monkeypatch.setattr(TeacherPanel, "learn", redraw)
    PateCGAN(**SMALL).fit((images, stripes[1]), epsilon=5.0, **TERMS)
    return seen


@pytest.mark.parametrize("redrawn", [False, True])
def test_an_image_reaches_one_teacher_over_all_rounds(stripes, monkeypatch, redrawn):
    seen = reached(stripes, monkeypatch, redrawn=redrawn)
    assert len(seen) > 200
    assert all(len(teachers) == 1 for teachers in seen.values()) is not redrawn


def test_student_and_generator_never_receive_a_private_image(monkeypatch):
    """Private images are marked: all of their pixels are exactly 0.7. Generated ones never are."""
    received = []
    mark = torch.tensor(0.7) * 2 - 1

    def spied(original):
        def inner(self, *arguments, **more):
            received.extend(a for a in arguments if isinstance(a, torch.Tensor))
            return original(self, *arguments, **more)

        return inner

    monkeypatch.setattr(StudentGame, "learn", spied(StudentGame.learn))
    real = torch.full((60, 1, 8, 8), 0.7)
    made = PateCGAN(**SMALL).fit((real, torch.arange(60) % 2), epsilon=5.0, **TERMS)
    images = [tensor for tensor in received if tensor.dim() == 4]
    assert images and not any((image == mark).flatten(1).all(1).any() for image in images)
    assert set(dict(made.sampler.named_buffers())) == set()  # a dense network holds weights alone


def test_noise_of_comparison_and_answer_are_drawn_apart(stripes, monkeypatch):
    from sfumato.pate.votes import aggregators

    scales = []
    original = aggregators.arrays.gaussian

    def record(size, *, stddev, generator):
        scales.append((size, stddev))
        return original(size, stddev=stddev, generator=generator)

    monkeypatch.setattr(aggregators.arrays, "gaussian", record)
    PateCGAN(**SMALL).fit(stripes, epsilon=20.0, **TERMS)
    queries = sum(size for size, stddev in scales if stddev == pytest.approx(0.25 * 20))
    answers = sum(size for size, stddev in scales if stddev == pytest.approx(0.15 * 20))
    _, job = PateCGAN(**SMALL).plan(epsilon=20.0, delta=1e-5)
    assert queries == job.queries and answers == 2 * queries


def test_seeded_noise_is_marked_and_repeats(stripes):
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        made = PateCGAN(**{**SMALL, "start": None}).fit(stripes, epsilon=9.0, generator=seeded(3), **TERMS)
        drawn.append(made.sample(4, seed=0)[0])
    assert torch.equal(*drawn) and "for study only" in made.statement().lower()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("label", [0, -5, 10**9])
def test_a_poisoned_image_raises_nothing(stripes, poison, label, recwarn):
    images, labels = stripes[0].clone(), stripes[1].clone()
    images[0], labels[0] = poison, label
    made = PateCGAN(**SMALL).fit((images, labels), epsilon=5.0, **TERMS)
    assert bool(made.sample(4)[0].isfinite().all()) and not list(recwarn)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_fewer_images_than_teachers_raise_nothing(stripes, count, account):
    data = (stripes[0][:count], stripes[1][:count])
    made = PateCGAN(**SMALL).fit(data, epsilon=5.0, account=account, purpose="look", **TERMS)
    assert len(account.releases()) == 1 and bool(made.sample(4)[0].isfinite().all())


def test_a_folder_keeps_the_generator(stripes, tmp_path):
    made = PateCGAN(**{**SMALL, "architecture": "convolutional", "width": 4}).fit(
        stripes, epsilon=5.0, folder=tmp_path / "g", **TERMS
    )
    again = ImageGenerator.load(tmp_path / "g")
    assert torch.equal(made.sample(6, seed=1)[0], again.sample(6, seed=1)[0])
    assert again.statement() == made.statement() and again.method == "pate-cgan"
    assert np.isfinite(again.epsilon)


@pytest.mark.parametrize(
    "wrong", [{"teachers": 0}, {"queries": 0}, {"start_share": 1.0}, {"anchor": -1.0}, {"rounds": 0}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        PateCGAN(**wrong)
