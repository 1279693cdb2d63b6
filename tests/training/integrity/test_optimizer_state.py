# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from sfumato.errors import NotPrivateError
from sfumato.testing import seeded
from sfumato.training import train
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
