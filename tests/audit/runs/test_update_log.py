# SPDX-License-Identifier: Apache-2.0
"""Weights that follow from released gradients are not accused, whatever the optimizer; all others are."""

import pytest
import torch
from torch import nn

from sfumato.audit.runs.update_log import UpdateLog
from sfumato.training.weight_average import WeightAverage

STEPS = 5


class Noisy(torch.optim.SGD):
    """An optimizer with draws of its own."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=0.01)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
}


PRIVATE = torch.ones(3)


class Reading(torch.optim.SGD):
    """An optimizer whose steps look at rows, by a name that is none of its attributes."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(PRIVATE.mean())


OTHERS = {
    "random": lambda p: Noisy(p, lr=0.1),
    "reading": lambda p: Reading(p, lr=0.1),
}


def log_of(optimizer="adam", *, decay=None, meddle=lambda step, model, optimizer: None, at_the_end=None):
    """Take some steps with made-up gradients, and return the log of them."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = {**OPTIMIZERS, **OTHERS}[optimizer](model.parameters())
    average = None if decay is None else WeightAverage(dict(model.named_parameters()), decay=decay)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    log = UpdateLog(model, optimizer, average)
    for step in range(STEPS):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        log.released()
        meddle(step, model, optimizer)
        optimizer.step()
        log.moved(step)
        schedule.step()
        if average is not None:
            average.update()
    if average is not None:
        average.keep()
    if at_the_end is not None:
        at_the_end(model)
    return log


def followed(*args, **settings):
    """Take some steps, and return the one thing that the log found."""
    (found,) = log_of(*args, **settings).findings()
    return found


@pytest.mark.parametrize("optimizer", OTHERS)
def test_optimizers_that_are_not_torchs_own_are_not_called_checked(optimizer):
    """They may read rows in their steps, and their copies read the same rows."""
    log = log_of(optimizer)
    assert log.findings() == [] and "not one of torch.optim" in log.why_not()


@pytest.mark.parametrize("optimizer", OTHERS)
def test_optimizers_that_are_not_torchs_own_are_accused_all_the_same(optimizer):
    found = followed(optimizer, meddle=scaled)
    assert found.p_value == 0.0 and "step 3 moves the weights by something else" in found.message


@pytest.mark.parametrize("decay", [None, 0.5, 0.999])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_by_released_gradients_are_not_accused(optimizer, decay):
    found = followed(optimizer, decay=decay)
    assert found.p_value == 1.0 and found.observations == STEPS


def scaled(step, model, optimizer):
    if step == 2:
        model.weight.grad = model.weight.grad * 1.01


def slower(step, model, optimizer):
    if step == 2:
        optimizer.param_groups[0]["lr"] *= 0.9


def skipped(step, model, optimizer):
    if step == 2:
        for parameter in model.parameters():
            parameter.grad = None


@pytest.mark.parametrize("meddle", [scaled, slower, skipped])
def test_a_step_that_is_moved_by_something_else_is_found(meddle):
    found = followed(meddle=meddle)
    assert found.p_value == 0.0 and "step 3 moves the weights by something else" in found.message


@pytest.mark.parametrize("decay", [None, 0.9])
def test_weights_that_are_changed_at_the_end_are_found(decay):
    @torch.no_grad()
    def change(model):
        model.bias.add_(0.01)

    found = followed(decay=decay, at_the_end=change)
    assert found.p_value == 0.0 and "handed over" in found.message


def resumed(decay, change):
    """Go on after the last step of a run, and return what the log finds once weights were changed, or not."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    average = None if decay is None else WeightAverage(dict(model.named_parameters()), decay=decay)
    with torch.no_grad():
        model.weight.add_(1.0)  # what the steps before did
    if average is not None:
        average.update()
    log = UpdateLog(model, optimizer, average)
    if average is not None:
        average.keep()
    with torch.no_grad():
        model.bias.add_(change)
    (found,) = log.findings()
    return found


@pytest.mark.parametrize("decay", [None, 0.9])
def test_weights_that_are_changed_after_the_last_step_of_a_resumed_run_are_found(decay):
    assert resumed(decay, 0.0).p_value == 1.0
    found = resumed(decay, 0.01)
    assert found.p_value == 0.0 and "handed over" in found.message


@pytest.mark.parametrize("part", ["weights", "average"])
def test_what_a_checkpoint_keeps_is_compared_before_a_resume_takes_it_for_granted(part):
    model = nn.Linear(3, 2)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    average = WeightAverage(dict(model.named_parameters()), decay=0.9)
    log = UpdateLog(model, optimizer, average)
    log.check_kept()
    assert log.message is None
    with torch.no_grad():
        (model.bias if part == "weights" else average.by_parameter()[id(model.bias)]).add_(0.01)
    log.check_kept()
    assert "weights of a checkpoint" in log.message


def test_an_optimizer_that_cannot_be_copied_is_not_judged():
    class Alone(torch.optim.SGD):
        def __deepcopy__(self, memo):
            raise TypeError

    model = nn.Linear(3, 2)
    log = UpdateLog(model, Alone(model.parameters(), lr=0.1), None)
    log.released()
    log.moved(0)
    assert log.findings() == []


class Owner(torch.optim.SGD):
    """An optimizer with an attribute of its own, which torch does not copy."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        self.factor = 2.0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"] * self.factor)


def test_optimizers_that_cannot_be_copied_are_not_followed():
    model = nn.Linear(3, 2)
    hooked = torch.optim.SGD(model.parameters(), lr=0.1)
    hooked.register_step_post_hook(lambda *_: [p.data.clamp_(-1, 1) for p in model.parameters()])
    for optimizer in (hooked, Owner(model.parameters(), lr=0.1)):
        log = UpdateLog(model, optimizer, None)
        model(torch.ones(1, 3)).sum().backward()
        log.released()
        optimizer.step()
        log.moved(0)
        assert log.findings() == []


def test_a_frozen_parameter_has_an_average_of_its_own():
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = WeightAverage({"weight": model.weight}, decay=0.9)
    log = UpdateLog(model, optimizer, average)
    (found,) = log.findings()
    assert found.p_value == 1.0 and found.observations == 0


def test_what_was_wrong_before_a_resume_is_still_said():
    model = nn.Linear(3, 2)
    log = UpdateLog(model, torch.optim.SGD(model.parameters(), lr=0.1), None, message="step 6 is wrong")
    (found,) = log.findings()
    assert (found.p_value, found.message) == (0.0, "step 6 is wrong")
