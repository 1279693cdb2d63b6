# SPDX-License-Identifier: Apache-2.0
"""The page of a PATE run: the guarantee first, figures that were released, and nothing from outside."""

import re

import pytest

from sfumato.accounting import Guarantee, Relation
from sfumato.report import VotingFacts, voting_report
from tests.report.test_training import HOSTILE, Tags


def guarantee(epsilon=1.23456):
    return Guarantee(epsilon=epsilon, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="patient")


def facts(**changes):
    known = {
        "data": "digits",
        "guarantee": guarantee(),
        "statement": "20 teachers voted.",
        "teachers": 20,
        "asked": 40,
        "answered": 31,
        "aggregator": "GNMax (noise of standard deviation 8)",
        "per_class": {"zero": 15, "one": 16, "two": 0},
        "costs": {"epsilon": [(1.0, 0.2), (40.0, 1.23456)]},
        "settings": {"teachers": 20},
    }
    return VotingFacts(**(known | changes))


def written(**changes):
    return voting_report(facts(**changes), title="Digits")


def test_the_guarantee_stands_first_and_is_rounded_up():
    text = written()
    assert text.index("(1.235, 1e-05)-differential privacy for one patient") < text.index("What is promised")
    assert text.index("What is promised") < text.index("Questions, answers")
    assert "from the answers of the teachers, or from a student" in text


def test_what_was_asked_and_answered_is_there():
    text = written()
    assert "31 of 40" in text and "asked about 40 public rows" in text and "zero: 15; one: 16; two: 0" in text
    assert "epsilon: from 0.2 at queries 1 to 1.235 at queries 40" in text


def test_an_accuracy_is_said_to_be_exact_and_unprotected():
    assert "exact, and computed on evaluation rows that are not protected" in written(accuracy=0.912)
    assert "91.2%" in written(accuracy=0.912)
    assert "exact" not in written()


def test_each_group_has_its_guarantee():
    text = written(guarantees=(guarantee(0.5), guarantee(1.23456)))
    assert "privacy groups" in text and re.search(r"<td>0</td><td>0\.5</td>", text)
    assert "privacy groups" not in written(guarantees=(guarantee(),))


def test_audit_test_statement_settings_and_ledger_are_there_if_there_are_any():
    text = voting_report(
        facts(audit="Canaries found epsilon 0.3.", test="A noisy test decided."),
        title="x",
        ledger_statement="Account 'a' spent 1.",
    )
    for part in (
        "Canaries found epsilon 0.3.",
        "A noisy test decided.",
        "20 teachers voted.",
        "Account &#x27;a",
    ):
        assert part in text
    for heading in ("Audit", "Ledger"):
        assert f"<h2>{heading}</h2>" in text and f"<h2>{heading}</h2>" not in written()


def test_seeded_noise_is_reported_above_everything_else():
    text = written(study_note="for study only: the noise was seeded")
    assert text.index("does not protect anyone") < text.index("What is promised")


@pytest.mark.parametrize("name", ["data", "statement", "aggregator", "audit", "test", "study_note"])
def test_hostile_text_is_shown_as_text(name):
    found = Tags(written(**{name: HOSTILE}))
    assert not {"script", "img"} & set(found.tags)


def test_hostile_names_and_settings_are_shown_as_text():
    found = Tags(
        voting_report(
            facts(per_class={HOSTILE: 3}, settings={HOSTILE: HOSTILE}, costs={HOSTILE: [(1.0, 2.0)]}),
            title=HOSTILE,
            ledger_statement=HOSTILE,
        )
    )
    assert not {"script", "img"} & set(found.tags)


def test_the_page_refers_to_nothing_outside():
    text = written()
    assert not re.search(r"(src|href)=|url\(|@import", text)
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}


def test_a_page_without_figures_is_well_formed():
    Tags(written(per_class={}, costs={}, settings={}))
