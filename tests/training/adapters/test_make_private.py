# SPDX-License-Identifier: Apache-2.0
import warnings
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kstest, norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato.accounting import Relation, dp_sgd, price
from sfumato.datasets import load
from sfumato.errors import (
    BudgetExceededError,
    InvalidParameterError,
    NotPrivateError,
    QueryFailedError,
    UnsupportedModelError,
)
from sfumato.ledger import Budget, Ledger
from sfumato.mechanisms import FastGenerator
from sfumato.testing import seeded
from sfumato.training import make_private, make_private_with_epsilon

from .loops import (
    CLIP,
    LOSS,
    MODULES,
    SIZE,
    ByValue,
    Centered,
    clipped_loop,
    clipped_sum,
    data_of,
    described,
    first_batch,
    mlp,
    private,
    same,
)

ALPHA = 1e-6


# --- gradients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(MODULES))
def test_gradients_of_a_loop_equal_a_plain_loop_over_examples(kind):
    module, optimizer, criterion, loader, _ = private(*data_of(kind))
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(module(x), y)
        loss.backward()
        optimizer.step()
        same(module, clipped_sum(module, x, y), 8)


def test_what_the_loop_sees_is_what_the_module_computes():
    module, _, criterion, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    with torch.no_grad():
        wanted = module(x)
    output = module(x)
    loss = criterion(output, y)
    torch.testing.assert_close(output.detach(), wanted)
    torch.testing.assert_close(loss.detach(), F.cross_entropy(wanted, y))
    assert loss.dim() == 0
    with torch.no_grad():
        torch.testing.assert_close(criterion(wanted, y), F.cross_entropy(wanted, y))


def test_keyword_arguments_of_the_module_are_passed_on():
    module, optimizer, criterion, loader, _ = private(*data_of("text"))
    x, y = first_batch(loader)
    criterion(module(x=x, scale=2.0), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y, lambda out, t: F.cross_entropy(2.0 * out, t)), 8)


def test_frozen_parameters_stay_frozen_and_are_not_in_the_norm():
    module, data = data_of("mlp")
    module[0].requires_grad_(False)
    module, optimizer, criterion, loader, _ = private(module, data)
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    optimizer.step()
    assert module[0].weight.grad is None
    torch.testing.assert_close(module[2].weight.grad, clipped_sum(module, x, y)["2.weight"] / 8)


def test_two_passes_over_the_same_rows_are_one_contribution():
    module, optimizer, criterion, loader, _ = private(
        *data_of("mlp"), criterion=lambda out, y: F.cross_entropy(out, y, reduction="none")
    )
    x, y = first_batch(loader)
    (criterion(module(x), y) + criterion(module(-x), y)).backward()
    optimizer.step()

    def both(m, i):
        return sum(F.cross_entropy(m(sign * x[i : i + 1]), y[i : i + 1]) for sign in (1, -1))

    same(module, clipped_loop(module, len(x), both), 8)


def test_several_losses_of_one_forward_pass_add_up():
    module, optimizer, criterion, loader, _ = private(*data_of("tied and in place"))
    x, y = first_batch(loader)
    out = module(x)
    criterion(out, y).backward()
    criterion(out, y).backward()
    criterion(out, y)  # only looked at
    optimizer.step()
    same(module, clipped_sum(module, x, y, lambda o, t: 2 * F.cross_entropy(o, t)), 8)


def test_zero_grad_between_backward_and_step_loses_nothing():
    module, optimizer, criterion, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    optimizer.zero_grad()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
def test_a_row_that_is_not_finite_contributes_nothing_and_reaches_no_other(bad):
    module, data = data_of("mlp")
    data.tensors[0][::2] = bad
    module, optimizer, criterion, loader, _ = private(module, data, batch_size=20)
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    optimizer.step()
    good = x.abs().amax(1) < 100
    assert 0 < good.sum() < len(x)
    same(module, clipped_sum(module, x[good], y[good]), 20)


def test_a_batch_of_rows_that_are_not_finite_is_noise_alone():
    module, data = data_of("mlp")
    data.tensors[0][:] = float("nan")
    module, optimizer, criterion, loader, privacy = private(module, data)
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    optimizer.step()
    assert all(p.grad.abs().max() < 1e-9 for p in module.parameters()) and privacy.steps == 1


def test_a_module_that_mixes_rows_gives_each_row_the_gradient_it_has_alone():
    data = data_of("mlp")[1]
    module, optimizer, criterion, loader, _ = private(Centered().double(), data)
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)


@contextmanager
def told_once():
    """The engine that takes over says so once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert ["functional engine" in str(w.message) for w in caught] == [True]


def test_a_module_that_looks_at_values_is_run_row_by_row_with_one_warning():
    data = data_of("mlp")[1]
    module, optimizer, criterion, loader, privacy = private(ByValue().double(), data)
    with told_once():
        for x, y in loader:
            out = module(x)
            with torch.no_grad():
                torch.testing.assert_close(out.detach(), module(x))
            criterion(out, y).backward()
            optimizer.step()
            same(module, clipped_sum(module, x, y), 8)
    assert privacy.steps == 5


def test_a_criterion_that_looks_at_values_is_run_row_by_row():
    def by_value(out, y):
        weight = 3.0 if out[0, 0].item() > 0 else 1.0
        return weight * F.cross_entropy(out, y, reduction="none")

    module, optimizer, criterion, loader, _ = private(*data_of("mlp"), criterion=by_value)
    with told_once():
        for x, y in loader:
            loss = criterion(module(x), y)
            loss.backward()
            optimizer.step()
            same(module, clipped_sum(module, x, y, by_value), 8)


def test_a_loss_within_the_module_is_one_of_each_row_with_any_engine():
    class WithLoss(ByValue):
        def __init__(self, *, by_value) -> None:
            super().__init__()
            self.by_value = by_value

        def forward(self, x, y):
            out = super().forward(x) if self.by_value else self.linear(x)
            return {"loss": F.cross_entropy(out, y), "out": out}

    data = data_of("mlp")[1]
    for by_value, told in ((False, nullcontext), (True, told_once)):
        module, optimizer, criterion, loader, _ = private(
            WithLoss(by_value=by_value).double(), data, criterion=lambda out: out["loss"].reshape(1)
        )
        with told():
            x, y = first_batch(loader)
            loss = criterion(module(x, y))
            loss.backward()
            optimizer.step()
        wanted = clipped_loop(module, len(x), lambda m, i, x=x, y=y: m(x[i : i + 1], y[i : i + 1])["loss"])
        same(module, wanted, 8)
        torch.testing.assert_close(loss.detach(), module.eval()(x, y)["loss"].detach())


def test_a_module_may_be_compiled_afterwards():
    module, data = data_of("mlp")
    module, optimizer, criterion, loader, _ = private(module, data)
    compiled = torch.compile(module, backend="eager")
    x, y = first_batch(loader)
    criterion(compiled(x), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)


def test_bfloat16_autocast_is_taken_along_to_the_step():
    module, data = data_of("mlp")
    data = TensorDataset(data.tensors[0].float(), data.tensors[1])
    module, optimizer, criterion, loader, _ = private(module.float(), data)
    for x, y in loader:
        with torch.autocast("cpu", torch.bfloat16):
            out = module(x)
            assert out.dtype is torch.bfloat16
            loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        wanted = clipped_sum(module, x, y)
        for name, p in module.named_parameters():
            assert (p.grad - wanted[name] / 8).norm() < 0.05 * (wanted[name] / 8).norm() + 1e-3


def test_sums_of_bfloat16_gradients_stay_below_the_bound():
    data = TensorDataset(torch.ones(SIZE, 6), torch.zeros(SIZE, dtype=torch.int64))
    module, optimizer, criterion, loader, _ = private(nn.Linear(6, 3), data, batch_size=SIZE)
    x, y = first_batch(loader)
    with torch.autocast("cpu", torch.bfloat16):
        loss = criterion(module(x), y)
    loss.backward()
    optimizer.step()
    total = torch.stack([p.grad.norm() * SIZE for p in module.parameters()]).norm()
    assert 0.98 < total / (CLIP * len(x)) < 1 - 2**-8  # room for what bfloat16 rounds up


def test_a_compiled_module_runs_as_it_is_written():
    module, data = data_of("mlp")
    compiled = torch.compile(module, backend="eager")
    compiled, optimizer, criterion, loader, _ = private(compiled, data)
    x, y = first_batch(loader)
    criterion(compiled(x), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)
    compiled.eval()
    torch.testing.assert_close(compiled(x), module(x))


# --- the noise -------------------------------------------------------------------------------------------


def test_the_noise_has_the_stated_size_and_is_fresh_at_every_step():
    data = TensorDataset(torch.zeros(SIZE, 200), torch.zeros(SIZE, dtype=torch.int64))
    module, optimizer, _, loader, privacy = private(
        nn.Linear(200, 100), data, noise_multiplier=2.0, expected_batch_size=1e-9
    )
    noises = []
    for _, _ in zip(loader, range(2), strict=False):
        optimizer.step()  # empty batches: no pass is needed
        noises.append(module.weight.grad.clone())
    scale = 2.0 * CLIP / 1e-9
    for noise in noises:
        assert kstest(noise.flatten().numpy(), norm(scale=scale).cdf).pvalue > ALPHA
        assert kstest(noise.flatten().numpy(), norm(scale=1.1 * scale).cdf).pvalue < ALPHA
    assert not torch.equal(*noises)
    assert privacy.steps == 2


def test_noise_that_protects_nobody_is_marked():
    assert "seeded" in private(*data_of("mlp")).privacy.study_note
    assert "not cryptographic" in private(*data_of("mlp"), generator=FastGenerator()).privacy.study_note
    assert private(*data_of("mlp"), generator=None).privacy.study_note is None


# --- the price -------------------------------------------------------------------------------------------


def train(parts, epochs=1):
    module, optimizer, criterion, loader, _ = parts
    for _ in range(epochs):
        for x, y in loader:
            criterion(module(x), y).backward()
            optimizer.step()


def test_the_event_is_that_of_the_steps_taken():
    parts = private(*data_of("mlp"), noise_multiplier=1.5)
    privacy = parts.privacy
    assert privacy.get_epsilon(1e-5) == 0.0
    train(parts, 3)
    assert privacy.steps == 15 and privacy.sampling_rate == 0.2
    event = dp_sgd(noise_multiplier=1.5, sampling_rate=0.2, steps=15)
    assert privacy.event() == event
    assert privacy.get_epsilon(1e-5) == price(event, delta=1e-5).epsilon
    assert str(privacy.guarantee(1e-5)).endswith("for one example, add-remove neighbors")


def test_relation_and_unit_are_part_of_the_claim():
    parts = private(
        *data_of("mlp"), noise_multiplier=1.5, relation="replace-one", privacy_unit="patient", batch_size=40
    )
    train(parts)
    event = dp_sgd(noise_multiplier=1.5, sampling_rate=1.0, steps=1)
    assert parts.privacy.relation is Relation.REPLACE_ONE
    assert parts.privacy.get_epsilon(1e-5) == price(event, delta=1e-5, relation=Relation.REPLACE_ONE).epsilon
    assert parts.privacy.guarantee(1e-5).privacy_unit == "patient"


def with_epsilon(module, data, **more):
    settings = dict(
        target_epsilon=2.0, target_delta=1e-5, epochs=2, max_grad_norm=CLIP, public_size=len(data)
    )
    return make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        criterion=LOSS,
        data_loader=DataLoader(data, batch_size=8),
        **described(settings | more),
    )


def test_a_target_is_met_just_and_the_step_beyond_it_is_refused():
    parts = with_epsilon(*data_of("mlp"))
    train(parts, 2)
    module, optimizer, _, loader, privacy = parts
    assert privacy.steps == privacy.planned_steps == 10
    assert 1.99 < privacy.get_epsilon(1e-5) <= 2.0
    before = module[0].weight.grad.clone()
    with pytest.raises(BudgetExceededError, match="10 steps were planned"):
        optimizer.step()
    with pytest.raises(BudgetExceededError, match="10 steps were planned"):
        first_batch(loader)
    assert privacy.steps == 10 and torch.equal(module[0].weight.grad, before)


def test_planned_steps_may_be_stated_without_a_target():
    parts = private(*data_of("mlp"), steps=3)
    with pytest.raises(BudgetExceededError, match="3 steps were planned"):
        train(parts)
    assert parts.privacy.steps == parts.privacy.planned_steps == 3


def test_a_loop_learns_digits():
    digits = load("digits")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    model, optimizer, criterion, loader, privacy = make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.5),
        criterion=LOSS,
        data_loader=DataLoader(digits.train, batch_size=128, shuffle=True),
        target_epsilon=3.0,
        target_delta=1e-4,
        epochs=20,
        max_grad_norm=1.0,
        public_size=digits.public_size,
        generator=seeded(0),
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.8)
    for _ in range(20):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(digits.test.features).argmax(1) == digits.test.labels).double().mean()
    assert privacy.get_epsilon(1e-4) <= 3.0
    assert accuracy > 0.85


# --- accounts --------------------------------------------------------------------------------------------


def account_of(tmp_path, *, epsilon=50.0, unit="example"):
    ledger = Ledger(tmp_path / "ledger.db")
    return ledger.open("data", privacy_unit=unit, budget=Budget(epsilon=epsilon, delta=1e-5))


def states(account):
    return [release.progress.value for release in account.releases()]


def test_an_account_is_charged_once_for_the_planned_run_before_the_first_batch(tmp_path):
    account = account_of(tmp_path)
    parts = private(*data_of("mlp"), noise_multiplier=2.0, account=account, purpose="a model", epochs=2)
    assert states(account) == ["reserved"]
    assert account.event() == parts.privacy.run(10).event()
    first_batch(parts.data_loader)
    assert states(account) == ["begun"]
    train(parts, 1)
    assert states(account) == ["begun"]  # unused steps stay spent
    train(parts, 1)
    assert states(account) == ["committed"]
    with pytest.raises(BudgetExceededError, match="10 steps were planned"):
        train(parts, 1)
    assert parts.privacy.event() == account.event()
    assert "seeded" in str(account.statement())
    assert parts.privacy.record_note is None
    assert "not recorded" in private(*data_of("mlp"), noise_multiplier=2.0).privacy.record_note


@pytest.mark.parametrize(("make", "marked"), [(FastGenerator, True), (lambda: None, False)])
def test_noise_that_is_not_secure_is_marked_in_the_ledger(tmp_path, make, marked):
    account = account_of(tmp_path)
    private(*data_of("mlp"), noise_multiplier=2.0, account=account, purpose="p", epochs=1, generator=make())
    assert account.releases()[0].seeded is marked and account.statement().seeded is marked


def test_a_run_that_an_account_does_not_admit_changes_nothing(tmp_path):
    account = account_of(tmp_path, epsilon=0.1)
    module, data = data_of("mlp")
    with pytest.raises(BudgetExceededError):
        private(module, data, noise_multiplier=1.0, account=account, purpose="a model", steps=100)
    assert states(account) == []
    assert "forward" not in vars(module)
    private(module, data)  # nothing is left of the first attempt


def test_no_row_is_read_before_the_account_has_begun(tmp_path):
    account = account_of(tmp_path)
    seen = []

    class Told(TensorDataset):
        def __getitem__(self, index):
            seen.append(states(account))
            return super().__getitem__(index)

    module, data = data_of("mlp")
    parts = private(
        module, Told(*data.tensors), noise_multiplier=2.0, account=account, purpose="a model", epochs=1
    )
    train(parts)
    assert seen and all(state == ["begun"] for state in seen)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "epochs=... or steps"),
        ({"epochs": 1, "steps": 1}, "pass one of them"),
        ({"epochs": 1, "purpose": None}, "purpose"),
        ({"epochs": 1, "privacy_unit": "user"}, "protects one 'example'"),
    ],
    ids=["no length", "two lengths", "no purpose", "another unit"],
)
def test_an_account_needs_to_know_what_it_pays_for(tmp_path, settings, says):
    account = account_of(tmp_path)
    with pytest.raises(InvalidParameterError, match=says):
        private(*data_of("mlp"), **({"account": account, "purpose": "a model"} | settings))
    assert states(account) == []


def test_rows_of_other_units_than_the_accounts_are_refused(tmp_path):
    account = account_of(tmp_path, unit="patient")
    with pytest.raises(InvalidParameterError, match="privacy_unit='patient'"):
        private(*data_of("mlp"), account=account, purpose="a model", epochs=1)
    private(
        *data_of("mlp"),
        account=account,
        purpose="a model",
        epochs=1,
        privacy_unit="patient",
        noise_multiplier=2.0,
    )
    assert states(account) == ["reserved"]


def test_a_target_and_an_account_work_together(tmp_path):
    account = account_of(tmp_path)
    parts = with_epsilon(*data_of("mlp"), account=account, purpose="a model")
    train(parts, 2)
    assert states(account) == ["committed"]
    assert price(account.event(), delta=1e-5).epsilon <= 2.0


# --- the parts -------------------------------------------------------------------------------------------


def test_module_and_optimizer_come_back_as_they_are():
    module, data = data_of("mlp")
    keys = list(module.state_dict())
    optimizer = torch.optim.Adam(module.parameters())
    saved = optimizer.state_dict()
    parts = private(module, data, optimizer=optimizer)
    assert parts._fields == ("module", "optimizer", "criterion", "data_loader", "privacy")
    assert parts.module is module and parts.optimizer is optimizer
    assert optimizer.state_dict() == saved
    train(parts)
    assert list(module.state_dict()) == keys == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(type(p) is nn.Parameter for p in module.parameters())
    assert str(module) == str(mlp())


# --- what is refused -------------------------------------------------------------------------------------


def test_batch_norm_is_refused_at_once_or_when_it_begins_to_mix():
    def model():
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()

    data = data_of("mlp")[1]
    with pytest.raises(UnsupportedModelError, match="BatchNorm1d"):
        private(model(), data)
    module, _, _, loader, _ = private(model().eval(), data)
    x, _ = first_batch(loader)
    module.train()
    with pytest.raises(UnsupportedModelError, match="BatchNorm1d"):
        module(x)


class Averaging(nn.Module):
    """Keeps a running average of what it has seen, in one of several ways."""

    def __init__(self, how) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.how = how
        self.register_buffer("average", torch.zeros(6))
        self.seen = 0

    def forward(self, x):
        if self.how == "in place":
            self.average.mul_(0.9).add_(0.1 * x.detach().mean(0))
        elif self.how == "replaced":
            self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        elif self.how == "kept":
            self.last = x
        elif self.how == "counted":
            self.seen += 1
        return self.linear(x)


@pytest.mark.parametrize("how", ["in place", "replaced", "kept", "counted"])
def test_a_module_that_keeps_something_of_rows_is_refused_and_put_back(how):
    module, _, _, loader, _ = private(Averaging(how).double(), data_of("mlp")[1])
    x, _ = first_batch(loader)
    with pytest.raises(NotPrivateError, match="changed"):
        module(x)
    assert not module.average.any()
    # A second attempt is made after rows of zeros, of which something may stay.
    assert not getattr(module, "last", torch.zeros(1)).any() and module.seen <= 1


def test_a_criterion_that_keeps_something_of_rows_is_refused():
    class Center(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("center", torch.zeros(3, dtype=torch.float64))

        def forward(self, out, y):
            self.center = 0.9 * self.center + 0.1 * out.detach()[0]
            return F.cross_entropy(out - self.center, y, reduction="none")

    module, _, criterion, loader, _ = private(*data_of("mlp"), criterion=Center())
    x, y = first_batch(loader)
    with pytest.raises(NotPrivateError, match="changed"):
        criterion(module(x), y)


def test_what_fails_on_rows_alone_is_told_without_a_value():
    module, data = data_of("mlp")
    data.tensors[1][:] = 17
    module, _, criterion, loader, _ = private(module, data)
    x, y = first_batch(loader)
    with pytest.raises(QueryFailedError, match="does not fail on rows of zeros") as failed:
        criterion(module(x), y)
    assert "17" not in str(failed.value)
    assert failed.value.__cause__ is None and failed.value.__context__ is None


def test_what_fails_on_any_rows_is_told_as_it_is_and_parameters_are_put_back():
    module, optimizer, criterion, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    with pytest.raises(RuntimeError, match="shapes"):
        module(x[:, :2])
    assert all(type(p) is nn.Parameter for p in module.parameters())
    criterion(module(x), y).backward()
    optimizer.step()  # with no warning: rows can still be isolated
    same(module, clipped_sum(module, x, y), 8)


def test_a_size_that_nobody_declared_is_private():
    module, data = data_of("mlp")
    with pytest.raises(InvalidParameterError, match="public_size") as refused:
        private(module, data, public_size=None)
    assert "40" not in str(refused.value)
    data.public_size = 40
    assert private(module, data, public_size=None).privacy.sampling_rate == 0.2


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"criterion": "mean"}, "criterion must be"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier must be"),
        ({"batches_per_step": 0}, "batches_per_step must be"),
        ({"expected_batch_size": -1.0}, "expected_batch_size must be"),
        ({"expected_batch_size": 41.0}, "at most public_size=40"),
        ({"public_size": 0}, "public_size must be"),
        ({"relation": "neighbor"}, "unknown relation"),
        ({"steps": 0}, "steps must be"),
        ({"purpose": "a model"}, "account"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_settings_that_make_no_sense_are_refused(settings, says):
    module, data = data_of("mlp")
    with pytest.raises(InvalidParameterError, match=says):
        private(module, data, **settings)
    assert "forward" not in vars(module)


@pytest.mark.parametrize("name", ["settings", "charge"])
def test_settings_of_another_type_are_refused(name):
    module, data = data_of("mlp")
    with pytest.raises(InvalidParameterError, match=f"{name} is of type dict"):
        make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            criterion=LOSS,
            data_loader=DataLoader(data, batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            public_size=40,
            **{name: {}},
        )
    assert "forward" not in vars(module)


def test_a_criterion_is_required():
    module, data = data_of("mlp")
    with pytest.raises(TypeError, match="criterion"):
        make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            public_size=40,
        )


def test_parameters_of_another_module_are_refused():
    module, data = data_of("mlp")
    optimizer = torch.optim.SGD([*module.parameters(), *nn.Linear(2, 2).parameters()], lr=0.1)
    with pytest.raises(InvalidParameterError, match="not the module's"):
        private(module, data, optimizer=optimizer)
