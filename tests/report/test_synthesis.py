# SPDX-License-Identifier: Apache-2.0
"""The page of an evaluation: collapse first, then privacy, then figures, and nothing from outside."""

import re

import numpy as np
import pytest

from sfumato.accounting import Guarantee, Relation
from sfumato.report import SynthesisFacts, synthesis_report
from tests.report.test_training import HOSTILE, Tags

GUARANTEE = Guarantee(epsilon=1.23456, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="patient")


def facts(**changes):
    known = {
        "data": "digits",
        "rows": 1000,
        "statement": "A generator was trained with noise.",
        "holdout": "the test images",
        "scores": [("forest", 0.912, 0.987, None), ("MLP", 0.5, None, "no synthetic rows of classes 3")],
        "curves": {"forest": [(0.0, 0.0), (0.1, 0.9), (1.0, 1.0)], "MLP": []},
        "class_heads": ("class", "fidelity"),
        "classes": [("zero", "0.950"), ("one", None)],
        "images": {"zero": np.zeros((2, 1, 4, 4))},
        "maps": {"a map": {"public rows": [(0.0, 1.0)], "synthetic rows": [(1.0, 0.0), (2.0, 2.0)]}},
        "distances": ["Frechet distance: 0.5."],
        "marginals": {"age": 0.12342},
        "marginals_in_words": "Mean error 0.123.",
        "guarantee": GUARANTEE,
    }
    return SynthesisFacts(**(known | changes))


def written(**changes):
    return synthesis_report(facts(**changes), title="Digits")


def test_collapse_and_weak_noise_stand_above_everything_else():
    text = written(collapse=["All rows are equal."], study_note="for study only: the noise was seeded")
    assert text.index("Collapse: All rows are equal.") < text.index("What is promised")
    assert text.index("does not protect anyone") < text.index("What is promised")
    assert "No sign of collapse" not in text and "No sign of collapse" in written()


def test_privacy_stands_before_the_scores():
    text = written()
    assert "(1.235, 1e-05)-differential privacy for one patient" in text
    assert text.index("A generator was trained with noise.") < text.index("Classifiers that learned")
    assert "from the synthetic data" in text


def test_what_was_charged_and_what_is_public_is_told():
    assert "This evaluation charged nothing" in written()
    text = written(charged=["copies: (1, 0)-differential privacy."])
    assert "charged: copies: (1, 0)-differential privacy." in text and "charged nothing" not in text
    assert "The public rows are the test images. They are not protected" in text


def test_all_classifiers_are_shown_with_their_notes():
    text = written()
    assert re.search(r"<td>forest</td><td>91\.2%</td><td>0\.987</td><td></td>", text)
    assert re.search(r"<td>MLP</td><td>50\.0%</td><td></td><td>no synthetic rows of classes 3</td>", text)
    assert "All classifiers are shown, not the best one" in text and "forest: from 0 at" in text


def test_figures_of_classes_maps_and_marginals_are_shown():
    text = written()
    assert "zero: 2 images" in text and "synthetic rows: 2 points." in text and "age: 0.1234" in text
    assert "<td>0.950</td>" in text and "Mean error 0.123." in text and "Frechet distance: 0.5." in text


def test_memorization_is_told_or_said_to_be_untested():
    assert "was not tested" in written()
    text = written(memorization="MEMORIZATION: copies.")
    assert "MEMORIZATION: copies." in text and "was not tested" not in text


def test_a_page_with_little_is_well_formed():
    text = synthesis_report(SynthesisFacts(data="d", rows=0, statement="s", holdout="h"), title="t")
    Tags(text)
    assert "Maps" not in text and "ROC" not in text


@pytest.mark.parametrize(
    "name", ["data", "statement", "holdout", "memorization", "marginals_in_words", "study_note"]
)
def test_hostile_text_is_shown_as_text(name):
    assert not {"script", "img"} & set(Tags(written(**{name: HOSTILE})).tags)


def test_hostile_names_are_shown_as_text():
    text = synthesis_report(
        facts(
            collapse=[HOSTILE],
            charged=[HOSTILE],
            scores=[(HOSTILE, 0.1, 0.2, HOSTILE)],
            curves={HOSTILE: [(0.0, 0.0), (1.0, 1.0)]},
            classes=[(HOSTILE, HOSTILE)],
            images={HOSTILE: np.zeros((1, 1, 2, 2))},
            maps={HOSTILE: {HOSTILE: [(0.0, 0.0)]}},
            marginals={HOSTILE: 0.1},
            distances=[HOSTILE],
            settings={HOSTILE: HOSTILE},
        ),
        title=HOSTILE,
        ledger_statement=HOSTILE,
    )
    assert not {"script", "img"} & set(Tags(text).tags)


def test_the_page_refers_to_nothing_outside():
    text = written()
    assert not re.search(r"(src|href)=|url\(|@import", text)
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}
