# SPDX-License-Identifier: Apache-2.0
"""What is wrong with public things is found out before anything is paid for."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from sfumato import Budget, Ledger, Relation
from sfumato.errors import InvalidParameterError, SfumatoError, UnsupportedModelError
from sfumato.labels import (
    Alibi,
    AltConv,
    ClusterLabels,
    Learner,
    MultiStage,
    NoisyGradients,
    PriorLabels,
    RandomizedLabels,
    train,
)
from sfumato.labels.methods.catalogue import GRADIENT_METHODS
from sfumato.training import Runtime
from sfumato.training.record.run_folder import CheckpointError

CLASSES, ROWS = 3, 120
PRIVATE = 4711  # as a label: no message may hold it
X = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
EVALUATION = X[:9], torch.arange(9) % CLASSES
RELEASING = {
    "randomized-response": RandomizedLabels(epsilon=1.0, classes=CLASSES),
    "prior-response": PriorLabels(epsilon=1.0, classes=CLASSES, prior=torch.ones(ROWS, CLASSES)),
    "multi-stage": MultiStage(epsilon=1.0, classes=CLASSES),
    "alibi": Alibi(epsilon=1.0, classes=CLASSES),
    "clusters": ClusterLabels(epsilon=1.0, classes=CLASSES, clusters=torch.arange(ROWS) // 40),
}


def gradients(kind, **terms):
    settings = {"steps": 2, "expected_batch_size": 40, "public_size": ROWS}
    own = {"alternative_batch_size": 20} if kind is AltConv else {}
    return kind(epsilon=1.0, delta=1e-5, classes=CLASSES, **(settings | own | terms))


GRADIENTS = {method.name: method for method in map(gradients, GRADIENT_METHODS)}
DENOISED = {name: method for name, method in GRADIENTS.items() if method.denoiser(X) is not None}
METHODS = RELEASING | GRADIENTS


def each(methods):
    return pytest.mark.parametrize("method", methods.values(), ids=methods.keys())


class Secret:
    """Labels that tell when they are read."""

    dtype = np.dtype(np.int64)

    def __init__(self, rows=ROWS):
        self.rows, self.read = rows, 0

    def __len__(self):
        return self.rows

    def __array__(self, dtype=None, copy=None):
        self.read += 1
        return np.full(self.rows, PRIVATE, dtype=dtype)


def network():
    torch.manual_seed(0)
    return nn.Linear(4, CLASSES)


@pytest.fixture
def account(tmp_path):
    return Ledger(tmp_path / "ledger.db").open(
        "labels", privacy_unit="label", budget=Budget(epsilon=9, delta=1e-5), relation=Relation.REPLACE_LABEL
    )


@pytest.fixture
def refused(account):
    """Train with a mistake, see that it cost nothing and read no label, and return what was said."""

    def run(method, kind, *, model=None, features=X, **more):
        labels, before = Secret(), account.statement().head
        with pytest.raises(kind) as refusal:
            train(
                network() if model is None else model,
                features,
                labels,
                method=method,
                account=account,
                purpose="a test",
                progress=False,
                **more,
            )
        assert account.statement().head == before and account.releases() == []
        assert account.spent().epsilon == 0
        assert labels.read == 0 and str(PRIVATE) not in str(refusal.value)
        assert isinstance(refusal.value, SfumatoError)
        return str(refusal.value)

    return run


@each(METHODS)
def test_only_labels_that_are_read_are_paid_for(account, method):
    labels = Secret()  # there are no such classes, and the run goes on: a failure would show labels
    train(network(), X, labels, method=method, account=account, purpose="a test", progress=False)
    assert labels.read == 1 and account.releases()[0].spent


# --- the sizes of what a method was made for -------------------------------------------------------------


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1])
def test_clusters_of_other_rows_cost_nothing(refused, rows):
    method = ClusterLabels(epsilon=1.0, classes=CLASSES, clusters=torch.arange(rows) // 40)
    assert f"clusters are of {rows} rows" in refused(method, InvalidParameterError)


@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS + 1])
def test_a_prior_of_other_rows_costs_nothing(refused, rows):
    method = PriorLabels(epsilon=1.0, classes=CLASSES, prior=torch.ones(rows, CLASSES))
    assert f"each of {ROWS} rows" in refused(method, InvalidParameterError)


@pytest.mark.parametrize("prior", [torch.ones(ROWS, CLASSES + 1), [1.0, 2.0], [[1.0], [1.0, 2.0]]])
def test_a_prior_of_other_classes_is_never_made(prior):
    with pytest.raises(InvalidParameterError, match="prior"):
        PriorLabels(epsilon=1.0, classes=CLASSES, prior=prior)


@each(GRADIENTS)
def test_another_public_size_costs_nothing(refused, method):
    other = gradients(type(method), public_size=ROWS + 1)
    assert f"public_size={ROWS}" in refused(other, InvalidParameterError)


def test_an_alternative_batch_of_more_rows_than_there_are_costs_nothing(refused):
    method = gradients(AltConv, alternative_batch_size=ROWS + 1)
    assert "alternative_batch_size" in refused(method, InvalidParameterError)


@pytest.mark.parametrize("features", [X[:0], torch.tensor(1.0), X.numpy()], ids=["none", "scalar", "array"])
@each(METHODS)
def test_what_are_no_features_costs_nothing(refused, method, features):
    assert "features must be a tensor" in refused(method, InvalidParameterError, features=features)


# --- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"epochs": 0},
        {"epochs": 1.5},
        {"batch_size": 0},
        {"learning_rate": -1.0},
        {"learning_rate": float("nan")},
        {"ema_decay": 0.0},
        {"ema_decay": 1.0},
        {"ema_decay": -0.5},
        {"seed": -1},
    ],
    ids=str,
)
def test_a_study_that_makes_no_sense_is_never_made(bad):
    with pytest.raises(InvalidParameterError, match=next(iter(bad))):
        Learner(**bad)


@pytest.mark.parametrize(
    "bad",
    [{"ema_decay": 1.0}, {"alternative_batch_size": 0}, {"clip_norm": 0.0}, {"momentum": -0.1}],
    ids=str,
)
def test_noisy_gradients_that_make_no_sense_are_never_made(bad):
    with pytest.raises(InvalidParameterError, match=next(iter(bad))):
        gradients(AltConv, **bad)


@each(RELEASING)
def test_what_is_for_noisy_gradients_alone_costs_other_methods_nothing(refused, method, tmp_path):
    for more in ({"resume": True}, {"runtime": Runtime()}):
        assert next(iter(more)) in refused(method, InvalidParameterError, **more)
    (tmp_path / "run.json").write_text("{}")
    assert "holds a run already" in refused(method, CheckpointError, folder=str(tmp_path))


@each(RELEASING)
def test_features_that_an_augmentation_spoils_cost_nothing(refused, method):
    def narrower(x, generator):
        return x[:, :2]

    said = refused(method, UnsupportedModelError, learner=Learner(augment=narrower))
    assert "training fails on the features; nothing was spent" in said


# --- owners and evaluation -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "owners",
    [torch.rand(ROWS), [0.5] * ROWS, [None] * ROWS, torch.arange(ROWS - 1), torch.ones(ROWS, 2, dtype=int)],
    ids=["float-tensor", "floats", "none", "short", "axes"],
)
@each(METHODS)
def test_owners_that_nobody_can_tell_apart_cost_nothing(refused, method, owners):
    assert "owners must" in refused(method, InvalidParameterError, owners=owners)


@each(METHODS)
def test_owners_may_be_numbers_or_names_in_whatever_holds_them(method):
    named = [f"patient {i}" for i in range(ROWS)]
    for owners in (named, np.arange(ROWS, dtype=np.int32), list(range(ROWS))):
        run = train(
            network(), X, torch.zeros(ROWS, dtype=torch.int64), method=method, owners=owners, progress=False
        )
        assert run.guarantee.privacy_unit == "user"


@pytest.mark.parametrize(
    "evaluation",
    [
        (X[:9], [0] * 8),
        (X[:9], torch.zeros(8, dtype=torch.int64)),
        (X[:9], torch.zeros(9, 1, dtype=torch.int64)),
        (X[:9], torch.rand(9)),
        (X[:9], torch.full((9,), CLASSES)),
        (X[:9], ["a"] * 9),
        (X[:0], torch.zeros(0, dtype=torch.int64)),
        X[:9],
        (X[:9].tolist(), [0] * 9),
    ],
    ids=["list", "short", "axes", "fractions", "class", "text", "empty", "alone", "features"],
)
@each(METHODS)
def test_evaluation_rows_that_cannot_be_measured_on_cost_nothing(refused, method, evaluation):
    assert "evaluation" in refused(method, InvalidParameterError, evaluation=evaluation)


@each(METHODS)
def test_evaluation_features_of_another_shape_cost_nothing(refused, method):
    said = refused(method, UnsupportedModelError, evaluation=(torch.zeros(9, 5), EVALUATION[1]))
    assert "the model fails on the features" in said


@each(METHODS)
def test_evaluation_labels_may_be_a_list(method):
    listed = EVALUATION[0], EVALUATION[1].tolist()
    run = train(
        network(), X, torch.zeros(ROWS, dtype=torch.int64), method=method, evaluation=listed, progress=False
    )
    assert 0 <= run.accuracy <= 1


# --- the model -------------------------------------------------------------------------------------------


class Once(torch.autograd.Function):
    """An operation that cannot be differentiated twice."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient.clone()


class Layer(nn.Module):
    """A linear layer with something wrong after it."""

    def __init__(self, change):
        super().__init__()
        self.inner, self.change = network(), change

    def forward(self, x):
        return self.change(self, self.inner(x))


def fails_in_training(layer, logits):
    if layer.training:
        raise KeyError("not written yet")
    return logits


MIXING = {
    "batch-norm": nn.Sequential(nn.Linear(4, CLASSES), nn.BatchNorm1d(CLASSES)),
}


@pytest.mark.parametrize("model", MIXING.values(), ids=MIXING.keys())
@each(GRADIENTS)
def test_a_model_that_mixes_rows_costs_noisy_gradients_nothing(refused, method, model):
    refused(method, UnsupportedModelError, model=model)


@each(DENOISED)
def test_an_operation_that_cannot_be_differentiated_twice_costs_a_denoiser_nothing(refused, method):
    model = Layer(lambda layer, logits: Once.apply(logits))
    assert "differentiated twice" in refused(method, UnsupportedModelError, model=model)


@each(METHODS)
def test_a_model_that_fails_in_training_alone_costs_nothing(refused, method):
    said = refused(method, UnsupportedModelError, model=Layer(fails_in_training))
    assert "KeyError" in said and "fails on the features" in said


@each(RELEASING)
def test_batches_too_small_for_batch_norm_cost_nothing(refused, method):
    said = refused(method, UnsupportedModelError, model=MIXING["batch-norm"], learner=Learner(batch_size=1))
    assert "training fails" in said


def test_a_stage_too_small_for_batch_norm_costs_nothing(refused):
    one = MultiStage(epsilon=1.0, classes=CLASSES, shares=(1, ROWS - 1))
    said = refused(one, UnsupportedModelError, model=MIXING["batch-norm"])
    assert "training fails" in said


@each(METHODS)
def test_a_model_without_weights_to_learn_costs_nothing(refused, method):
    refused(method, SfumatoError, model=network().requires_grad_(False))


@each(METHODS)
def test_features_that_the_model_does_not_take_cost_nothing(refused, method):
    said = refused(method, UnsupportedModelError, features=torch.zeros(ROWS, 5))
    assert "the model fails on the features" in said


@each(METHODS)
def test_one_row_that_the_model_does_not_take_costs_nothing(refused, method):
    words = torch.zeros(ROWS, 2, dtype=torch.int64)
    words[ROWS - 2, 1] = 9
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, CLASSES))
    assert "IndexError" in refused(method, UnsupportedModelError, model=model, features=words)


@each(METHODS)
def test_a_missing_value_in_one_row_costs_nothing(refused, method):
    features = X.clone()
    features[ROWS - 2, 1] = torch.nan
    assert "not finite" in refused(method, UnsupportedModelError, features=features)


@each(METHODS)
def test_a_rehearsal_leaves_the_model_and_global_randomness_as_they_were(method):
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, CLASSES)).eval()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    draws = torch.get_rng_state()
    if isinstance(method, NoisyGradients):
        method.rehearse(model, X)
    else:
        Learner().rehearse(model, X, classes=CLASSES)
    assert torch.get_rng_state().equal(draws) and not any(m.training for m in model.modules())
    assert all(value.equal(weights[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
