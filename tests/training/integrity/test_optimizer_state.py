# SPDX-License-Identifier: Apache-2.0
import math
from collections import defaultdict

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from sfumato.errors import NotPrivateError
from sfumato.testing import seeded
from sfumato.training import train
from sfumato.training.integrity import optimizer_state
from sfumato.training.integrity.optimizer_state import OptimizerState


class Pair:
    """An optimizer that took a step, and a schedule of schedules."""

    def __init__(self, rate=0.1):
        self.weight = nn.Parameter(torch.ones(3))
        self.optimizer = torch.optim.Adam([self.weight], lr=rate)
        steps = lr_scheduler.MultiStepLR(self.optimizer, milestones=[1, 5])
        self.schedule = lr_scheduler.SequentialLR(
            self.optimizer, [steps, lr_scheduler.ConstantLR(self.optimizer)], milestones=[3]
        )
        self.weight.grad = torch.ones(3)
        self.optimizer.step()
        self.schedule.step()

    def shown(self):
        """All that is saved, and what lies beside it."""
        group = {name: value for name, value in self.optimizer.param_groups[0].items() if name != "params"}
        states = [{name: t.tolist() for name, t in own.items()} for own in self.optimizer.state.values()]
        inner = self.schedule._schedulers[0]
        kept = [str(group), states, len(self.optimizer.param_groups), sorted(self.optimizer.defaults)]
        kept += [self.schedule.last_epoch, inner.last_epoch, sorted(inner.milestones), inner.base_lrs]
        return [*kept, sorted(vars(self.optimizer)), len(self.optimizer._optimizer_step_pre_hooks)]


CHANGES = {
    "rate": lambda own: own.optimizer.param_groups[0].update(lr=77.0),
    "groups": lambda own: setattr(own.optimizer, "param_groups", [{"params": [own.weight], "lr": 77.0}]),
    "new entry": lambda own: own.optimizer.param_groups[0].update(leak=1.0),
    "parameters": lambda own: own.optimizer.param_groups[0]["params"].clear(),
    "another group": lambda own: own.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
    "defaults": lambda own: own.optimizer.defaults.update(leak=1.0),
    "state": lambda own: own.optimizer.state.update(leak={"v": torch.ones(1)}),
    "other state": lambda own: setattr(own.optimizer, "state", {}),
    "momentum": lambda own: own.optimizer.state[own.weight].update(exp_avg=torch.full((3,), 7.0)),
    "attribute": lambda own: setattr(own.optimizer, "leak", 1.0),
    "hook": lambda own: own.optimizer.register_step_pre_hook(lambda *_: None),
    "place": lambda own: setattr(own.schedule, "last_epoch", 10**6),
    "step": lambda own: own.schedule.step(),
    "inner place": lambda own: setattr(own.schedule._schedulers[0], "last_epoch", 10**6),
    "milestones": lambda own: own.schedule._schedulers[0].milestones.update([2, 2]),
    "base": lambda own: own.schedule._schedulers[0].base_lrs.__setitem__(0, 77.0),
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_put_back_without_a_word_also_after_a_failure(name, fails):
    own = Pair()
    before = own.shown()
    try:
        with OptimizerState(own.optimizer, own.schedule).kept():
            CHANGES[name](own)
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert own.shown() == before


def test_a_rate_that_is_a_tensor_gets_its_content_back_in_its_place():
    own = Pair(rate=torch.tensor(0.1))
    rate = own.optimizer.param_groups[0]["lr"]
    before = own.shown()
    with OptimizerState(own.optimizer, own.schedule).kept():
        rate.data.fill_(77.0)
        own.schedule._schedulers[0].base_lrs[0].fill_(77.0)
    assert own.shown() == before and own.optimizer.param_groups[0]["lr"] is rate


def test_momenta_are_out_of_reach_and_not_copied():
    own = Pair()
    momentum = own.optimizer.state[own.weight]["exp_avg"]
    with OptimizerState(own.optimizer).kept():
        assert not own.optimizer.state[own.weight] and not own.optimizer.state_dict()["state"][0]
    assert own.optimizer.state[own.weight]["exp_avg"] is momentum


def test_a_momentum_that_was_kept_from_before_and_written_to_is_refused():
    own = Pair()
    momentum, entries = own.optimizer.state[own.weight]["exp_avg"], own.optimizer.state[own.weight]
    with OptimizerState(own.optimizer).kept():
        entries["exp_avg"] = torch.zeros(3)  # in the dict itself: that can be put back
    assert own.optimizer.state[own.weight]["exp_avg"] is momentum
    with pytest.raises(NotPrivateError, match="state of the optimizer"), OptimizerState(own.optimizer).kept():
        momentum.add_(1)


class History(torch.optim.Optimizer):
    """Keeps lists, dicts and numbers in its state, as LBFGS does."""

    def __init__(self, weight):
        super().__init__([weight], {"lr": 0.1})
        self.weight, self.state[weight] = (
            weight,
            {"count": 0, "old": [torch.ones(1), {"deep": [torch.ones(1)]}]},
        )

    def step(self):
        own = self.state[self.weight]
        own["count"] += 1
        own["old"].append(torch.ones(1))

    def shown(self):
        own = self.state[self.weight]
        return list(own), own["count"], list(map(id, own["old"])), str(own), list(self.state) == [self.weight]


OF_ENTRIES = {
    "renamed": lambda own: own.update(leak=own.pop("old")),
    "in another order": lambda own: own.update(count=own.pop("count")),
    "number": lambda own: own.update(count=7),
    "number of another type": lambda own: own.update(count=float(own["count"])),
    "tensor like it": lambda own: own["old"].__setitem__(0, own["old"][0].clone()),
    "as long as before": lambda own: (own["old"].pop(), own["old"].append(torch.zeros(1))),
    "swapped": lambda own: own["old"].reverse(),
    "longer": lambda own: own["old"].append(1),
    "cleared": lambda own: own.clear(),
    "deep list": lambda own: own["old"][1]["deep"].append(1),
    "deep dict": lambda own: own["old"][1].update(deep=None),
}


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("name", OF_ENTRIES)
def test_entries_that_were_kept_from_before_are_put_back_in_every_step(name, steps):
    optimizer = History(nn.Parameter(torch.ones(3)))
    state, own = OptimizerState(optimizer), optimizer.state[optimizer.weight]
    for _ in range(steps):
        with state.kept():
            pass
        with state.kept():  # nothing has changed since: what was noted then is used again
            pass
        optimizer.step()
    for _ in range(2):
        before = optimizer.shown()
        with state.kept():
            OF_ENTRIES[name](own)
        assert optimizer.shown() == before


def test_what_public_code_does_between_steps_stays():
    own = Pair()
    state = OptimizerState(own.optimizer, own.schedule)
    for change in ("rate", "momentum", "place", "new entry"):
        with state.kept():
            pass
        CHANGES[change](own)
        own.optimizer.step()
        before = own.shown()
        with state.kept():
            CHANGES["parameters"](own)
        assert own.shown() == before
    own.optimizer.state = defaultdict(dict)
    with state.kept():
        CHANGES["state"](own)
    assert not own.optimizer.state


def test_a_momentum_is_refused_also_in_later_steps_and_when_it_is_new():
    own = Pair()
    state = OptimizerState(own.optimizer)
    for _ in range(2):
        with state.kept():
            pass
        momentum = own.optimizer.state[own.weight]["exp_avg"] = torch.zeros(3)
        with pytest.raises(NotPrivateError, match="state of the optimizer"), state.kept():
            momentum.add_(1)
        own.optimizer.step()  # which writes to them, too
        with state.kept():
            pass


@pytest.mark.parametrize("name", ["step", "zero_grad", "state_dict"])
def test_a_method_that_a_row_swaps_is_the_one_of_the_class_again(name):
    own = Pair()
    for part in (own.optimizer, own.schedule):
        method = getattr(part, name, None)
        with OptimizerState(own.optimizer, own.schedule).kept():
            setattr(part, name, lambda *_: 77.0)
        assert getattr(part, name, None) == method


def test_nothing_in_the_state_is_copied_or_walked_through_in_a_second_step(monkeypatch):
    own = Pair()
    state = OptimizerState(own.optimizer)
    with state.kept():
        pass
    monkeypatch.setattr(optimizer_state._State, "_look_into", None)
    own.weight.grad = torch.ones(3)
    own.optimizer.step()
    with state.kept():
        pass


# --- in a run ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:torch.func.vmap cannot run")
@pytest.mark.parametrize("change", ["rate", "defaults", "state", "place"])
def test_one_row_of_train_that_sets_the_optimizer_leaves_no_trace(change):
    def run(marked):
        torch.manual_seed(0)
        own = Pair()
        model = nn.Linear(4, 2)
        own.weight = model.weight
        own.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, seen = torch.randn(24, 4), []

        def schedule(optimizer):
            steps = lr_scheduler.StepLR(optimizer, 2)
            own.schedule = steps
            return steps

        def loss(model, x, y):
            found = nn.functional.cross_entropy(model(x), y, reduction="none")
            if bool((x == 50).any()):
                seen.append(math.nan)
                if marked:
                    CHANGES[change](own)
            return found

        x[5] = 50.0
        given = {"loss": loss, "optimizer": own.optimizer, "schedule": schedule, "public_size": 24}
        given |= {"noise_multiplier": 1.0, "delta": 1e-3, "steps": 4, "expected_batch_size": 24}
        train(model, (x, torch.arange(24) % 2), progress=False, generator=seeded(1), **given)
        weights = [p.tolist() for p in model.parameters()]
        return weights, len(seen), str(own.optimizer.state_dict()), sorted(own.optimizer.defaults)

    assert run(True) == run(False) and run(True)[1]
