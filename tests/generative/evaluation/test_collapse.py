# SPDX-License-Identifier: Apache-2.0
"""Collapse: planted ones are found with and without a holdout, and real rows are not accused."""

import numpy as np
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.collapse import CollapseSign, find_collapse
from sfumato.generative.evaluation.rows import LabeledRows, labeled_rows


def with_images(rows, images):
    return labeled_rows(np.clip(images, 0, 1), rows.labels, classes=10)


def noise(rows, size):
    return size * np.random.default_rng(3).normal(size=rows.features.shape)


def signs(rows, **given):
    return {finding.sign for finding in find_collapse(rows, **given).findings}


@pytest.fixture(params=[False, True], ids=["alone", "with a holdout"])
def given(request, thirds):
    return {"holdout": thirds[1]} if request.param else {}


@pytest.mark.parametrize("third", [0, 1, 2])
def test_real_digits_are_not_accused(thirds, third, given):
    found = find_collapse(thirds[third], **given)
    assert found.findings == () and not found.collapsed
    assert str(found) == "No sign of collapse in 599 synthetic rows."


@pytest.mark.parametrize("rows", [60, 200])
def test_few_real_digits_are_not_accused(thirds, rows, given):
    assert signs(thirds[0].take(np.arange(rows)), **given) <= {CollapseSign.CLASS_MISSING}


def test_slightly_changed_real_digits_are_not_accused(thirds, given):
    assert signs(with_images(thirds[0], thirds[0].features + noise(thirds[0], 0.03)), **given) == set()


@pytest.mark.parametrize("size", [0.0, 0.001, 0.01])
def test_equal_rows_are_found(thirds, given, size):
    equal = np.repeat(thirds[2].features[:1], 599, axis=0) + noise(thirds[0], size)
    assert signs(with_images(thirds[0], equal), **given) == {CollapseSign.NO_SPREAD}


@pytest.mark.parametrize("size", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("modes", [2, 5, 20])
def test_few_modes_are_found(thirds, given, modes, size):
    few = thirds[2].features[np.arange(599) % modes] + noise(thirds[0], size)
    assert CollapseSign.NEAR_DUPLICATES in signs(with_images(thirds[0], few), **given)


@pytest.mark.parametrize("size", [0.0, 0.01, 0.05, 0.1])
def test_one_mode_for_each_class_is_found(thirds, given, size):
    first = np.array([np.flatnonzero(thirds[2].labels == k)[0] for k in range(10)])
    one = thirds[2].features[first][thirds[0].labels] + noise(thirds[0], size)
    assert CollapseSign.CLASS_COLLAPSED in signs(with_images(thirds[0], one), **given)


def test_one_collapsed_class_is_named(thirds, given):
    images = thirds[0].features.copy()
    images[thirds[0].labels == 6] = thirds[2].features[thirds[2].labels == 6][0]
    findings = find_collapse(with_images(thirds[0], images), **given).findings
    [found] = [each for each in findings if each.sign is CollapseSign.CLASS_COLLAPSED]
    assert found.classes == (6,) and "class 6" in str(found) and found.value < found.limit


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_found_and_raise_nothing(thirds, given, value):
    images = thirds[0].features.copy()
    images[5, 0, 3, 3] = value
    findings = find_collapse(
        with_images(thirds[0], images) if value != value else _raw(thirds[0], images), **given
    )
    assert [each.sign for each in findings.findings] == [CollapseSign.NOT_FINITE]
    assert "1 of 599 synthetic rows" in str(findings)


def _raw(rows, images):
    return LabeledRows(features=images, labels=rows.labels, classes=10)


def test_nothing_but_nan_is_found(thirds, given):
    found = signs(_raw(thirds[0], np.full_like(thirds[0].features, np.nan)), **given)
    assert found == {CollapseSign.NOT_FINITE, CollapseSign.TOO_FEW}


def test_a_missing_class_is_found(thirds, given):
    findings = find_collapse(thirds[0].take(thirds[0].labels != 4), **given).findings
    assert [(each.sign, each.classes) for each in findings] == [(CollapseSign.CLASS_MISSING, (4,))]


def test_a_class_that_the_holdout_lacks_is_not_missed(thirds):
    rows, holdout = (each.take(each.labels != 4) for each in thirds[:2])
    assert signs(rows, holdout=holdout) == set()


def test_a_class_that_looks_like_another_is_found(thirds, given):
    """Class 3 gets images of class 8 that class 8 does not have."""
    images, eights = thirds[0].features.copy(), thirds[2].features[thirds[2].labels == 8]
    threes = np.flatnonzero(thirds[0].labels == 3)
    images[threes] = eights[np.arange(len(threes)) % len(eights)]
    findings = find_collapse(with_images(thirds[0], images), **given).findings
    [found] = [each for each in findings if each.sign is CollapseSign.SAME_CLASSES]
    assert found.classes == (3, 8) and "3 and 8" in str(found)


def test_labels_without_meaning_are_found_in_one_sentence(thirds, given):
    shuffled = np.random.default_rng(0).permutation(thirds[0].labels)
    rows = LabeledRows(features=thirds[0].features, labels=shuffled, classes=10)
    findings = find_collapse(rows, **given).findings
    assert [each.sign for each in findings] == [CollapseSign.SAME_CLASSES]
    assert "more pairs" in str(findings[0])


def test_constant_pixels_are_found(thirds, given):
    images = np.full_like(thirds[0].features, 0.5)
    images[:, 0, 4, :6] = np.random.default_rng(0).integers(0, 2, (599, 6))  # 6 of 64 pixels vary
    findings = find_collapse(with_images(thirds[0], images), **given).findings
    [found] = [each for each in findings if each.sign is CollapseSign.CONSTANT]
    assert found.value > 0.9


def test_hard_classes_are_not_accused_without_a_holdout(thirds):
    """Where nearest rows tell some classes apart and others not, the measure itself may be too weak."""
    rng = np.random.default_rng(0)
    blurred = thirds[0].features * 0.25 + 0.75 * rng.random(thirds[0].features.shape)
    assert CollapseSign.SAME_CLASSES not in signs(with_images(thirds[0], blurred))
    assert CollapseSign.SAME_CLASSES in signs(with_images(thirds[0], blurred), holdout=thirds[1])


def test_tables_may_repeat_rows_unless_the_holdout_says_otherwise():
    rng = np.random.default_rng(0)
    binary = labeled_rows(rng.integers(0, 2, (500, 3)), rng.integers(0, 2, 500), classes=2)
    assert signs(binary) == set() and signs(binary, holdout=binary) == set()
    real = labeled_rows(rng.random((500, 3)), rng.integers(0, 2, 500), classes=2)
    repeated = real.take(np.arange(500) % 5)
    assert signs(repeated) == set()
    assert CollapseSign.NEAR_DUPLICATES in signs(repeated, holdout=real)
    assert signs(labeled_rows(np.ones((50, 3)), [0, 1] * 25, classes=2)) == {CollapseSign.NO_SPREAD}


def test_few_rows_are_a_finding(thirds):
    assert CollapseSign.TOO_FEW in signs(thirds[0].take(np.array([0])))
    assert CollapseSign.TOO_FEW in signs(thirds[0].take(np.arange(19)), holdout=thirds[1])


def test_a_wrong_holdout_is_refused(thirds):
    broken = thirds[1].features.copy()
    broken[0] = np.nan
    with pytest.raises(InvalidParameterError, match="holdout rows hold"):
        find_collapse(thirds[0], holdout=_raw(thirds[1], broken))
    with pytest.raises(InvalidParameterError, match="shape"):
        find_collapse(thirds[0], holdout=labeled_rows(np.zeros((3, 5)), [0, 1, 2], classes=10))
