# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.accounting.guarantee import Relation
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.federated.messages.charges import all_charged, first_record_note, require_purpose
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.ledger import Budget, Ledger

EVENT = ClippedNoise(noise_multiplier=10.0).event()


def account(name, epsilon=5.0, ledger=None):
    return (ledger or Ledger.temporary()).open(
        name, privacy_unit="person", relation="replace-one", budget=Budget(epsilon=epsilon, delta=1e-5)
    )


def charges(*accounts):
    return [(each, EVENT, Relation.REPLACE_ONE) for each in accounts]


def test_all_accounts_are_charged_before_the_block_and_stay_so_when_it_fails():
    first, second = account("a"), account("b")
    with pytest.raises(RuntimeError), all_charged(charges(first, None, second), purpose="x", seeded=False):
        assert first.spent().epsilon > 0 and second.spent().epsilon > 0
        raise RuntimeError
    assert first.spent().epsilon > 0 and second.spent().epsilon > 0


def test_if_one_cannot_pay_none_is_charged_and_the_block_does_not_run():
    first, poor = account("a"), account("b", epsilon=0.01)
    with pytest.raises(BudgetExceededError), all_charged(charges(first, poor), purpose="x", seeded=False):
        raise AssertionError
    assert first.spent().epsilon == 0


def test_seeded_noise_is_marked_in_the_ledger():
    paying = account("a")
    with all_charged(charges(paying), purpose="x", seeded=True):
        pass
    assert paying.releases()[0].seeded


def test_a_purpose_belongs_to_an_account():
    require_purpose([None], None)
    require_purpose([None, account("a")], "x")
    for accounts, purpose in (([account("a")], None), ([None], "x"), ([], "x")):
        with pytest.raises(InvalidParameterError, match="belong together"):
            require_purpose(accounts, purpose)


def test_a_participant_without_a_ledger_is_named(tmp_path):
    kept = account("a", ledger=Ledger(tmp_path / "l.db"))
    assert first_record_note([kept]) is None
    assert "not recorded" in first_record_note([kept, None])
