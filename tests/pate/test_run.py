# SPDX-License-Identifier: Apache-2.0
"""Released answers: what they say of themselves, and what they leave out."""

import json
from dataclasses import replace

import numpy as np

from sfumato.pate.planning import plan
from sfumato.pate.run import PateRun, ReleasedAnswers, facts_of
from sfumato.pate.votes.aggregators import GNMax
from sfumato.pate.votes.individual import IndividualBudgets
from sfumato.pate.votes.labeling import Labeling


def answers(job, **changed) -> ReleasedAnswers:
    return ReleasedAnswers(
        classes=np.array([0, -1, 1]),
        guarantee=job.guarantee("patient"),
        guarantees=job.guarantees("patient"),
        facts=facts_of(job),
        **changed,
    )


JOB = Labeling(aggregator=GNMax(stddev=40.0), queries=3, teachers=100, delta=1e-5)


def test_a_statement_has_numbers_unit_and_relation():
    told = answers(JOB, record_note="not recorded in a ledger").statement()
    for part in ("100 teachers", "3 public rows", "2 of them", "one patient", "add-remove", "Not recorded"):
        assert part in told


def test_overlapping_teachers_are_told():
    groups = IndividualBudgets(epsilons=(1.0, 3.0), shares=(1.0, 1.0), delta=1e-5, method="upsampling")
    job = Labeling(aggregator=GNMax(stddev=40.0), queries=3, teachers=100, delta=1e-5, individual=groups)
    assert "overlapping" in answers(job).statement()
    assert "disjoint" in answers(JOB).statement()


def test_the_guarantee_of_each_group_is_told():
    groups = IndividualBudgets(epsilons=(1.0, 3.0), shares=(1.0, 1.0), delta=1e-5)
    job = Labeling(aggregator=GNMax(stddev=40.0), queries=3, teachers=100, delta=1e-5, individual=groups)
    told = answers(job)
    assert (
        len(told.to_dict()["groups"]) == 2
        and "group 0: " in told.statement()
        and "group 1: " in told.statement()
    )


def test_a_test_of_agreement_tells_its_fallback():
    job = plan(epsilon=2.0, delta=1e-5, teachers=250, agreement=0.95)
    assert str(job.fallback) in answers(job).statement()


def test_a_test_that_decides_nothing_is_not_said_to_decide():
    job = replace(plan(epsilon=2.0, delta=1e-5, teachers=250, agreement=0.95), queries=10)
    assert job.fallback == 10
    assert "if it fails" not in answers(job).statement()


def test_json_can_be_read_and_has_no_votes():
    facts = json.loads(PateRun(student=None, answers=answers(JOB), accuracy=0.9).to_json())
    assert facts["accuracy"] == 0.9 and facts["answered"] == 2
    assert not {"counts", "votes", "classes"} & set(facts)


def test_answers_are_saved_and_loaded(tmp_path):
    answers(JOB).save(tmp_path / "new")
    assert ReleasedAnswers.load_classes(tmp_path / "new").tolist() == [0, -1, 1]
    assert json.loads((tmp_path / "new" / "answers.json").read_text())["teachers"] == 100
