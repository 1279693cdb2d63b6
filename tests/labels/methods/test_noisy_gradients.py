# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from dp_accounting import dp_event as dp
from torch import nn

from sfumato import Relation, price
from sfumato.errors import CalibrationError, InvalidParameterError
from sfumato.labels import AltConv, LabelDpSgd, NoisyGradients, SelfConv, SelfSpan, train
from sfumato.labels.methods.catalogue import GRADIENT_METHODS
from sfumato.training import PoissonSampling, ShuffledBatches

TERMS = {"epsilon": 1.0, "delta": 1e-5, "classes": 3, "public_size": 1000, "expected_batch_size": 100}


def method(kind=LabelDpSgd, **terms):
    return kind(**(TERMS | {"steps": 40} | terms))


@pytest.mark.parametrize("kind", GRADIENT_METHODS)
def test_what_a_run_is_charged_for_meets_the_budget_for_a_replaced_label(kind):
    asked = method(kind)
    assert asked.relation is Relation.REPLACE_LABEL
    cost = price(asked.event(), delta=1e-5, relation=Relation.REPLACE_LABEL)
    assert 0.99 < cost.epsilon <= 1.0


def test_batches_that_are_shown_amplify_nothing_and_a_label_is_charged_each_time_it_is_used():
    for kind in (SelfSpan, SelfConv):
        run = method(kind).mechanism()
        assert isinstance(run.sampling, ShuffledBatches)
        assert run.event() == dp.SelfComposedDpEvent(dp.GaussianDpEvent(run.noise_multiplier(0)), 4)  # epochs
    for kind in (LabelDpSgd, AltConv):
        run = method(kind).mechanism()
        assert isinstance(run.sampling, PoissonSampling)
    assert method(SelfConv).mechanism().noise_multiplier(0) > run.noise_multiplier(0)


def test_a_replaced_label_costs_more_than_an_added_row():
    event = method(noise_multiplier=2.0, epsilon=50.0).event()
    replaced = price(event, delta=1e-5, relation=Relation.REPLACE_LABEL).epsilon
    added = price(event, delta=1e-5, relation=Relation.ADD_REMOVE).epsilon
    assert replaced > 1.5 * added


def test_with_given_noise_the_run_stops_before_the_budget_is_exceeded():
    whole = method(noise_multiplier=2.0, steps=400)
    run = whole.mechanism()
    assert 0 < run.steps < 400
    spent = [
        price(run.first(steps).event(), delta=1e-5, relation=Relation.REPLACE_LABEL).epsilon
        for steps in (run.steps,)
    ]
    assert spent[0] <= 1.0
    one_more = LabelDpSgd(**(TERMS | {"steps": run.steps + 1, "noise_multiplier": 2.0, "epsilon": 99.0}))
    assert price(one_more.event(), delta=1e-5, relation=Relation.REPLACE_LABEL).epsilon > 1.0


def test_a_budget_too_small_for_one_step_is_refused():
    with pytest.raises(CalibrationError, match="one step"):
        method(noise_multiplier=0.1, epsilon=0.1).mechanism()


def test_the_base_is_no_method():
    with pytest.raises(TypeError, match="abstract"):
        method(NoisyGradients)


def test_without_a_denoiser_gradients_are_used_as_they_are():
    assert method(LabelDpSgd).denoiser(torch.zeros(9, 4)) is None


@pytest.mark.parametrize("kind", GRADIENT_METHODS)
@pytest.mark.parametrize(
    "terms",
    [
        {"classes": 1},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"delta": 0.0},
        {"steps": 0},
        {"ema_decay": 1.0},
        {"momentum": -0.1},
        {"clip_norm": 0.0},
        {"public_size": 0},
        {"contribution_bound": 0},
        {"learning_rate": -1.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, terms):
    with pytest.raises(InvalidParameterError, match=next(iter(terms))):
        method(kind, **terms)


def test_a_falling_rate_reaches_zero_after_the_last_step():
    method = LabelDpSgd(
        epsilon=2.0,
        delta=1e-4,
        classes=3,
        public_size=100,
        steps=4,
        expected_batch_size=20,
        falling_rate=True,
    )
    optimizer = method.optimizer([nn.Parameter(torch.zeros(2))])
    schedule, rates = method.schedule(optimizer), []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([2.0, 1.5, 1.0, 0.5]) and optimizer.param_groups[0]["lr"] == 0


def test_a_run_follows_the_schedule_of_its_method(monkeypatch):
    rates, step = [], torch.optim.SGD.step

    def noted(optimizer, *given, **said):
        rates.append(optimizer.param_groups[0]["lr"])
        return step(optimizer, *given, **said)

    monkeypatch.setattr(torch.optim.SGD, "step", noted)
    terms = {"epsilon": 2.0, "delta": 1e-4, "classes": 3, "public_size": 100, "steps": 3}
    terms |= {"expected_batch_size": 20}
    for falling, wanted in ((False, [2.0, 2.0, 2.0]), (True, [2.0, 4 / 3, 2 / 3])):
        rates.clear()
        method = LabelDpSgd(**terms, falling_rate=falling)
        train(nn.Linear(4, 3), torch.randn(100, 4), torch.arange(100) % 3, method=method, progress=False)
        assert rates == pytest.approx(wanted)
