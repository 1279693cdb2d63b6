# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from sfumato import Budget, Ledger, Relation
from sfumato.accounting import events, price
from sfumato.audit import Canaries
from sfumato.errors import BudgetExceededError, InvalidParameterError, UnsupportedModelError
from sfumato.labels import (
    Alibi,
    AltConv,
    Learner,
    MultiStage,
    NoisyGradients,
    PriorLabels,
    RandomizedLabels,
    train,
)
from sfumato.labels.methods.catalogue import GRADIENT_METHODS
from sfumato.ledger.state import Progress
from sfumato.mechanisms.random import FastGenerator
from sfumato.testing import seeded
from sfumato.training.loop import TrainingLoop
from sfumato.training.record.run_folder import CheckpointError

CLASSES = 3
X = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
Y = X[:, :CLASSES].argmax(1)
GRADIENTS = {
    "delta": 1e-5,
    "public_size": 300,
    "steps": 6,
    "expected_batch_size": 60,
}
OWN = {AltConv: {"alternative_batch_size": 20}}
LEARNER = Learner(epochs=1)


def methods(epsilon=4.0, **terms):
    released = {
        "randomized-response": RandomizedLabels(epsilon=epsilon, classes=CLASSES, **terms),
        "prior-response": PriorLabels(epsilon=epsilon, classes=CLASSES, prior=torch.ones(CLASSES), **terms),
        "multi-stage": MultiStage(epsilon=epsilon, classes=CLASSES, **terms),
        "alibi": Alibi(epsilon=epsilon, classes=CLASSES, **terms),
    }
    by_gradients = [
        kind(**{"epsilon": epsilon, "classes": CLASSES, **GRADIENTS, **OWN.get(kind, {}), **terms})
        for kind in GRADIENT_METHODS
    ]
    return released | {method.name: method for method in by_gradients}


NAMES = list(methods())


def network():
    torch.manual_seed(0)
    return nn.Linear(4, CLASSES)


def trained(method, *, labels=Y, model=None, **more):
    learner = None if isinstance(method, NoisyGradients) else LEARNER
    return train(
        network() if model is None else model,
        X,
        labels,
        method=method,
        learner=learner,
        progress=False,
        **more,
    )


@pytest.fixture
def account(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    return ledger.open(
        "labels",
        privacy_unit="label",
        budget=Budget(epsilon=9, delta=1e-5),
        relation=Relation.REPLACE_LABEL,
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_method_trains_and_says_what_it_promises(name):
    method = methods()[name]
    run = trained(method, evaluation=(X, Y))
    assert run.guarantee.epsilon <= 4.0 and run.guarantee.relation is Relation.REPLACE_LABEL
    assert run.guarantee.privacy_unit == "label"
    assert 0 <= run.accuracy <= 1 and not run.model.training
    assert "Features are public" in run.statement() and "replace-label" in run.statement()
    assert not run.recorded and run.statement().count("Not recorded in a ledger") == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_one_release_of_its_account(account, name):
    run = trained(methods()[name], account=account, purpose="a test")
    (release,) = account.releases()
    assert release.progress is Progress.COMMITTED and release.event == run.method.event()
    assert run.guarantee.privacy_unit == "label" and "'labels'" in run.statement()
    assert run.recorded and "ot recorded" not in run.statement()


class Secret:
    """Labels that tell when they are read."""

    dtype = np.dtype(np.int64)

    def __init__(self, account, labels=Y):
        self.account, self.labels, self.seen = account, labels, []

    def __len__(self):
        return len(self.labels)

    def __array__(self, dtype=None, copy=None):
        self.seen.append([release.progress for release in self.account.releases()])
        return np.asarray(self.labels, dtype=dtype)


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_read_only_after_the_charge(account, name):
    secret = Secret(account)
    trained(methods()[name], labels=secret, account=account, purpose="a test")
    assert secret.seen and all(seen == [Progress.BEGUN] for seen in secret.seen)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_budget_does_not_cover_reads_no_label(account, name):
    secret = Secret(account)
    with pytest.raises(BudgetExceededError):
        trained(methods(epsilon=50.0)[name], labels=secret, account=account, purpose="a test")
    assert secret.seen == []


@pytest.mark.parametrize("odd", [4711, -(2**63)])
@pytest.mark.parametrize("name", NAMES)
def test_no_label_makes_a_run_fail_or_differ_from_one_of_the_nearest_class(account, name, odd):
    poisoned, nearest = Y.clone(), Y.clone()
    poisoned[17], nearest[17] = odd, min(max(odd, 0), CLASSES - 1)
    runs = [trained(methods()[name], labels=labels, generator=seeded(3)) for labels in (poisoned, nearest)]
    first, second = (list(run.model.state_dict().values()) for run in runs)
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    paid = trained(methods()[name], labels=poisoned, account=account, purpose="a test")
    assert paid.recorded and [release.progress for release in account.releases()] == [Progress.COMMITTED]


@pytest.mark.parametrize("labels", [torch.rand(300), torch.rand(300, 3), Y[:-1], Y[:, None]])
def test_what_cannot_be_labels_by_type_or_length_costs_nothing(account, labels):
    for name in NAMES:
        with pytest.raises(InvalidParameterError, match="Nothing was spent"):
            trained(methods()[name], labels=labels, account=account, purpose="a test")
    assert not account.releases()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", [nn.Linear(4, 2), nn.Flatten(0), nn.LSTM(4, CLASSES)])
def test_a_model_that_makes_no_logits_of_the_classes_is_refused_before_paying(account, name, model):
    with pytest.raises(UnsupportedModelError, match="logits"):
        trained(methods()[name], model=model, account=account, purpose="a test")
    assert not account.releases()


@pytest.mark.parametrize("name", NAMES)
def test_users_who_own_several_labels_are_protected_as_a_whole(name):
    owners = torch.arange(300) // 2
    method = methods(contribution_bound=2)[name]
    if isinstance(method, NoisyGradients):
        method = replace(method, public_size=150)
    run = trained(method, owners=owners)
    assert run.guarantee.privacy_unit == "user" and run.guarantee.epsilon <= 4.0
    with pytest.raises(InvalidParameterError, match="owners"):
        trained(method)
    with pytest.raises(InvalidParameterError, match="contribution_bound"):
        trained(methods()[name], owners=owners)


def test_an_account_needs_a_purpose(account):
    with pytest.raises(InvalidParameterError, match="purpose"):
        trained(methods()["alibi"], account=account)


def test_settings_of_one_kind_are_refused_by_the_other(tmp_path):
    with pytest.raises(InvalidParameterError, match="learner"):
        train(network(), X, Y, method=methods()["altconv"], learner=LEARNER)
    with pytest.raises(InvalidParameterError, match="cannot be resumed"):
        train(network(), X, Y, method=methods()["alibi"], folder=str(tmp_path), resume=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_keeps_the_weights_and_what_is_said_of_them(account, tmp_path, name):
    folder = tmp_path / "run"
    run = trained(methods()[name], folder=str(folder), account=account, purpose="a test", evaluation=(X, Y))
    kept = torch.load(folder / "model.pt", weights_only=True)
    assert all(torch.equal(kept[name], value) for name, value in run.model.state_dict().items())
    said = json.loads((folder / "run.json").read_text())
    assert said["epsilon"] == run.guarantee.epsilon and said["relation"] == "replace-label"
    assert said["event"] == json.loads(events.to_json(run.method.event()))
    with pytest.raises(CheckpointError, match="holds a run already"):
        trained(methods()[name], folder=str(folder), account=account, purpose="another")
    assert len(account.releases()) == 1


@pytest.mark.parametrize("name", NAMES)
def test_seeded_noise_is_said_to_protect_nobody(name):
    run = trained(methods()[name], generator=seeded(3))
    assert "for study only" in run.statement().lower()


def test_digits_are_learned_from_noisy_labels_and_gradients():
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    kinds = {
        "altconv": AltConv(
            epsilon=4.0, delta=1e-4, classes=10, public_size=1400, steps=60, expected_batch_size=256,
            alternative_batch_size=64,
        ),
        "response": RandomizedLabels(epsilon=4.0, classes=10),
    }  # fmt: skip
    for name, method in kinds.items():
        torch.manual_seed(0)
        learner = None if name == "altconv" else Learner(epochs=20, learning_rate=0.01)
        run = train(
            nn.Linear(64, 10),
            x[:1400],
            y[:1400],
            method=method,
            learner=learner,
            evaluation=(x[1400:], y[1400:]),
            generator=seeded(1),
            progress=False,
        )
        assert run.accuracy > 0.75, name


@pytest.mark.parametrize("name", NAMES)
def test_an_account_of_people_needs_to_know_whose_the_labels_are(tmp_path, name):
    ledger = Ledger(tmp_path / "ledger.db")
    budget = Budget(epsilon=9, delta=1e-5)
    account = ledger.open("people", privacy_unit="patient", budget=budget, relation=Relation.REPLACE_LABEL)
    with pytest.raises(InvalidParameterError, match="whose the labels are"):
        trained(methods()[name], account=account, purpose="a test")
    assert not account.releases()
    run = trained(methods()[name], account=account, purpose="a test", owners=torch.arange(300))
    assert run.guarantee.privacy_unit == "patient"


@pytest.mark.parametrize("name", ["randomized-response", "alibi"])
def test_labels_are_not_released_once_more_by_each_process(monkeypatch, name):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidParameterError, match="one process"):
        trained(methods()[name])


# --- resuming --------------------------------------------------------------------------------------------

GRADIENT_NAMES = [name for name, method in methods().items() if isinstance(method, NoisyGradients)]


class Killed(BaseException):
    """Nobody catches it."""


@pytest.fixture
def killed(monkeypatch):
    """Return what makes the next run die after some steps."""

    def after(steps):
        take_step = TrainingLoop.take_step

        def dies(session):
            if session.step == steps:
                monkeypatch.setattr(TrainingLoop, "take_step", take_step)
                raise Killed
            take_step(session)

        monkeypatch.setattr(TrainingLoop, "take_step", dies)

    return after


def weights(run):
    return torch.cat([value.flatten() for value in run.model.state_dict().values()])


@pytest.mark.parametrize("owned", [False, True], ids=["labels", "users"])
@pytest.mark.parametrize("name", GRADIENT_NAMES)
def test_a_killed_run_goes_on_to_the_same_weights_under_the_same_charge(
    account, killed, tmp_path, name, owned
):
    terms = {"owners": torch.arange(300)} if owned else {}
    method = replace(methods()[name], momentum=0.5)  # remembers earlier steps, as an average does
    method = replace(method, averaging=0.5) if isinstance(method, AltConv) else method
    folder, more = str(tmp_path / "run"), terms | {"generator": seeded(5), "evaluation": (X, Y)}
    killed(4)
    with pytest.raises(Killed):
        trained(method, account=account, purpose="a test", folder=folder, **more)
    (begun,) = account.releases()
    assert begun.progress is Progress.BEGUN
    resumed = trained(method, account=account, purpose="a test", folder=folder, resume=True, **more)
    (done,) = account.releases()
    assert done.progress is Progress.COMMITTED and done.reservation == begun.reservation
    assert resumed.training.reservation == begun.reservation and resumed.guarantee.epsilon <= 4.0
    whole = trained(method, **more)
    assert weights(resumed).equal(weights(whole)) and resumed.accuracy == whole.accuracy
    assert [row.step for row in resumed.training.history] == [row.step for row in whole.training.history]


def test_a_run_that_is_finished_or_another_one_is_not_resumed(account, killed, tmp_path):
    folder, terms = str(tmp_path / "run"), {"account": account, "purpose": "a test"}
    killed(4)
    with pytest.raises(Killed):
        trained(methods()["altconv"], folder=folder, **terms)
    for other in (methods(epsilon=3.0)["altconv"], methods()["selfspan"]):
        with pytest.raises(InvalidParameterError, match="another run"):
            trained(other, folder=folder, resume=True, **terms)
    trained(methods()["altconv"], folder=folder, resume=True, **terms)
    with pytest.raises(CheckpointError, match="finished"):
        trained(methods()["altconv"], folder=folder, resume=True, **terms)
    assert len(account.releases()) == 1


def test_there_is_nothing_to_resume_without_a_folder():
    with pytest.raises(InvalidParameterError, match="folder"):
        trained(methods()["altconv"], resume=True)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in GRADIENT_NAMES])
def test_what_released_labels_at_once_cannot_be_resumed(account, name):
    with pytest.raises(InvalidParameterError, match="has no checkpoints: it cannot be resumed"):
        trained(methods()[name], account=account, purpose="a test", resume=True)
    assert not account.releases()


@pytest.mark.parametrize("name", ["altconv", "dp-sgd"])
def test_canaries_with_flipped_labels_audit_a_run(name):
    method = methods()[name]
    run = trained(method, audit=Canaries(count=8000), generator=seeded(3))  # enough to show most of a claim
    half = price(method.event(), delta=method.delta, relation=Relation.ADD_REMOVE)  # without the factor 2
    assert run.training.audit.claim == run.guarantee
    assert half.epsilon < run.training.audit.best.epsilon <= run.epsilon


@pytest.mark.parametrize(
    ("name", "told"), [("selfconv", "canaries have none"), ("randomized-response", "has none of")]
)
def test_what_canaries_cannot_audit_is_refused(name, told):
    with pytest.raises(InvalidParameterError, match=told):
        trained(methods()[name], audit=Canaries(count=400))


@pytest.mark.parametrize("make", [FastGenerator, lambda: FastGenerator(1), lambda: seeded(1)])
@pytest.mark.parametrize("name", ["randomized-response", "dp-sgd"])
def test_noise_that_is_not_secure_is_marked_in_the_ledger(account, name, make):
    run = trained(methods()[name], account=account, purpose="study", generator=make())
    assert account.releases()[0].seeded and account.statement().seeded
    assert "for study only" in run.statement().lower()
