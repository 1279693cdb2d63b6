# SPDX-License-Identifier: Apache-2.0
"""Train on synthetic, test on real: real rows score as real rows do, meaningless ones by chance."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.neighbors import KNeighborsClassifier

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.classifier_scores import (
    auroc,
    roc_points,
    train_on_synthetic,
    with_real_rows,
)
from sfumato.generative.evaluation.rows import LabeledRows, labeled_rows

FAST = {"logistic": [LogisticRegression(C=0.1, max_iter=100)], "neighbors": [KNeighborsClassifier(5)]}


def test_real_rows_as_synthetic_score_as_real_rows_do(thirds):
    for found in train_on_synthetic(thirds[0], thirds[1], classifiers=FAST):
        assert found.accuracy > 0.92 and found.auroc > 0.985 and found.notes == ()
        assert found.curve[0] == (0.0, 0.0) and found.curve[-1] == (1.0, 1.0)


def test_shuffled_labels_score_by_chance(thirds):
    """On average over shuffles: one of them gives each digit a single name, wrong or by luck right."""
    rng = np.random.default_rng(0)
    found = [
        score
        for _ in range(20)
        for score in train_on_synthetic(
            LabeledRows(features=thirds[0].features, labels=rng.permutation(thirds[0].labels), classes=10),
            thirds[1],
            classifiers=FAST,
        )
    ]
    assert np.mean([score.accuracy for score in found]) == pytest.approx(0.1, abs=0.04)
    assert np.mean([score.auroc for score in found]) == pytest.approx(0.5, abs=0.03)


def test_scores_of_real_rows_do_not_depend_on_synthetic_ones(thirds):
    """Rows with shuffled labels score by chance, and the real ones beside them as real ones do."""
    labels = np.random.default_rng(0).permutation(thirds[0].labels)
    bad = LabeledRows(features=thirds[0].features, labels=labels, classes=10)
    for score in with_real_rows(
        train_on_synthetic(bad, thirds[1], classifiers=FAST), thirds[1], classifiers=FAST
    ):
        assert score.accuracy < 0.4 and score.real_accuracy > 0.85 and score.real_auroc > 0.97


def test_public_rows_of_one_class_give_no_score_of_real_rows(thirds):
    one = thirds[1].take(thirds[1].labels == 3)
    [score] = with_real_rows(
        train_on_synthetic(thirds[0], one, classifiers={"neighbors": FAST["neighbors"]}), one
    )
    assert score.real_accuracy is None and score.real_auroc is None


def test_the_default_classifiers_of_images_all_report(thirds):
    synthetic, holdout = (rows.take(np.arange(250)) for rows in thirds[:2])
    found = {score.classifier: score for score in train_on_synthetic(synthetic, holdout)}
    assert list(found) == ["logistic regression", "MLP", "random forest", "CNN"]
    assert min(score.accuracy for score in found.values()) > 0.6
    assert min(score.auroc for score in found.values()) > 0.9
    assert found["CNN"].validation_accuracy is None and found["MLP"].validation_accuracy > 0.5


def test_the_default_classifiers_of_tables_report_the_binary_auroc():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3))
    labels = (features[:, 0] + 0.5 * rng.normal(size=200) > 0).astype(int)
    rows = labeled_rows(features, labels, classes=2)
    found = train_on_synthetic(rows.take(np.arange(120)), rows.take(np.arange(120, 200)))
    assert [score.classifier for score in found][3] == "gradient boosting"
    for score in found:
        assert score.auroc > 0.8 and score.class_aurocs[0] == pytest.approx(score.class_aurocs[1])


def test_the_areas_are_those_of_scikit_learn(thirds):
    [found] = train_on_synthetic(thirds[0], thirds[1], classifiers={"logistic": FAST["logistic"]})
    model = LogisticRegression(C=0.1, max_iter=100).fit(thirds[0].flat, thirds[0].labels)
    scores = model.predict_proba(thirds[1].flat)
    assert found.auroc == pytest.approx(roc_auc_score(thirds[1].labels, scores, multi_class="ovr"))


def test_a_curve_is_that_of_scikit_learn():
    scores = np.round(np.random.default_rng(0).random(200), 1)  # with ties
    positive = np.random.default_rng(1).random(200) < 0.3
    expected = roc_curve(positive, scores, drop_intermediate=False)[:2]
    assert np.allclose(roc_points(scores, positive), expected)
    assert auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))


def test_a_class_without_synthetic_rows_has_an_area_of_one_half(thirds):
    synthetic = thirds[0].take(thirds[0].labels != 4)
    for found in train_on_synthetic(synthetic, thirds[1], classifiers=FAST):
        assert found.class_aurocs[4] == 0.5 and found.notes == ("no synthetic rows of classes 4",)
        assert found.accuracy < 0.95


def test_one_synthetic_class_is_a_result_and_no_error(thirds):
    synthetic = thirds[0].take(thirds[0].labels == 7)
    for found in train_on_synthetic(synthetic, thirds[1], classifiers=FAST):
        assert found.auroc == 0.5 and set(found.class_aurocs) == {0.5}
        assert found.accuracy == pytest.approx((thirds[1].labels == 7).mean())
        assert "all synthetic rows are of class 7" in found.notes[0]


def test_one_synthetic_row_is_a_result_and_no_error(thirds):
    assert len(train_on_synthetic(thirds[0].take(np.array([0])), thirds[1], classifiers=FAST)) == 2


def test_classes_that_the_holdout_lacks_have_no_area(thirds):
    holdout = thirds[1].take(thirds[1].labels < 2)
    [found, _] = train_on_synthetic(thirds[0], holdout, classifiers=FAST)
    assert found.class_aurocs[2:] == (None,) * 8 and found.auroc > 0.9
    assert "no AUROC of classes 2, 3" in found.notes[-1]
    [alone, _] = train_on_synthetic(thirds[0], thirds[1].take(thirds[1].labels == 1), classifiers=FAST)
    assert alone.auroc is None and alone.curve == () and alone.accuracy > 0.8


def test_the_holdout_does_not_choose_the_setting(thirds):
    """The same settings are chosen, whatever the labels of the holdout are."""
    settings = {"k": [KNeighborsClassifier(k) for k in (1, 100)]}
    wrong = LabeledRows(features=thirds[1].features, labels=(thirds[1].labels + 1) % 10, classes=10)
    found = [train_on_synthetic(thirds[0], rows, classifiers=settings)[0] for rows in (thirds[1], wrong)]
    assert found[0].validation_accuracy == found[1].validation_accuracy > 0.9
    assert found[0].accuracy > 0.9 > 0.2 > found[1].accuracy


def test_rows_that_cannot_be_scored_are_refused(thirds):
    broken = np.array(thirds[0].features)
    broken[0] = np.nan
    rows = LabeledRows(features=broken, labels=thirds[0].labels, classes=10)
    with pytest.raises(InvalidParameterError, match="training rows hold"):
        train_on_synthetic(rows, thirds[1], classifiers=FAST)
    with pytest.raises(InvalidParameterError, match="holdout rows hold"):
        train_on_synthetic(thirds[1], rows, classifiers=FAST)
    with pytest.raises(InvalidParameterError, match="shape"):
        train_on_synthetic(labeled_rows(np.zeros((3, 5)), [0, 1, 2], classes=10), thirds[1])
    with pytest.raises(InvalidParameterError, match="rows of other classes"):
        roc_points(np.zeros(2), np.array([True, True]))
