# SPDX-License-Identifier: Apache-2.0
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.labels.learning import learn, predictions
from sfumato.pate import TorchClassifier

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(120, 4))
Y = X[:, :3].argmax(1)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def classifier(**settings):
    return TorchClassifier(network(), **{"epochs": 15, "batch_size": 16, "learning_rate": 0.02, **settings})


def noisy(batch, generator):
    return batch + 0.01 * torch.randn(batch.shape, generator=generator)


def test_it_learns_and_gives_what_learn_gives():
    fitted = classifier(weight_decay=1e-4, augment=noisy, seed=3).fit(X, Y)
    model = network()
    x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
    learn(model, x, y, epochs=15, batch_size=16, learning_rate=0.02, weight_decay=1e-4, augment=noisy, seed=3)
    assert (fitted.predict_proba(X) == predictions(model, x).numpy()).all()
    assert fitted.score(X, Y) > 0.8 and fitted.classes_.tolist() == [0, 1, 2]


def test_the_given_network_and_global_draws_are_left_as_they_were():
    model = network()
    before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    model.eval()
    TorchClassifier(model, epochs=1).fit(X, Y)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state) and not model.training


def test_arrays_and_tensors_of_any_fraction_agree():
    wanted = classifier().fit(X, Y).predict(X)
    for kind in (torch.float64, torch.float32):
        fitted = classifier().fit(torch.tensor(X, dtype=kind), torch.tensor(Y))
        assert (fitted.predict(X) == wanted).all() and (fitted.predict(torch.tensor(X)) == wanted).all()
    assert (classifier().fit(X.astype(np.float32), Y.tolist()).predict(X) == wanted).all()


def test_it_can_be_cloned_pickled_and_cross_validated():
    fitted = classifier().fit(X, Y)
    copy = clone(fitted)
    assert not hasattr(copy, "model_") and copy.get_params()["epochs"] == 15
    assert (copy.fit(X, Y).predict(X) == fitted.predict(X)).all()
    assert (pickle.loads(pickle.dumps(fitted)).predict(X) == fitted.predict(X)).all()
    assert cross_val_score(classifier(), X, Y, cv=2).mean() > 0.6
    assert copy.set_params(seed=9).seed == 9


def test_another_seed_gives_other_weights():
    assert (classifier().fit(X, Y).predict_proba(X) != classifier(seed=1).fit(X, Y).predict_proba(X)).any()


def test_a_class_may_be_absent():
    fitted = classifier().fit(X[Y < 2], Y[Y < 2])
    assert fitted.predict_proba(X).shape == (120, 3) and set(fitted.predict(X)) <= {0, 1}


def test_a_network_that_diverges_predicts_no_class():
    fitted = classifier().fit(X, Y)
    with torch.no_grad():
        fitted.model_[0].weight.fill_(float("nan"))
    assert (fitted.predict(X) == -1).all()


def test_tokens_stay_whole_numbers():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    tokens = GENERATOR.integers(0, 5, size=(60, 2))
    fitted = TorchClassifier(model, epochs=30, learning_rate=0.05).fit(tokens, (tokens[:, 0] > 2).astype(int))
    assert fitted.score(tokens, tokens[:, 0] > 2) > 0.9


@pytest.mark.parametrize("labels", [Y + 1, Y - 1, Y.astype(float), Y[:-1], np.eye(3)[Y]])
def test_labels_that_are_no_class_numbers_are_refused(labels):
    with pytest.raises(InvalidParameterError, match="class numbers"):
        classifier().fit(X, labels)


def test_settings_are_checked_when_it_is_fitted():
    with pytest.raises(InvalidParameterError, match="epochs"):
        classifier(epochs=0).fit(X, Y)
    with pytest.raises(NotFittedError):
        classifier().predict(X)
