# SPDX-License-Identifier: Apache-2.0
"""Fidelity and diversity: real rows have both, noise lacks one, repeated rows the other."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.fidelity import class_fidelity
from sfumato.generative.evaluation.rows import LabeledRows, labeled_rows


def changed(rows, features=None, labels=None):
    return LabeledRows(
        features=rows.features if features is None else features,
        labels=rows.labels if labels is None else labels,
        classes=rows.classes,
    )


def mean(found, name):
    return np.mean([getattr(each, name) for each in found])


def test_real_rows_are_true_and_varied(thirds):
    found = class_fidelity(thirds[0], thirds[1])
    assert [each.number for each in found] == list(range(10))
    assert mean(found, "fidelity") > 0.9 and mean(found, "holdout_fidelity") > 0.9
    assert mean(found, "coverage") > 0.9 and mean(found, "recall") > 0.85
    assert all(0.85 < each.spread_ratio < 1.15 for each in found)
    assert sum(each.synthetic_rows for each in found) == len(thirds[0])


def test_noise_is_not_true(thirds):
    noise = np.random.default_rng(0).random(thirds[0].features.shape).astype(np.float32)
    found = class_fidelity(changed(thirds[0], noise), thirds[1])
    assert mean(found, "fidelity") < 0.2 and mean(found, "coverage") < 0.1


def test_one_good_row_for_each_class_is_true_and_not_varied(thirds):
    first = np.array([np.flatnonzero(thirds[2].labels == k)[0] for k in range(10)])
    found = class_fidelity(changed(thirds[0], thirds[2].features[first][thirds[0].labels]), thirds[1])
    assert mean(found, "fidelity") >= 0.8
    assert mean(found, "coverage") < 0.3 and mean(found, "recall") < 0.05
    assert all(each.spread_ratio < 1e-6 for each in found)


def test_one_wrong_class_is_seen_in_that_class_alone(thirds):
    labels = np.where(thirds[0].labels == 3, 8, np.where(thirds[0].labels == 8, 3, thirds[0].labels))
    found = class_fidelity(changed(thirds[0], labels=labels), thirds[1])
    assert found[3].fidelity < 0.2 and found[8].fidelity < 0.2 and found[0].fidelity > 0.9


def test_missing_classes_have_no_figures(thirds):
    found = class_fidelity(
        thirds[0].take(thirds[0].labels != 2), thirds[1].take(thirds[1].labels != 5), neighbors=3
    )
    assert found[2].synthetic_rows == 0 and found[2].fidelity is None and found[2].coverage is None
    assert found[5].holdout_rows == 0 and found[5].fidelity < 0.3 and found[5].spread_ratio is None
    assert found[5].holdout_fidelity is None and found[1].coverage > 0.8


def test_few_and_equal_rows_are_no_error():
    rows = labeled_rows(np.zeros((4, 2)), [0, 0, 1, 1], classes=2)
    found = class_fidelity(rows, rows)
    assert found[0].coverage == 1.0 and found[0].recall == 1.0 and found[0].spread_ratio is None
    alone = rows.take(np.array([0]))
    assert class_fidelity(alone, alone)[0].coverage is None


def test_own_features_and_judge_are_used(thirds):
    found = class_fidelity(
        thirds[0],
        thirds[1],
        features=lambda images: images.reshape(len(images), -1),
        judge=KNeighborsClassifier(1),
    )
    assert mean(found, "fidelity") > 0.9
    with pytest.raises(InvalidParameterError, match="features of synthetic rows"):
        class_fidelity(thirds[0], thirds[1], features=lambda images: np.full((len(images), 2), np.nan))
    with pytest.raises(InvalidParameterError, match="neighbors"):
        class_fidelity(thirds[0], thirds[1], neighbors=0)
