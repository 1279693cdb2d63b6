# SPDX-License-Identifier: Apache-2.0
import copy
import io
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kstest, norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato.accounting import Relation, dp_sgd, price
from sfumato.datasets import load
from sfumato.errors import BudgetExceededError, InvalidParameterError, UnsupportedModelError
from sfumato.testing import seeded
from sfumato.training.compat import make_private, make_private_with_epsilon

ALPHA = 1e-6
NO_NOISE = 1e-12  # a noise multiplier that leaves the sums as they are
CLIP = 0.7


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors gain nothing from threads, and tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Tied(nn.Module):
    """Uses one weight twice, and changes an output in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.first(self.first(x).relu_()).tanh())


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.linear = nn.Linear(5, 3)

    def forward(self, x, *, scale=1.0):
        return self.linear(self.embedding(x)).mean(1) * scale


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        return self.linear(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, dim_feedforward=8, dropout=0.0, batch_first=True)
        self.position = nn.Parameter(torch.randn(4, 6))
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(self.layer(x + self.position).mean(1))


def numbers(*shape):
    return lambda n: torch.randn(n, *shape, dtype=torch.float64)


def words(n):
    return torch.randint(7, (n, 4))


MODULES = {
    "linear": (lambda: nn.Linear(6, 3), numbers(6)),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, 3)), numbers(6)),
    "tied and in place": (Tied, numbers(6)),
    "sequences": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)),
        numbers(5, 6),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, 3),
        ),
        numbers(1, 6, 6),
    ),
    "text": (Text, words),
    "recurrent": (Recurrent, numbers(4, 4)),
    "attention": (Attention, numbers(4, 6)),
}


def data_of(kind, size=40):
    torch.manual_seed(3)
    module = MODULES[kind][0]().double()
    return module, TensorDataset(MODULES[kind][1](size), torch.randint(3, (size,)))


def private(module, data, *, batch_size=8, lr=0.0, noise_multiplier=NO_NOISE, **more):
    return make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=lr),
        data_loader=DataLoader(data, batch_size=batch_size),
        noise_multiplier=noise_multiplier,
        max_grad_norm=CLIP,
        public_size=more.pop("public_size", len(data)),
        generator=more.pop("generator", seeded(1)),
        **more,
    )


def clipped_sum(module, x, y, loss=F.cross_entropy):
    """The plain loop over examples: each one's gradient clipped to CLIP, then added up."""
    module = copy.deepcopy(module)
    total = {name: torch.zeros_like(p) for name, p in module.named_parameters() if p.requires_grad}
    for i in range(len(x)):
        module.zero_grad()
        loss(module(x[i : i + 1]), y[i : i + 1]).backward()
        grads = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        size = torch.stack([g.norm() for g in grads.values()]).norm()
        for name, grad in grads.items():
            total[name] += grad * min(1.0, CLIP / float(size))
    return total


def same(module, wanted, divided_by):
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name] / divided_by, rtol=1e-9, atol=1e-9)


# --- gradients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(MODULES))
def test_gradients_of_an_unchanged_loop_equal_a_plain_loop_over_examples(kind):
    module, optimizer, loader, _ = private(*data_of(kind))
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        same(module, clipped_sum(module, x, y), 8)


def test_a_criterion_that_sums_is_not_divided():
    module, optimizer, loader, _ = private(*data_of("mlp"), loss_reduction="sum")
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y, reduction="sum").backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 1)


def test_keyword_arguments_of_the_module_are_passed_on():
    module, optimizer, loader, _ = private(*data_of("text"))
    x, y = next(iter(loader))
    F.cross_entropy(module(x=x, scale=2.0), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y, lambda out, t: F.cross_entropy(2.0 * out, t)), 8)


def test_frozen_parameters_stay_frozen_and_are_not_in_the_norm():
    module, data = data_of("mlp")
    module[0].requires_grad_(False)
    module, optimizer, loader, _ = private(module, data)
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    optimizer.step()
    wanted = clipped_sum(module, x, y)
    assert module[0].weight.grad is None
    torch.testing.assert_close(module[2].weight.grad, wanted["2.weight"] / 8)


def test_two_passes_over_the_same_rows_are_one_contribution():
    module, optimizer, loader, _ = private(*data_of("mlp"))

    def twice(out_of):
        return lambda m, x, y: F.cross_entropy(m(x), y) + out_of(m(-x)).square().mean(1).mean()

    x, y = next(iter(loader))
    loss = twice(lambda out: out)
    loss(module, x, y).backward()
    optimizer.step()
    together = {name: p.grad.clone() for name, p in module.named_parameters()}
    alone = copy.deepcopy(module)
    wanted = {name: torch.zeros_like(p) for name, p in alone.named_parameters()}
    for i in range(len(x)):
        alone.zero_grad()
        loss(alone, x[i : i + 1], y[i : i + 1]).backward()
        size = torch.stack([p.grad.norm() for p in alone.parameters()]).norm()
        for name, p in alone.named_parameters():
            wanted[name] += p.grad * min(1.0, CLIP / float(size)) / 8
    for name in wanted:
        torch.testing.assert_close(together[name], wanted[name])


def test_several_backward_passes_through_one_forward_pass_add_up():
    module, optimizer, loader, _ = private(*data_of("tied and in place"))
    x, y = next(iter(loader))
    out = module(x)
    (F.cross_entropy(out, y) / 3).backward(retain_graph=True)
    (F.cross_entropy(out, y) * 2 / 3).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)


def test_zero_grad_between_backward_and_step_loses_nothing():
    module, optimizer, loader, _ = private(*data_of("mlp"))
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    optimizer.zero_grad()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
def test_a_row_that_is_not_finite_contributes_nothing_and_reaches_no_other(bad):
    module, data = data_of("mlp")
    data.tensors[0][::2] = bad
    module, optimizer, loader, _ = private(module, data, batch_size=20)
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    optimizer.step()
    good = x.abs().amax(1) < 100
    assert 0 < good.sum() < len(x)
    same(module, clipped_sum(module, x[good], y[good]), 20)


def test_a_batch_of_rows_that_are_not_finite_is_noise_alone():
    module, data = data_of("mlp")
    data.tensors[0][:] = float("nan")
    module, optimizer, loader, privacy = private(module, data)
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    optimizer.step()
    assert all(p.grad.abs().max() < 1e-9 for p in module.parameters()) and privacy.steps == 1


def test_dropout_draws_what_it_would_draw_without_us():
    def outputs(make):
        module = nn.Sequential(nn.Linear(6, 50), nn.Dropout(), nn.Linear(50, 3)).double()
        loader = make(module)
        x, _ = next(iter(loader))
        torch.manual_seed(5)
        return module(x)

    data = TensorDataset(torch.ones(40, 6, dtype=torch.float64), torch.zeros(40, dtype=torch.int64))
    torch.manual_seed(0)
    got = outputs(lambda module: private(module, data, expected_batch_size=40).data_loader)
    torch.manual_seed(0)
    assert torch.equal(got, outputs(lambda _: DataLoader(data, batch_size=40)))


# --- the noise -------------------------------------------------------------------------------------------


def test_the_noise_has_the_stated_size_and_is_fresh_at_every_step():
    data = TensorDataset(torch.zeros(40, 200), torch.zeros(40, dtype=torch.int64))
    module, optimizer, _, privacy = private(nn.Linear(200, 100), data, noise_multiplier=2.0)
    optimizer.step()  # no forward pass at all: an empty batch
    first = module.weight.grad.clone()
    optimizer.step()
    second = module.weight.grad
    scale = 2.0 * CLIP / 8
    for noise in (first, second):
        assert kstest(noise.flatten().numpy(), norm(scale=scale).cdf).pvalue > ALPHA
        assert kstest(noise.flatten().numpy(), norm(scale=1.1 * scale).cdf).pvalue < ALPHA
    assert not torch.equal(first, second)
    assert privacy.steps == 2


def test_seeded_noise_is_marked():
    assert private(*data_of("mlp")).privacy.seeded
    assert not private(*data_of("mlp"), generator=None).privacy.seeded


# --- the price -------------------------------------------------------------------------------------------


def test_the_event_is_that_of_the_steps_taken():
    module, optimizer, loader, privacy = private(*data_of("mlp"), noise_multiplier=1.5)
    assert privacy.get_epsilon(1e-5) == 0.0
    for _ in range(3):
        for x, y in loader:
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
    assert privacy.steps == 15 and privacy.sampling_rate == 0.2
    event = dp_sgd(noise_multiplier=1.5, sampling_rate=0.2, steps=15)
    assert privacy.event() == event
    assert privacy.get_epsilon(1e-5) == price(event, delta=1e-5).epsilon
    assert str(privacy.guarantee(1e-5)).endswith("for one example, add-remove neighbors")


def test_the_relation_is_part_of_the_price():
    parts = private(*data_of("mlp"), noise_multiplier=1.5, relation="replace-one")
    parts.optimizer.step()
    event = dp_sgd(noise_multiplier=1.5, sampling_rate=0.2, steps=1)
    assert parts.privacy.relation is Relation.REPLACE_ONE
    assert parts.privacy.get_epsilon(1e-5) == price(event, delta=1e-5, relation=Relation.REPLACE_ONE).epsilon


def with_epsilon(module, data, **more):
    settings = dict(
        target_epsilon=2.0, target_delta=1e-5, epochs=2, max_grad_norm=CLIP, public_size=len(data)
    )
    return make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        data_loader=DataLoader(data, batch_size=8),
        **(settings | more),
    )


def test_a_target_is_met_just_and_the_step_beyond_it_is_refused():
    module, optimizer, loader, privacy = with_epsilon(*data_of("mlp"))
    for _ in range(2):
        for x, y in loader:
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
    assert privacy.steps == privacy.planned_steps == 10
    assert 1.99 < privacy.get_epsilon(1e-5) <= 2.0
    before = module[0].weight.grad.clone()
    with pytest.raises(BudgetExceededError, match="10 steps meet the target"):
        optimizer.step()
    assert privacy.steps == 10 and torch.equal(module[0].weight.grad, before)


def test_the_planned_run_is_an_event_that_a_ledger_can_be_asked_for():
    privacy = with_epsilon(*data_of("mlp")).privacy
    event = privacy.run(privacy.planned_steps).event()
    assert price(event, delta=1e-5).epsilon <= 2.0


def test_an_unchanged_loop_learns_digits():
    digits = load("digits")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.5)
    model, optimizer, loader, privacy = make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(digits.train, batch_size=128, shuffle=True),
        criterion=nn.CrossEntropyLoss(),
        target_epsilon=3.0,
        target_delta=1e-4,
        epochs=20,
        max_grad_norm=1.0,
        public_size=digits.public_size,
        generator=seeded(0),
    )
    criterion = nn.CrossEntropyLoss()
    for _ in range(20):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    model.eval()
    accuracy = (model(digits.test.features).argmax(1) == digits.test.labels).double().mean()
    assert privacy.get_epsilon(1e-4) <= 3.0
    assert accuracy > 0.85


# --- the parts -------------------------------------------------------------------------------------------


def test_module_and_optimizer_come_back_as_they_are():
    module, data = data_of("mlp")
    keys = list(module.state_dict())
    optimizer = torch.optim.Adam(module.parameters())
    parts = make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        public_size=40,
    )
    assert parts._fields == ("module", "optimizer", "data_loader", "privacy")
    assert parts.module is module and parts.optimizer is optimizer
    x, y = next(iter(parts.data_loader))
    F.cross_entropy(module(x), y).backward()
    optimizer.step()
    assert list(module.state_dict()) == keys == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(type(p) is nn.Parameter for p in module.parameters())


def test_a_copy_of_the_module_is_an_ordinary_module():
    module, _, loader, _ = private(*data_of("mlp"))
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    x, _ = next(iter(loader))
    for copied in (copy.deepcopy(module), torch.load(saved, weights_only=False)):
        copied(x[:3]).sum().backward()
        assert copied[0].weight.grad is not None


def test_evaluation_is_left_alone():
    module, optimizer, loader, privacy = private(*data_of("mlp"))
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    module.eval()
    module(torch.zeros(3, 6, dtype=torch.float64))
    module.train()
    with torch.no_grad():
        module(torch.zeros(3, 6, dtype=torch.float64))
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)
    assert privacy.steps == 1


def test_parameters_are_put_back_when_a_forward_pass_fails():
    module, optimizer, loader, _ = private(*data_of("mlp"))
    x, y = next(iter(loader))
    with pytest.raises(RuntimeError, match="shapes"):
        module(x[:, :2])
    assert all(type(p) is nn.Parameter for p in module.parameters())
    F.cross_entropy(module(x), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)


# --- pieces ----------------------------------------------------------------------------------------------


def test_accumulated_batches_are_disjoint_parts_of_one_sample():
    module, optimizer, loader, privacy = private(*data_of("mlp"), batch_size=4, batches_per_step=3)
    assert privacy.sampling_rate == 0.3 and len(loader) == 9
    seen = []
    for i, (x, y) in enumerate(loader):
        F.cross_entropy(module(x), y).backward()
        seen.append((x, y))
        if i % 3 == 2:
            optimizer.step()
            x, y = (torch.cat(parts) for parts in zip(*seen, strict=True))
            assert len(x.unique(dim=0)) == len(x)
            same(module, clipped_sum(module, x, y), 12)
            seen = []
    assert privacy.steps == 3


def test_a_step_over_two_samples_is_refused():
    module, optimizer, loader, privacy = private(*data_of("mlp"))
    for x, y in islice(loader, 2):
        F.cross_entropy(module(x), y).backward()
    with pytest.raises(InvalidParameterError, match="batches_per_step=k"):
        optimizer.step()
    assert privacy.steps == 0


def test_two_steps_over_one_sample_are_refused():
    module, optimizer, loader, privacy = private(*data_of("mlp"), batches_per_step=2)
    for x, y in islice(loader, 2):
        F.cross_entropy(module(x), y).backward()
        if privacy.steps:
            with pytest.raises(InvalidParameterError, match="must take 2 batches"):
                optimizer.step()
        else:
            optimizer.step()
    assert privacy.steps == 1


def test_a_second_step_on_the_same_batch_is_refused():
    module, optimizer, loader, _ = private(*data_of("mlp"))
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    optimizer.step()
    with pytest.raises(InvalidParameterError, match=r"one optimizer\.step\(\) for each"):
        module(x)


def test_what_an_abandoned_loop_left_is_forgotten():
    module, optimizer, loader, _ = private(*data_of("mlp"), batches_per_step=2)
    for _ in range(2):
        seen = list(islice(train(module, loader), 2))
    optimizer.step()
    x, y = (torch.cat(parts) for parts in zip(*seen, strict=True))
    same(module, clipped_sum(module, x, y), 16)


def train(module, loader):
    for x, y in loader:
        F.cross_entropy(module(x), y).backward()
        yield x, y


# --- what is refused -------------------------------------------------------------------------------------


def test_rows_that_are_not_the_loaders_are_refused():
    module, _, loader, _ = private(*data_of("sequences"))
    with pytest.raises(InvalidParameterError, match="without a batch of the private loader"):
        module(torch.zeros(2, 5, 6, dtype=torch.float64))
    x, _ = next(iter(loader))
    with pytest.raises(InvalidParameterError, match="one row for each example"):
        module(torch.cat([x, x]))
    with pytest.raises(InvalidParameterError, match="one row for each example"):
        module(x[0])


def test_gradients_that_come_around_the_module_are_refused():
    module, optimizer, loader, privacy = private(*data_of("mlp"))
    x, y = next(iter(loader))
    (F.cross_entropy(module(x), y) + module[0].weight.square().sum()).backward()
    with pytest.raises(UnsupportedModelError, match="weight_decay"):
        optimizer.step()
    optimizer.zero_grad()
    x, y = next(iter(loader))
    F.cross_entropy(module[2](module[0](x).relu()), y).backward()
    with pytest.raises(UnsupportedModelError, match="around the recorded passes"):
        optimizer.step()
    assert privacy.steps == 0


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_around_the_module_are_also_seen_after_a_step(set_to_none):
    module, optimizer, loader, _ = private(*data_of("mlp"))
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = F.cross_entropy(module(x), y)
        (loss + module[0].weight.square().sum() if i == 2 else loss).backward()
        if i == 2:
            with pytest.raises(UnsupportedModelError):
                optimizer.step()
            break
        optimizer.step()


def test_a_loop_without_zero_grad_and_an_optimizer_that_changes_gradients_work():
    module, data = data_of("mlp")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    _, _, loader, privacy = make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        public_size=40,
    )
    for x, y in loader:
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    assert privacy.steps == 5


def test_a_parameter_that_is_unfrozen_later_is_refused():
    module, data = data_of("mlp")
    module[0].requires_grad_(False)
    module, optimizer, loader, _ = private(module, data)
    module[0].requires_grad_(True)
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    with pytest.raises(UnsupportedModelError, match="unfrozen"):
        optimizer.step()


def test_a_late_backward_pass_is_refused():
    module, optimizer, loader, _ = private(*data_of("mlp"))
    x, y = next(iter(loader))
    loss = F.cross_entropy(module(x), y)
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(InvalidParameterError, match="too late"):
        loss.backward()


def test_a_closure_is_refused():
    _, optimizer, _, privacy = private(*data_of("mlp"))
    with pytest.raises(InvalidParameterError, match="closure"):
        optimizer.step(lambda: torch.zeros(()))
    assert privacy.steps == 0


def test_an_input_that_is_changed_before_the_step_is_refused():
    module, optimizer, loader, _ = private(*data_of("mlp"))
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    x.zero_()
    with pytest.raises(UnsupportedModelError, match="changed in place"):
        optimizer.step()


def test_a_loss_within_the_module_is_refused():
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x, y):
            return F.cross_entropy(self.linear(x), y)

    module, optimizer, loader, _ = private(WithLoss().double(), data_of("mlp")[1])
    x, y = next(iter(loader))
    module(x, y).backward()
    with pytest.raises(UnsupportedModelError, match="one row an example on its first axis"):
        optimizer.step()


def test_a_model_that_mixes_rows_is_refused_before_the_first_step():
    class Centered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            return self.linear(x - x.mean(0))

    module, optimizer, loader, privacy = private(Centered().double(), data_of("mlp")[1])
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    with pytest.raises(UnsupportedModelError, match="not those that each example gives alone"):
        optimizer.step()
    assert privacy.steps == 0


def test_batch_norm_is_refused_at_once_or_when_it_begins_to_mix():
    def model():
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()

    data = data_of("mlp")[1]
    with pytest.raises(UnsupportedModelError, match="BatchNorm1d"):
        private(model(), data)
    module, _, loader, _ = private(model().eval(), data)
    x, _ = next(iter(loader))
    module.train()
    with pytest.raises(UnsupportedModelError, match="BatchNorm1d"):
        module(x)


@pytest.mark.parametrize(
    ("criterion", "reduction"),
    [
        (nn.CrossEntropyLoss(), "sum"),
        (nn.CrossEntropyLoss(reduction="sum"), "mean"),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 9.0], dtype=torch.float64)), "mean"),
        (lambda out, y: (out - out.mean(0)).square().sum(1).mean(), "mean"),
    ],
    ids=["a mean for a sum", "a sum for a mean", "weights by the batch", "mixes rows"],
)
def test_a_criterion_that_is_not_what_it_should_be_is_refused(criterion, reduction):
    module, optimizer, loader, privacy = private(
        *data_of("mlp"), criterion=criterion, loss_reduction=reduction
    )
    x, y = next(iter(loader))
    criterion(module(x), y).backward()
    with pytest.raises(UnsupportedModelError, match="the criterion is not a"):
        optimizer.step()
    assert privacy.steps == 0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_criterion_over_single_rows_is_accepted(reduction):
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    module, optimizer, loader, privacy = private(
        *data_of("mlp"), criterion=criterion, loss_reduction=reduction
    )
    x, y = next(iter(loader))
    criterion(module(x), y).backward()
    optimizer.step()
    assert privacy.steps == 1


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
        ({"loss_reduction": "none"}, "loss_reduction must be"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier must be"),
        ({"batches_per_step": 0}, "batches_per_step must be"),
        ({"expected_batch_size": -1.0}, "expected_batch_size must be"),
        ({"expected_batch_size": 41.0}, "at most public_size=40"),
        ({"public_size": 0}, "public_size must be"),
        ({"relation": "neighbor"}, "unknown relation"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_settings_that_make_no_sense_are_refused(settings, says):
    with pytest.raises(InvalidParameterError, match=says):
        private(*data_of("mlp"), **settings)


def test_parameters_of_another_module_are_refused():
    module, data = data_of("mlp")
    optimizer = torch.optim.SGD([*module.parameters(), *nn.Linear(2, 2).parameters()], lr=0.1)
    with pytest.raises(InvalidParameterError, match="not the module's"):
        make_private(
            module=module,
            optimizer=optimizer,
            data_loader=DataLoader(data, batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            public_size=40,
        )
