# SPDX-License-Identifier: Apache-2.0
"""The settings of a job: keywords and fields are one list, and what is missing is told before the charge."""

from dataclasses import fields

import pytest

from sfumato import Budget, Ledger, Relation
from sfumato.errors import InvalidParameterError
from sfumato.pate.planning import plan
from sfumato.pate.settings import VoteKeywords, VoteSettings
from sfumato.pate.votes.aggregators import GNMax
from sfumato.pate.votes.labeling import Labeling
from sfumato.pate.votes.stability import StableLabeling


def test_every_field_is_a_keyword():
    assert list(VoteKeywords.__annotations__) == [each.name for each in fields(VoteSettings)]


def test_a_job_and_its_settings_are_not_given_both():
    job = plan(epsilon=2.0, delta=1e-5, teachers=250)
    assert VoteSettings().job(job, public_rows=1000) is job
    with pytest.raises(InvalidParameterError, match="epsilon is part of the job"):
        VoteSettings(epsilon=1.0).job(job, public_rows=1000)


def test_a_job_for_more_rows_than_there_are_is_refused_and_a_planned_one_is_cut():
    job = plan(epsilon=2.0, delta=1e-5, teachers=250)
    with pytest.raises(InvalidParameterError, match="there are 100"):
        VoteSettings().job(job, public_rows=100)
    assert VoteSettings(epsilon=2.0, delta=1e-5).job(None, public_rows=100).queries == 100


def test_relation_and_delta_come_from_the_account(tmp_path):
    account = Ledger(tmp_path / "a.db").open(
        "a", privacy_unit="row", relation="replace-one", budget=Budget(epsilon=9, delta=1e-6)
    )
    settings = VoteSettings(epsilon=2.0, account=account, purpose="x", aggregator=GNMax(stddev=80.0))
    job = settings.job(None, public_rows=1000)
    assert (job.relation, job.delta) == (Relation.REPLACE_ONE, 1e-6)


def test_a_test_of_agreement_is_left_out_for_few_public_rows():
    settings = VoteSettings(epsilon=2.0, delta=1e-5, agreement=0.95)
    assert isinstance(settings.job(None, public_rows=150), Labeling)
    tested = settings.job(None, public_rows=400)
    assert isinstance(tested, StableLabeling) and tested.fallback < tested.queries == 400


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"account": "a", "purpose": "x"}, "account must be"),
        ({"account": [], "purpose": "x"}, "account must be"),
        ({"account": ["a", "b"], "purpose": "x"}, "account must be"),
        ({"purpose": "x"}, "account"),
        ({"rounds": 0}, "rounds"),
        ({"audit": 5}, "audit must be"),
        ({"generator": 3}, "generator must be"),
        ({"partition": 3}, "partition must be"),
        ({"individual": 3}, "individual must be"),
    ],
)
def test_settings_that_do_not_fit_are_refused(wrong, said):
    with pytest.raises(InvalidParameterError, match=said):
        VoteSettings(**wrong)


def test_a_job_is_what_plan_returns():
    with pytest.raises(InvalidParameterError, match="job must be"):
        VoteSettings().job(3, public_rows=10)
    with pytest.raises(InvalidParameterError, match="aggregator must be"):
        VoteSettings(epsilon=1.0, delta=1e-5, aggregator=3).job(None, public_rows=10)
