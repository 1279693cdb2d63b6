# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from sfumato.audit.models.classifier_queries import label_columns, log_probabilities, read_rows
from sfumato.datasets.dataset import Examples
from sfumato.errors import InvalidParameterError


class Says:
    """A classifier that gives the answer it was made with."""

    def __init__(self, answer, classes=None):
        self.answer = answer
        if classes is not None:
            self.classes_ = np.array(classes)

    def predict_proba(self, rows):
        return np.broadcast_to(np.array(self.answer), (len(rows), len(self.answer)))


def test_a_network_and_a_scikit_learn_model_of_the_same_weights_answer_alike():
    x = np.random.default_rng(0).normal(size=(90, 2))
    y = (x[:, 0] + x[:, 1] > 0) + (x[:, 0] > 1).astype(int)
    theirs = LogisticRegression().fit(x, y)
    ours = nn.Linear(2, 3).double()
    ours.weight.data, ours.bias.data = torch.from_numpy(theirs.coef_), torch.from_numpy(theirs.intercept_)
    np.testing.assert_allclose(log_probabilities(ours, x), log_probabilities(theirs, x), atol=1e-9)


def test_asking_changes_neither_mode_nor_gradients():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model[0].eval()
    first, second = (log_probabilities(model, np.ones((3, 2))) for _ in range(2))
    np.testing.assert_array_equal(first, second)  # dropout was off
    assert [m.training for m in model.modules()] == [True, False, True]
    assert model[0].weight.grad is None


def test_more_rows_than_a_piece_are_all_answered(monkeypatch):
    monkeypatch.setattr("sfumato.audit.models.classifier_queries._PIECE", 4)
    x = np.random.default_rng(0).normal(size=(11, 3))
    expected = torch.from_numpy(x).log_softmax(1).numpy()
    np.testing.assert_allclose(log_probabilities(nn.Identity(), x), expected, atol=1e-6)


def test_a_probability_of_zero_is_a_finite_log():
    assert np.isfinite(log_probabilities(Says([0.0, 1.0]), np.zeros((2, 1)))).all()


@pytest.mark.parametrize("answer", [[float("nan"), 0.5], [1.0]], ids=["NaN", "one class"])
def test_an_answer_that_is_none_is_refused(answer):
    with pytest.raises(InvalidParameterError, match="model must return"):
        log_probabilities(Says(answer), np.zeros((2, 1)))


def test_what_is_no_model_is_refused():
    with pytest.raises(InvalidParameterError, match="predict_proba"):
        log_probabilities("model", np.zeros((2, 1)))


def test_labels_are_found_by_the_names_of_a_models_classes():
    model = Says([0.2, 0.3, 0.5], classes=["c", "a", "b"])
    assert label_columns(model, np.array(["a", "b", "c", "a"]), num_classes=3).tolist() == [1, 2, 0, 1]


@pytest.mark.parametrize("label", [-1, 3, 7])
def test_a_label_that_the_model_does_not_know_is_refused(label):
    with pytest.raises(InvalidParameterError, match="not one of the 3 classes") as refusal:
        label_columns(nn.Identity(), np.array([0, label]), num_classes=3)
    assert str(label) not in str(refusal.value).replace("3 classes", "")


def test_rows_are_pairs_or_sets_with_features_and_labels():
    x, y = torch.zeros(4, 2), torch.arange(4)
    for rows in [(x, y), (x.numpy(), y.tolist()), Examples(x, y)]:
        features, labels = read_rows(rows, name="members")
        assert features.shape == (4, 2) and labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "rows",
    [np.zeros((3, 2)), (np.zeros((3, 2)),), (np.zeros((3, 2)), np.zeros(2)), (np.full((1, 1), np.nan), [0])],
    ids=["no labels", "a single", "too few labels", "NaN"],
)
def test_rows_that_cannot_be_read_are_refused_by_name(rows):
    with pytest.raises(InvalidParameterError, match="outsiders"):
        read_rows(rows, name="outsiders")
