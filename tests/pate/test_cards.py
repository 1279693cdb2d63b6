# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.pate import cards
from sfumato.pate.run import PateRun, ReleasedAnswers, facts_of
from sfumato.pate.votes.aggregators import GNMax
from sfumato.pate.votes.individual import IndividualBudgets
from sfumato.pate.votes.labeling import Labeling

JOB = Labeling(aggregator=GNMax(stddev=40.0), queries=3, teachers=100, delta=1e-5)


def answers(job=JOB, **changed):
    facts = {
        "classes": np.array([0, -1, 1]),
        "guarantee": job.guarantee("patient"),
        "guarantees": job.guarantees("patient"),
        "facts": facts_of(job),
        "names": ("<script>", "b"),
    }
    return ReleasedAnswers(**(facts | changed))


@pytest.fixture
def folder(tmp_path):
    """A folder with a run and its answers."""
    run = PateRun(student={"any": "thing"}, answers=answers(account="'clinic', \"it's\""), accuracy=0.5)
    run.answers.save(tmp_path)
    run.save(tmp_path)
    return tmp_path, run


def test_the_card_of_a_folder_is_that_of_the_run(folder):
    place, run = folder
    assert cards.folder_card(place, title=None).to_json() == run.card().to_json()
    card = run.card()
    assert card.guarantee == run.guarantee and card.accountant is not None and "student" in card.released
    assert card.account == "clinic, it's" and cards.PUBLIC in card.to_markdown()


def test_answers_without_a_student_have_a_card(tmp_path):
    answers().save(tmp_path)
    assert cards.folder_card(tmp_path, title="T").released == "the answers"


@pytest.mark.parametrize("change", ["facts", "answers", "damage", "no answers", "no seal"])
def test_a_changed_folder_has_no_card(folder, change):
    place, _ = folder
    facts = json.loads((place / "run.json").read_text())
    if change == "facts":
        (place / "run.json").write_text(json.dumps(facts | {"answered": 3}))
    elif change == "answers":
        np.save(place / "answers.npy", np.array([0, 0, 1]))
    elif change == "damage":
        (place / "run.json").write_bytes(b"\xff{")
    elif change == "no answers":
        (place / "answers.npy").unlink()
    else:
        (place / "run.json").write_text(json.dumps({k: v for k, v in facts.items() if k != "sha256"}))
    with pytest.raises(InvalidParameterError, match=r"changed|holds no whole"):
        cards.folder_card(place, title=None)


def test_each_privacy_group_has_its_guarantee_on_the_card():
    groups = IndividualBudgets(epsilons=(1.0, 3.0), shares=(1.0, 1.0), delta=1e-5)
    job = Labeling(aggregator=GNMax(stddev=40.0), queries=3, teachers=100, delta=1e-5, individual=groups)
    assert set(answers(job).card().further) == {"group 0", "group 1"}
    assert answers().card().further == {}


def test_a_notebook_shows_answers_of_each_class_as_text():
    run = PateRun(student=None, answers=answers(study_note="for study only: the noise was seeded"))
    for shown in (run._repr_html_(), run.answers._repr_html_()):
        assert "2 of 3" in shown and "<script" not in shown and "&lt;script&gt;" in shown
        assert "does not protect anyone" in shown
    assert not run.card().protects
