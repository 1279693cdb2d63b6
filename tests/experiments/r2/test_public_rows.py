# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.experiments.r2 import public_rows
from sfumato.experiments.r2.public_rows import Part


def test_rows_lie_in_the_unit_cube_and_labels_are_two():
    for part in public_rows.parts(quick=True):
        assert part.features.min() >= 0 and part.features.max() <= 1
        assert set(np.unique(part.labels)) == {0, 1}


def test_a_seed_draws_the_same_rows_again_and_another_one_others():
    train, _ = public_rows.parts(quick=True)
    first, again, other = (public_rows.subset(train, 50, seed).features for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_without_a_size_all_rows_are_taken():
    train, _ = public_rows.parts(quick=True)
    assert public_rows.subset(train, None, 0) is train


def test_a_log_loss_of_huge_scores_is_finite():
    found = public_rows.classified(np.array([1e4, -1e4]), Part(np.zeros((2, 1)), np.array([0, 0])))
    assert found == {"loss": pytest.approx(5000), "accuracy": 0.5}


def test_scores_without_privacy_tell_classes_apart():
    train, test = public_rows.parts(quick=True)
    assert public_rows.classified(public_rows.nonprivate_scores(train, test), test)["accuracy"] > 0.9
