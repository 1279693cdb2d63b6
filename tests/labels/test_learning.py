# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.labels.learning import Released, check_model, learn, predictions, soft_cross_entropy, teacher

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

STEPS = {"epochs": 3, "batch_size": 8, "learning_rate": 0.01}


def net(seed=0, dropout=0.3):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3)
        )


def data(rows=33):
    draws = torch.Generator().manual_seed(1)
    return torch.randn(rows, 5, generator=draws), torch.randint(3, (rows,), generator=draws)


def jitter(x, generator):
    return x + 0.1 * torch.randn(x.shape, generator=generator)


def weights(model):
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


def learned(**changes):
    model, (x, y) = net(), data()
    learn(model, x, y, **(STEPS | {"augment": jitter, "ema_decay": 0.9} | changes))
    return model


def test_the_same_seed_gives_the_same_weights_and_another_does_not():
    assert weights(learned()).equal(weights(learned()))
    assert not weights(learned()).equal(weights(learned(seed=1)))


def test_global_randomness_is_neither_used_nor_changed():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        before = torch.get_rng_state()
        first = weights(learned())
        assert torch.get_rng_state().equal(before)
        torch.default_generator.manual_seed(6)
        assert weights(learned()).equal(first)


def test_the_model_ends_in_evaluation_mode():
    assert not any(module.training for module in learned().modules())


@pytest.mark.parametrize("momentum", [None, 0.0, 0.9], ids=["adam", "sgd", "momentum"])
def test_hard_classes_and_one_hot_weights_teach_the_same(momentum):
    (x, y), models = data(), [net(dropout=0.0), net(dropout=0.0)]
    for model, targets in zip(models, (y, F.one_hot(y, 3).float()), strict=True):
        learn(model, x, targets, momentum=momentum, **STEPS)
    assert torch.allclose(weights(models[0]), weights(models[1]), atol=1e-4)


def test_separable_classes_are_learned():
    x, _ = data(300)
    y = x[:, :3].argmax(1)
    model = nn.Linear(5, 3)
    learn(model, x, y, epochs=40, batch_size=32, learning_rate=0.1)
    assert (predictions(model, x).argmax(1) == y).double().mean() > 0.95


def test_averaged_weights_are_kept():
    assert not weights(learned(ema_decay=0.9)).equal(weights(learned(ema_decay=None)))


def test_frozen_parameters_stay():
    model, (x, y) = net(), data()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    learn(model, x, y, **STEPS)
    assert model[0].weight.equal(before)
    with pytest.raises(InvalidParameterError, match="no trainable parameters"):
        learn(model.requires_grad_(False), x, y, **STEPS)


def test_no_batch_is_a_single_row_unless_it_must_be():
    sizes = []

    def seen(logits, targets):
        sizes.append(len(targets))
        return soft_cross_entropy(logits, targets)

    x, y = data(33)  # by 8: four batches, and one row would be left
    learn(net(), x, y, loss=seen, **STEPS)
    assert sorted(set(sizes)) == [6, 7] and sum(sizes) == 3 * 33


class Following:
    def __init__(self, targets):
        self.targets, self.asked = targets, []

    def __len__(self):
        return len(self.targets)

    def at(self, rows, logits):
        assert not logits.requires_grad and logits.shape == (len(rows), 3)
        self.asked += rows.tolist()
        return self.targets[rows]


def test_moving_targets_are_asked_for_each_row_once_an_epoch():
    x, y = data()
    following, fixed, moved = Following(y), net(), net()
    learn(moved, x, following, **STEPS)
    learn(fixed, x, y, **STEPS)
    assert sorted(following.asked) == sorted(list(range(33)) * 3)
    assert weights(moved).equal(weights(fixed))


@pytest.mark.parametrize(
    "change",
    [{"epochs": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"momentum": 1.5}, {"ema_decay": 1.0}],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(change):
    x, y = data()
    with pytest.raises(InvalidParameterError, match=next(iter(change))):
        learn(net(), x, y, **(STEPS | change))


def test_features_and_targets_must_have_as_many_rows():
    x, y = data()
    with pytest.raises(InvalidParameterError, match="33 rows of features, but there are 32"):
        learn(net(), x, y[1:], **STEPS)
    with pytest.raises(InvalidParameterError, match="at least one row"):
        learn(net(), x[:0], y[:0], **STEPS)


def test_predictions_are_probabilities_in_evaluation_mode():
    model, (x, _) = net().train(), data()
    found = predictions(model, x, batch_size=7)
    assert torch.allclose(found.sum(1), torch.ones(33, dtype=torch.float64)) and model.training
    assert torch.allclose(found, model.eval()(x).double().softmax(1), atol=1e-6)


@pytest.mark.parametrize(
    "model", [nn.Linear(5, 2), nn.Flatten(0), nn.LSTM(5, 3)], ids=["classes", "axes", "no-tensor"]
)
def test_a_model_that_gives_no_logits_is_refused(model):
    with pytest.raises(UnsupportedModelError, match="one for each of 3 classes"):
        check_model(model, data()[0], classes=3)


def test_a_teacher_trains_a_copy_from_the_same_start():
    model, (x, y) = net(), data()
    before = copy.deepcopy(model)

    def learner(student, features, released):
        learn(student, features, released.targets, loss=released.loss, **STEPS)

    rows = torch.arange(0, 33, 2)
    teach = teacher(model, x, learner)
    first = teach(rows, Released(targets=y[rows], loss=soft_cross_entropy))
    assert weights(model).equal(weights(before)) and first.shape == (33, 3)
    learn(model, x[rows], y[rows], **STEPS)
    assert predictions(model, x).equal(first)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_on_cuda_follows_one_on_the_cpu():
    x, y = data()
    models = [net(dropout=0.0), net(dropout=0.0)]
    for model, device in zip(models, ("cpu", "cuda"), strict=True):
        learn(model.to(device), x, y, **STEPS)
    assert torch.allclose(weights(models[0]), weights(models[1].cpu()), atol=1e-3)
