# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sfumato.errors import InvalidParameterError
from sfumato.ledger import Budget, Ledger

from .loops import LOSS, clipped_loop, clipped_sum, data_of, first_batch, private, same

# --- losses that mix rows, and the gradients that each row has alone --------------------------------------


def each(loss):
    return lambda module, x, y: lambda m, i: loss(m(x[i : i + 1]), y[i : i + 1])


MIXING = {
    "centered": lambda out, y: (out - out.mean(0)).square().sum(1),
    "contrasted": lambda out, y: F.cross_entropy(out @ out.T, torch.arange(len(out)), reduction="none"),
    "sorted": lambda out, y: LOSS(out.sort(0).values, y),
    "rolled": lambda out, y: LOSS(out.roll(1, 0), y),
    "scaled by a statistic": lambda out, y: LOSS(out, y) * out.detach().abs().max(),
    "divided by the rows": lambda out, y: LOSS(out, y) / len(out),
}


@pytest.mark.parametrize("mixing", list(MIXING))
def test_a_criterion_that_would_mix_rows_sees_each_row_alone(mixing):
    loss = MIXING[mixing]
    module, optimizer, criterion, loader, _ = private(*data_of("mlp"), criterion=loss)
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    optimizer.step()
    same(module, clipped_loop(module, len(x), each(loss)(module, x, y)), 8)


@pytest.mark.parametrize(
    ("criterion", "says"),
    [
        (lambda out, y: LOSS(out, y).mean(), "one number for the whole batch"),
        (lambda out, y: out.square(), "one number for each row"),
        (lambda out, y: 3.0, "a tensor with one number for each row"),
    ],
    ids=["mean of rows", "two axes", "no tensor"],
)
def test_a_criterion_without_one_number_for_each_row_is_refused(criterion, says):
    module, _, criterion, loader, privacy = private(*data_of("mlp"), criterion=criterion)
    x, y = first_batch(loader)
    with pytest.raises(InvalidParameterError, match=says):
        criterion(module(x), y)
    assert privacy.steps == 0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_criterion_of_torch_that_makes_one_number_is_refused_before_the_charge(reduction, tmp_path):
    account = Ledger(tmp_path / "ledger.db").open(
        "rows", privacy_unit="example", budget=Budget(epsilon=90, delta=1e-5)
    )
    with pytest.raises(
        InvalidParameterError, match=r"CrossEntropyLoss\(reduction='none'\). Nothing was charged"
    ):
        private(
            *data_of("mlp"),
            criterion=nn.CrossEntropyLoss(reduction=reduction),
            steps=3,
            account=account,
            purpose="a loop",
        )
    assert account.releases() == []


class Tagger(nn.Module):
    """A label for each of several tokens, some of which are ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x)


def tokens():
    torch.manual_seed(4)
    x = torch.randn(40, 5, 6, dtype=torch.float64)
    y = torch.randint(3, (40, 5))
    y[torch.arange(40), :] = torch.where(torch.arange(5) > torch.randint(5, (40, 1)), -100, y)
    return torch.utils.data.TensorDataset(x, y)


def test_an_average_over_the_tokens_of_the_batch_is_refused():
    def averaged(out, y):
        return F.cross_entropy(out.flatten(0, 1), y.flatten())

    module, _, criterion, loader, _ = private(Tagger().double(), tokens(), criterion=averaged)
    x, y = first_batch(loader)
    with pytest.raises(InvalidParameterError, match="one number for the whole batch"):
        criterion(module(x), y)


def test_an_average_over_the_tokens_of_a_row_is_a_loss_of_that_row():
    def averaged(out, y):
        return F.cross_entropy(out.flatten(0, 1), y.flatten()).reshape(1)

    module, optimizer, criterion, loader, _ = private(Tagger().double(), tokens(), criterion=averaged)
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    optimizer.step()
    same(module, clipped_loop(module, len(x), each(averaged)(module, x, y)), 8)


# --- what reaches backward --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scaled",
    [
        lambda loss, x: loss * 2,
        lambda loss, x: loss / len(x),
        lambda loss, x: loss * x.std(),
        lambda loss, x: loss + loss,
        lambda loss, x: loss.exp(),
    ],
    ids=["doubled", "divided by the rows", "scaled by a statistic", "added twice", "a function of it"],
)
def test_a_loss_that_is_changed_before_backward_is_refused(scaled):
    module, optimizer, criterion, loader, privacy = private(*data_of("mlp"))
    x, y = first_batch(loader)
    loss = criterion(module(x), y)
    with pytest.raises(InvalidParameterError, match="multiplied or divided before backward"):
        scaled(loss, x).backward()
    with pytest.raises(InvalidParameterError, match="not called on a loss of this batch"):
        optimizer.step()
    assert privacy.steps == 0


def test_a_gradient_scaler_is_refused():
    module, _, criterion, loader, _ = private(*data_of("mlp"))
    scaler = torch.amp.GradScaler("cpu")
    x, y = first_batch(loader)
    with pytest.raises(InvalidParameterError, match="GradScaler"):
        scaler.scale(criterion(module(x), y)).backward()


def test_backward_is_called_once_for_a_loss_and_not_too_late():
    module, optimizer, criterion, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    loss, late = criterion(module(x), y), criterion(module(x), y)
    loss.backward(retain_graph=True)
    with pytest.raises(InvalidParameterError, match="twice for one loss"):
        loss.backward()
    optimizer.step()
    with pytest.raises(InvalidParameterError, match="too late"):
        late.backward()


@pytest.mark.parametrize(
    "derived",
    [
        lambda out: out[:, :2],
        lambda out: out - out.mean(0),
        lambda out: out.softmax(1),
        lambda out: out * 1.0,
    ],
    ids=["sliced", "centered", "softmax", "the same"],
)
def test_what_is_computed_from_outputs_outside_of_the_criterion_is_refused(derived):
    module, _, criterion, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    out = derived(module(x))
    with pytest.raises(InvalidParameterError, match="inside of it, where each row is alone"):
        criterion(out, y.clamp(max=1))


def test_outputs_of_another_batch_are_refused():
    module, _, criterion, loader, _ = private(*data_of("mlp"), expected_batch_size=40)
    x, y = first_batch(loader)
    earlier = module(x)
    x, y = first_batch(loader)
    module(x)
    with pytest.raises(InvalidParameterError, match="belongs to another batch"):
        criterion(earlier, y)


def test_a_criterion_without_an_output_is_refused():
    _, _, criterion, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    with pytest.raises(InvalidParameterError, match="without an output of the module"):
        criterion(x, y)


@pytest.mark.parametrize(
    "extra",
    [[0.1] * 40, {"ids": ["a"] * 40}, object(), torch.zeros(()), torch.zeros(3)],
    ids=lambda e: type(e).__name__,
)
def test_what_could_hold_rows_that_nobody_splits_is_refused(extra):
    module, _, criterion, loader, _ = private(
        *data_of("mlp"), criterion=lambda out, y, extra: LOSS(out, y), expected_batch_size=40
    )
    x, y = first_batch(loader)
    with pytest.raises(InvalidParameterError, match=r"one row for each example|only tensors are split"):
        criterion(module(x), y, extra)


# --- structures -------------------------------------------------------------------------------------------


@dataclass
class Prediction:
    logits: Tensor
    again: Tensor
    name: str = "prediction"


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, batch):
        y = self.linear(batch["x"])
        return Prediction(y, y), {"rest": [y.tanh(), None], "scale": self.scale, "row": y.sum()}


def structured(out, targets, weight=1.0):
    prediction, rest = out
    assert prediction.name == "prediction" and prediction.logits.shape == (1, 3)
    penalty = rest["rest"][0].square().sum(1) + rest["scale"].square().sum() + rest["row"]
    return weight * LOSS(prediction.logits + prediction.again, targets["y"]) + penalty


def test_outputs_and_targets_may_be_of_any_structure():
    data = data_of("mlp")[1]
    module, optimizer, criterion, loader, _ = private(Structured().double(), data, criterion=structured)
    for x, y in loader:
        out = module({"x": x})
        assert isinstance(out[0], Prediction) and out[0].logits.shape == (len(x), 3)
        assert out[1]["scale"].shape == (len(x), 3) and out[1]["row"].shape == (len(x),)
        criterion(out, {"y": y}, weight=0.5).backward()
        optimizer.step()

        def alone(m, i, x=x, y=y):
            return structured(m({"x": x[i : i + 1]}), {"y": y[i : i + 1]}, 0.5)

        same(module, clipped_loop(module, len(x), alone), 8)


def test_parts_of_outputs_may_be_passed_on():
    data = data_of("mlp")[1]
    module, optimizer, criterion, loader, _ = private(Structured().double(), data)
    x, y = first_batch(loader)
    out = module({"x": x})
    criterion(out[0].logits, y).backward()
    optimizer.step()
    wanted = clipped_loop(
        module, len(x), lambda m, i: LOSS(m.linear(x[i : i + 1]), y[i : i + 1]) + 0 * m.scale.sum()
    )
    same(module, wanted, 8)


def test_an_output_may_be_given_to_the_module_again():
    module, data = nn.Linear(6, 6).double(), data_of("mlp")[1]
    module, optimizer, criterion, loader, _ = private(module, data)
    x, y = first_batch(loader)
    criterion(module(module(x)), y).backward()
    optimizer.step()
    same(module, clipped_loop(module, len(x), lambda m, i: LOSS(m(m(x[i : i + 1])), y[i : i + 1])), 8)
    with pytest.raises(InvalidParameterError, match="computed from one"):
        x, y = first_batch(loader)
        module(module(x).tanh())


def test_parameters_may_be_used_inside_of_the_criterion():
    module, data = data_of("mlp")

    def with_penalty(out, y):
        return LOSS(out, y) + 0.1 * module[0].weight.square().sum()

    module, optimizer, criterion, loader, _ = private(module, data, criterion=with_penalty)
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y, with_penalty), 8)


def test_batches_and_outputs_of_hugging_face_work():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    model = transformers.GPT2LMHeadModel(config).double()
    rows = [{"input_ids": torch.randint(11, (6,))} for _ in range(40)]
    rows = [
        row | {"labels": row["input_ids"], "attention_mask": torch.ones(6, dtype=torch.int64)} for row in rows
    ]

    def next_token(out, labels):
        return F.cross_entropy(out.logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none").mean(1)

    for loss in (next_token, lambda out, labels: out.loss.reshape(1)):
        module = transformers.GPT2LMHeadModel(config).double()
        module.load_state_dict(model.state_dict())
        module, optimizer, criterion, loader, _ = private(
            module, None, data_loader=DataLoader(rows, batch_size=8), criterion=loss
        )
        batch = first_batch(loader)
        out = module(**batch)
        assert type(out).__name__ == "CausalLMOutputWithCrossAttentions"
        assert out.logits.shape == (len(batch["input_ids"]), 6, 11)
        criterion(out, batch["labels"]).backward()
        optimizer.step()

        def alone(m, i, batch=batch, loss=loss):
            row = {key: value[i : i + 1] for key, value in batch.items()}
            return loss(m(**row), row["labels"])

        same(module, clipped_loop(module, len(batch["labels"]), alone), 8)


def test_a_criterion_may_call_the_module_on_the_row_that_it_sees():
    module, data = data_of("mlp")

    def smooth(out, x, y):
        return LOSS(out, y) + (module(x + 0.1) - out).square().sum(1)

    module, optimizer, criterion, loader, _ = private(module, data, criterion=smooth)
    for x, y in loader:
        criterion(module(x), x, y).backward()
        optimizer.step()

        def alone(m, i, x=x, y=y):
            return smooth(m(x[i : i + 1]), x[i : i + 1], y[i : i + 1])

        same(module, clipped_loop(module, len(x), alone), 8)


# --- evaluation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss", [LOSS, lambda out, y: LOSS(out, y) * (1.0 + (out[0, 0].item() > 0))], ids=["plain", "by value"]
)
def test_the_mean_loss_of_any_rows_can_be_evaluated(loss):
    module, data = data_of("mlp")
    module, _, criterion, _, _ = private(module, data, criterion=loss)
    x, y = data[:7]
    wanted = torch.stack([loss(module.eval()(x[i : i + 1]), y[i : i + 1])[0] for i in range(7)]).mean()
    torch.testing.assert_close(criterion(module(x), y), wanted.detach())
    module.train()
    with torch.no_grad():
        torch.testing.assert_close(criterion(module(x), y), wanted.detach())
    assert criterion.__call__.__doc__
