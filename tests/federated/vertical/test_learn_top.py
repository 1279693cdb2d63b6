# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.federated.vertical.learn_top import learn_top, send_embeddings
from sfumato.federated.vertical.parties import FeatureParty, LabelParty
from sfumato.labels import LabelDpSgd, Learner
from sfumato.ledger import Budget, Ledger
from sfumato.testing import seeded

PEOPLE, DELTA = 40, 1e-5
NOISE = ClippedNoise(noise_multiplier=2.0, clip_norm=0.5)
DRAWS = torch.Generator().manual_seed(0)
COLUMNS = torch.randn(PEOPLE, 3, generator=DRAWS)
LABELS = (COLUMNS[:, 0] > 0).long()


def party(name="bank", columns=COLUMNS, noise=NOISE, **more):
    torch.manual_seed(0)
    return FeatureParty(name=name, columns=columns, bottom=nn.Linear(3, 2), embeddings=noise, **more)


def label_party(sizes=2, **more):
    return LabelParty(labels=LABELS, classes=2, top=nn.Linear(2 * sizes, 2), **more)


def sent(parties, step=0):
    return send_embeddings(parties, torch.arange(PEOPLE), seeded(1), step=step)


hostile = st.floats(width=32)


@settings(max_examples=30)
@given(st.tuples(hostile, hostile, hostile))
def test_one_person_changes_their_own_embedding_by_at_most_two_clip_norms(row):
    changed = COLUMNS.clone()
    changed[5] = torch.tensor(row)
    before, after = sent([party()]), sent([party(columns=changed)])
    others = torch.arange(PEOPLE) != 5
    assert torch.equal(before[others], after[others])
    assert (before[5] - after[5]).norm() <= 2 * NOISE.clip_norm * (1 + 1e-5)


def test_an_embedding_that_is_not_clipped_is_caught(monkeypatch):
    """A planted bug: noise is added to what the network returned."""
    monkeypatch.setattr(ClippedNoise, "clipped", lambda self, rows: rows.nan_to_num())
    changed = COLUMNS.clone()
    changed[5] = 1e6
    assert (sent([party()])[5] - sent([party(columns=changed)])[5]).norm() > 2 * NOISE.clip_norm


def shared_noise(parties):
    """Return whether two parties, or two exchanges, get the same noise (their embeddings are the same)."""
    first, again = sent(parties), sent(parties, step=1)
    return torch.equal(first[:, :2], first[:, 2:]) or torch.equal(first, again)


def test_noise_of_parties_and_exchanges_is_drawn_apart(monkeypatch):
    parties = [party("bank"), party("shop")]
    assert not shared_noise(parties)
    monkeypatch.setattr(type(seeded(1)), "fork", lambda self, label, index: seeded(index))
    assert shared_noise(parties)  # a planted bug: parties draw from one seed
    monkeypatch.setattr(type(seeded(1)), "fork", lambda self, label, index: seeded(len(label)))
    assert shared_noise(parties)  # and so do two exchanges


def test_each_party_has_its_own_guarantee_and_a_person_that_of_all():
    run = learn_top([party("bank"), party("shop")], label_party(), delta=DELTA, generator=seeded(1))
    alone = learn_top([party("bank")], label_party(1), delta=DELTA, generator=seeded(1))
    assert run.parties["bank"] == alone.parties["bank"] == alone.person
    assert run.person.epsilon > run.parties["shop"].epsilon
    assert run.labels is None and not run.top_may_leave
    assert "must stay with the label party" in run.statement() and "seeded" in run.statement()


def test_at_little_noise_the_top_network_learns_what_the_bottoms_keep():
    quiet = ClippedNoise(noise_multiplier=1e-6, clip_norm=100.0)
    parties = [party("bank", noise=quiet), party("shop", noise=quiet)]
    learner = Learner(epochs=200, batch_size=8, learning_rate=0.05)
    run = learn_top(parties, label_party(), delta=DELTA, learner=learner, evaluation=([COLUMNS] * 2, LABELS))
    exact = torch.cat([own.bottom(COLUMNS) for own in parties], 1).detach()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(500):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(exact), LABELS).backward()
        optimizer.step()
    wanted = float((model(exact).argmax(1) == LABELS).float().mean())
    assert run.accuracy == pytest.approx(wanted, abs=0.06) and wanted > 0.8


def test_with_a_method_for_labels_the_top_network_may_leave():
    method = LabelDpSgd(
        epsilon=2.0, delta=DELTA, classes=2, public_size=PEOPLE, steps=5, expected_batch_size=10
    )
    run = learn_top([party("bank")], label_party(1), delta=DELTA, method=method, generator=seeded(1))
    assert run.top_may_leave and run.labels.epsilon <= 2.0
    assert "replace-label" in run.statement()


def test_people_that_do_not_match_are_refused_before_a_row_is_read():
    class Unread(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func.__name__ in ("__get__", "dim", "__len__", "is_floating_point"):
                return super().__torch_function__(func, types, args, kwargs or {})
            raise AssertionError("a row was read")

    columns = torch.zeros(PEOPLE + 1, 3).as_subclass(Unread)
    with pytest.raises(InvalidParameterError, match="people"):
        learn_top([party(columns=columns)], label_party(1), delta=DELTA)


def account(relation, epsilon):
    return Ledger.temporary().open(
        "a", privacy_unit="label", relation=relation, budget=Budget(epsilon=epsilon, delta=DELTA)
    )


def test_columns_are_charged_once_and_labels_by_their_method():
    bank, held = account("replace-one", 8.0), account("replace-label", 8.0)
    method = LabelDpSgd(
        epsilon=2.0, delta=DELTA, classes=2, public_size=PEOPLE, steps=5, expected_batch_size=10
    )
    run = learn_top(
        [party(account=bank)], label_party(1, account=held), delta=DELTA, method=method, purpose="study"
    )
    assert len(bank.releases()) == len(held.releases()) == 1
    assert run.person.epsilon <= bank.spent().epsilon <= 8.0


def test_an_account_of_another_unit_is_refused_unless_each_row_is_said_to_be_one():
    account = Ledger.temporary().open(
        "a", privacy_unit="hospital", relation="replace-one", budget=Budget(epsilon=8.0, delta=DELTA)
    )
    given = {"delta": DELTA, "purpose": "study"}
    with pytest.raises(InvalidParameterError, match="protects one 'hospital', but this run protects one row"):
        learn_top([party(account=account)], label_party(1), **given)
    assert account.spent().epsilon == 0
    run = learn_top([party(account=account)], label_party(1), privacy_unit="hospital", **given)
    assert run.person.privacy_unit == "hospital" and account.spent().epsilon > 0


def test_if_labels_cannot_be_paid_for_no_embedding_is_spent():
    bank, held = account("replace-one", 8.0), account("replace-label", 0.1)
    method = LabelDpSgd(
        epsilon=2.0, delta=DELTA, classes=2, public_size=PEOPLE, steps=5, expected_batch_size=10
    )
    with pytest.raises(BudgetExceededError):
        learn_top(
            [party(account=bank)], label_party(1, account=held), delta=DELTA, method=method, purpose="study"
        )
    assert bank.spent().epsilon == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38, -1e38])
def test_hostile_columns_stop_nothing(bad):
    columns = COLUMNS.clone()
    columns[3] = bad
    learn_top([party(columns=columns)], label_party(1), delta=DELTA)


def test_a_top_network_of_another_size_is_refused_before_anything_is_spent():
    bank = account("replace-one", 8.0)
    with pytest.raises(InvalidParameterError):
        learn_top([party(account=bank)], label_party(2), delta=DELTA, purpose="study")
    assert bank.spent().epsilon == 0


@pytest.mark.parametrize(
    ("top", "said"),
    [
        (nn.Linear(3, 2), r"4 numbers \(2 of 'bank', 2 of 'shop'\).*nn.Linear\(4, 2\)"),
        (nn.Linear(4, 3), "classes=2"),
    ],
)
def test_a_top_network_of_another_width_is_told_which_one_is_needed(top, said):
    held = LabelParty(labels=LABELS, classes=2, top=top)
    with pytest.raises(InvalidParameterError, match=said):
        learn_top([party(), party("shop")], held, delta=DELTA)


def test_a_bottom_network_that_does_not_take_the_columns_is_named():
    wrong = FeatureParty(name="bank", columns=COLUMNS, bottom=nn.Linear(9, 2), embeddings=NOISE)
    with pytest.raises(InvalidParameterError, match=r"party 'bank' does not take its columns.*\(3,\)"):
        learn_top([wrong], label_party(1), delta=DELTA)
