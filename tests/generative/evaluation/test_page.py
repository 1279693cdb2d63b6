# SPDX-License-Identifier: Apache-2.0
"""The page of an evaluation: what was measured, what was charged, and which rows are public."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from sfumato import Budget, Ledger
from sfumato.accounting import Guarantee, Relation
from sfumato.generative.evaluation.evaluation import EvaluationSettings, evaluate
from sfumato.generative.evaluation.memorization import TrainingRows, copy_test, near_copies
from sfumato.generative.evaluation.page import evaluation_facts, evaluation_report
from tests.report.test_training import Tags

FAST = EvaluationSettings(classifiers={"neighbors": [KNeighborsClassifier(3)]}, map_rows=30, t_sne=False)
TOLD = {"data": "digits", "statement": "Made with noise.", "holdout": "a third of the digits"}
GUARANTEE = Guarantee(epsilon=2.0, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="example")


def pair(rows):
    return rows.features, rows.labels


@pytest.fixture(scope="module")
def found(thirds):
    return evaluate(pair(thirds[0]), pair(thirds[1]), classes=10, settings=FAST)


def test_the_page_is_well_formed_and_shows_every_part(found):
    text = evaluation_report(found, title="Digits", **TOLD, guarantee=GUARANTEE, settings={"steps": 3})
    Tags(text)
    for part in (
        "(2, 1e-05)-differential privacy for one example",
        "Made with noise.",
        "charged nothing",
        "a third of the digits (599 rows)",
        "neighbors",
        "ROC curves",
        "principal components",
        "Inception FID",
        "was not tested",
        "No sign of collapse",
    ):
        assert part in text


def test_what_was_charged_is_told(found, thirds, tmp_path):
    account = Ledger(tmp_path / "a.db").open("clinic", privacy_unit="row", budget=Budget(epsilon=3, delta=0))
    test = copy_test(thirds[0].features, thirds[1].features)
    paid = near_copies(TrainingRows(rows=thirds[2].features), test, epsilon=1.0, account=account)
    whole = evaluate(pair(thirds[0]), pair(thirds[1]), classes=10, settings=FAST, memorization=paid)
    facts = evaluation_facts(whole, **TOLD)
    assert "(1, 0)-differential privacy" in facts.charged[0] and "account 'clinic'" in facts.charged[0]
    text = evaluation_report(whole, title="Digits", **TOLD)
    assert "charged nothing" not in text and "of the training rows" in text


def test_names_of_classes_are_shown(found):
    names = [f"number {k}" for k in range(10)]
    facts = evaluation_facts(found, **TOLD, class_names=names)
    assert list(facts.images) == names and facts.classes[4][0] == "number 4"
    assert next(iter(evaluation_facts(found, **TOLD).images)) == "0"


def test_collapse_stands_above_everything_else(thirds):
    images = np.repeat(thirds[2].features[:1], 599, axis=0)
    images[:9] = np.nan
    bad = evaluate((images, thirds[0].labels), pair(thirds[1]), classes=10, settings=FAST)
    text = evaluation_report(bad, title="Digits", **TOLD)
    Tags(text)
    assert text.index("Collapse: All synthetic rows are equal") < text.index("What is promised")
    assert "9 synthetic rows are not finite and were left out" in text and "No sign of collapse" not in text
