# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from dp_accounting import dp_event as dp
from torch import nn

from sfumato import Relation, price
from sfumato.errors import CalibrationError, InvalidParameterError
from sfumato.labels import AltConv, Denoising, NoisyGradients, SelfConv, SelfSpan, train
from sfumato.training import PoissonSampling, ShuffledBatches

TERMS = {"epsilon": 1.0, "delta": 1e-5, "classes": 3, "public_size": 1000, "expected_batch_size": 100}


def method(**terms):
    return NoisyGradients(**(TERMS | {"steps": 40} | terms))


@pytest.mark.parametrize("denoising", Denoising)
def test_what_a_run_is_charged_for_meets_the_budget_for_a_replaced_label(denoising):
    asked = method(denoising=denoising)
    assert asked.relation is Relation.REPLACE_LABEL
    cost = price(asked.event(), delta=1e-5, relation=Relation.REPLACE_LABEL)
    assert 0.99 < cost.epsilon <= 1.0


def test_batches_that_are_shown_amplify_nothing_and_a_label_is_charged_each_time_it_is_used():
    for denoising in (Denoising.SELF_SPAN, Denoising.SELF_CONV):
        run = method(denoising=denoising).mechanism()
        assert isinstance(run.sampling, ShuffledBatches)
        assert run.event() == dp.SelfComposedDpEvent(dp.GaussianDpEvent(run.noise_multiplier(0)), 4)  # epochs
    for denoising in (Denoising.NONE, Denoising.ALT_CONV):
        run = method(denoising=denoising).mechanism()
        assert isinstance(run.sampling, PoissonSampling)
    assert method(denoising=Denoising.SELF_CONV).mechanism().noise_multiplier(0) > run.noise_multiplier(0)


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
    one_more = NoisyGradients(**(TERMS | {"steps": run.steps + 1, "noise_multiplier": 2.0, "epsilon": 99.0}))
    assert price(one_more.event(), delta=1e-5, relation=Relation.REPLACE_LABEL).epsilon > 1.0


def test_a_budget_too_small_for_one_step_is_refused():
    with pytest.raises(CalibrationError, match="one step"):
        method(noise_multiplier=0.1, epsilon=0.1).mechanism()


def test_each_kind_has_its_denoiser():
    x = torch.zeros(200, 4)
    kinds = {kind: type(method(denoising=kind).denoiser(x)) for kind in Denoising}
    assert kinds == {
        Denoising.NONE: type(None),
        Denoising.SELF_SPAN: SelfSpan,
        Denoising.SELF_CONV: SelfConv,
        Denoising.ALT_CONV: AltConv,
    }


@pytest.mark.parametrize(
    "terms",
    [
        {"classes": 1},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"delta": 0.0},
        {"steps": 0},
        {"denoising": "altconv"},
        {"contribution_bound": 0},
        {"learning_rate": -1.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(terms):
    with pytest.raises(InvalidParameterError, match=next(iter(terms))):
        method(**terms)


def test_a_falling_rate_reaches_zero_after_the_last_step():
    method = NoisyGradients(
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
    terms |= {"expected_batch_size": 20, "alternative_batch_size": 8}
    for falling, wanted in ((False, [2.0, 2.0, 2.0]), (True, [2.0, 4 / 3, 2 / 3])):
        rates.clear()
        method = NoisyGradients(**terms, falling_rate=falling)
        train(nn.Linear(4, 3), torch.randn(100, 4), torch.arange(100) % 3, method=method, progress=False)
        assert rates == pytest.approx(wanted)
