# SPDX-License-Identifier: Apache-2.0
import pytest
from flwr.app import RecordDict

from sfumato import Budget, Ledger
from sfumato.errors import InvalidParameterError
from sfumato.federated.flower import LocalNoise
from sfumato.federated.messages.planned_rounds import PlannedRounds, refusal
from sfumato.ledger.state import Progress
from tests.federated.flower.local_grid import context
from tests.federated.flower.test_client_side import message_of, model_of


def noise(epsilon=2.0, rounds=3):
    return LocalNoise(clip_norm=1.0, rounds=rounds, epsilon=epsilon, delta=1e-5)


def account_in(folder, epsilon=5.0):
    def account(_context):
        ledger = Ledger(folder / "own.db")
        budget = Budget(epsilon=epsilon, delta=1e-5)
        return ledger.open("my data", privacy_unit="client", budget=budget, relation="replace-one")

    return account


def plan(account=None, *, epsilon=2.0, rounds=3, purpose="rounds"):
    return PlannedRounds(
        noise(epsilon, rounds), rounds=rounds, purpose=purpose, account_of=account, generator=None
    )


def test_as_many_rounds_as_planned_are_answered_over_all_processes(tmp_path):
    account = account_in(tmp_path)
    taken = [plan(account).take(context(node=i)) for i in range(5)]  # each time a new process
    assert taken == [True, True, True, False, False]
    (release,) = account(None).releases()
    assert release.progress is Progress.COMMITTED and release.purpose == "rounds"


def test_the_charge_is_that_of_all_rounds_before_the_first(tmp_path):
    account = account_in(tmp_path)
    plan(account).take(context())
    assert account(None).releases()[0].event == noise().event()


def test_an_account_that_cannot_pay_answers_nothing(tmp_path):
    account = account_in(tmp_path, epsilon=1.0)
    assert not plan(account).take(context()) and not account(None).releases()


def test_another_purpose_is_charged_anew_until_the_budget_is_used_up(tmp_path):
    account = account_in(tmp_path)
    assert plan(account).take(context()) and plan(account, purpose="more").take(context())
    assert not plan(account, purpose="too much", epsilon=4.0).take(context())
    assert len(account(None).releases()) == 2


def test_other_settings_under_the_same_purpose_are_refused(tmp_path):
    account = account_in(tmp_path)
    plan(account).take(context())
    with pytest.raises(InvalidParameterError, match="other settings"):
        plan(account, rounds=4).take(context())


def test_a_crash_between_charge_and_begin_is_continued(tmp_path):
    account = account_in(tmp_path)
    account(None).reserve(noise(), purpose="rounds")
    assert [plan(account).take(context()) for _ in range(4)] == [True, True, True, False]
    assert len(account(None).releases()) == 1


def test_of_two_processes_that_take_the_same_round_one_is_refused(tmp_path, monkeypatch):
    account = account_in(tmp_path)
    plan(account).take(context())
    slow, stale = plan(account), account(None).releases()
    monkeypatch.setattr(slow, "_charged", lambda own: stale[0])
    monkeypatch.setattr("sfumato.ledger.reservation.Reservation.release", stale[0])
    other = plan(account)
    monkeypatch.setattr(other, "_charged", lambda own: stale[0])
    assert other.take(context()) and not slow.take(context())


def test_without_an_account_the_context_of_the_client_counts():
    state = RecordDict()
    assert [plan().take(context(state=state)) for _ in range(4)] == [True, True, True, False]
    assert plan(purpose="another").take(context(state=state))
    assert not plan().take(context(state=state))


def test_a_refusal_is_an_error_reply():
    reply = refusal(message_of(model_of()), "no more")
    assert reply.has_error() and reply.error.reason == "no more" and reply.error.code == 6


def test_a_crash_after_the_last_round_was_counted_answers_no_more(tmp_path):
    account = account_in(tmp_path)
    paid = account(None).reserve(noise(), purpose="rounds")
    paid.begin(claim="round 3")  # and the process died before it committed
    assert not plan(account).take(context())
