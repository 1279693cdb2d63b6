# SPDX-License-Identifier: Apache-2.0
"""Classifiers are chosen and fitted on the rows they are given, and know what they do not know."""

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.classifiers import (
    fit_classifier,
    image_classifiers,
    image_network,
    table_classifiers,
)
from sfumato.generative.evaluation.rows import labeled_rows


def test_the_better_setting_on_the_given_rows_is_chosen(thirds):
    settings = [DummyClassifier(), KNeighborsClassifier(1)]
    found = fit_classifier("both", settings, thirds[0])
    assert found.setting == 1 and found.validation_accuracy > 0.9
    assert fit_classifier("both", settings[::-1], thirds[0]).setting == 0
    assert not hasattr(settings[1], "classes_")  # what was given is not fitted


def test_a_single_setting_is_not_validated(thirds):
    found = fit_classifier("one", [DummyClassifier()], thirds[0])
    assert found.setting == 0 and found.validation_accuracy is None


def test_a_class_without_rows_has_probability_0(thirds):
    rows = thirds[0].take(thirds[0].labels != 3)
    found = fit_classifier("one", [LogisticRegression(max_iter=50)], rows).probabilities(thirds[1])
    assert (found[:, 3] == 0).all() and np.allclose(found.sum(axis=1), 1)


def test_one_class_is_predicted_everywhere():
    rows = labeled_rows(np.zeros((5, 2)), [2] * 5, classes=4)
    found = fit_classifier("one", [LogisticRegression()], rows)
    assert found.model is None and found.probabilities(rows).argmax(axis=1).tolist() == [2] * 5


@pytest.mark.parametrize("size", [2, 3, 4])
def test_few_rows_are_enough(size):
    rows = labeled_rows(np.arange(size)[:, None] / size, np.arange(size) % 2, classes=2)
    found = fit_classifier("k", [KNeighborsClassifier(1), KNeighborsClassifier(1)], rows)
    assert found.probabilities(rows).shape == (size, 2)


def test_the_network_for_images_learns_digits(thirds):
    network = image_network(shape=(1, 8, 8), classes=10, epochs=15)
    found = fit_classifier("CNN", [network], thirds[0].take(np.arange(300)))
    assert (found.probabilities(thirds[1]).argmax(axis=1) == thirds[1].labels).mean() > 0.9


def test_defaults_are_four_of_each_kind():
    assert list(table_classifiers()) == ["logistic regression", "MLP", "random forest", "gradient boosting"]
    images = image_classifiers(shape=(1, 8, 8), classes=10, rows=200)
    assert list(images) == ["logistic regression", "MLP", "random forest", "CNN"]
    assert images["CNN"][0].steps[-1][1].epochs == 64
    assert image_classifiers(shape=(1, 8, 8), classes=10, rows=60_000)["CNN"][0].steps[-1][1].epochs == 10


def test_mistakes_are_told(thirds):
    with pytest.raises(InvalidParameterError, match="has no setting"):
        fit_classifier("none", [], thirds[0])
    with pytest.raises(InvalidParameterError, match="channels, height and width"):
        image_network(shape=(8, 8), classes=10)
    broken = labeled_rows([[np.nan], [1.0]], [0, 1], classes=2)
    with pytest.raises(InvalidParameterError, match="not finite"):
        fit_classifier("one", [LogisticRegression()], broken)
