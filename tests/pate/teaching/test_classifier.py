# SPDX-License-Identifier: Apache-2.0
"""Estimators of scikit-learn and networks have what a teacher needs."""

import pytest
from sklearn.svm import SVC
from torch import nn

from sfumato.pate import Classifier, TorchClassifier


@pytest.mark.parametrize("estimator", [SVC(), TorchClassifier(nn.Linear(2, 2))])
def test_a_classifier_has_the_methods_of_the_protocol(estimator):
    names = [name for name in vars(Classifier) if not name.startswith("_")]
    assert sorted(names) == ["fit", "get_params", "predict"]
    assert all(callable(getattr(estimator, name)) for name in names)
