# SPDX-License-Identifier: Apache-2.0
import copy
import math

import pytest
import torch
from torch import nn

from sfumato.accounting import events
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.federated.vertical import train_split as module
from sfumato.federated.vertical.parties import FeatureParty, LabelParty
from sfumato.federated.vertical.train_split import SplitSteps, train_split
from sfumato.ledger import Budget, Ledger
from sfumato.testing import seeded

PEOPLE, DELTA, CLIP = 24, 1e-5, 0.5
DRAWS = torch.Generator().manual_seed(0)
COLUMNS = torch.randn(PEOPLE, 5, generator=DRAWS)
LABELS = (COLUMNS.sum(1) > 0).long()
LOUD = ClippedNoise(noise_multiplier=1.0, clip_norm=CLIP)
QUIET = ClippedNoise(noise_multiplier=1e-7, clip_norm=50.0)
STEPS = SplitSteps(epochs=3, batch_size=8, learning_rate=0.5)


def networks():
    torch.manual_seed(0)
    bottoms = [nn.Sequential(nn.Linear(size, 4), nn.Tanh(), nn.Linear(4, 2)) for size in (2, 3)]
    return bottoms, nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def parties_of(noise=LOUD, columns=COLUMNS, labels=LABELS, accounts=(None, None, None)):
    bottoms, top = networks()
    parties = [
        FeatureParty(name=name, columns=held, bottom=bottom, embeddings=noise, updates=noise, account=account)
        for name, held, bottom, account in zip(
            ("bank", "shop"), (columns[:, :2], columns[:, 2:]), bottoms, accounts[:2], strict=True
        )
    ]
    return parties, LabelParty(
        labels=labels, classes=2, top=top, gradients=noise, updates=noise, account=accounts[2]
    )


def values(*networks):
    return torch.cat([p.detach().flatten() for network in networks for p in network.parameters()])


def test_at_little_noise_the_parts_learn_what_the_joint_network_learns():
    parties, labels = parties_of(QUIET)
    bottoms, top = networks()
    assert torch.equal(values(*bottoms, top), values(*(p.bottom for p in parties), labels.top))
    train_split(parties, labels, delta=DELTA, steps=STEPS)
    optimizer = torch.optim.SGD([p for n in (*bottoms, top) for p in n.parameters()], lr=0.5)
    for epoch in range(3):
        order = torch.randperm(PEOPLE, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(8):
            joined = torch.cat([bottoms[0](COLUMNS[batch, :2]), bottoms[1](COLUMNS[batch, 2:])], 1)
            optimizer.zero_grad()
            nn.functional.cross_entropy(top(joined), LABELS[batch]).backward()
            optimizer.step()
    found, wanted = values(*(p.bottom for p in parties), labels.top), values(*bottoms, top)
    assert (found - wanted).abs().max() < 1e-4
    assert (wanted - values(*networks()[0], networks()[1])).abs().max() > 0.1  # something was learned


class Recorded:
    """Records every release of a run: embeddings, returned gradients and noisy sums."""

    def __init__(self, monkeypatch):
        self.sent, release = [], ClippedNoise.release

        def recording(noise, rows, *, generator=None):
            self.sent.append(release(noise, rows, generator=generator))
            return self.sent[-1]

        monkeypatch.setattr(ClippedNoise, "release", recording)


def first_epoch(monkeypatch, *, columns=COLUMNS, labels=LABELS, epochs=1):
    with monkeypatch.context() as patch:
        recorded = Recorded(patch)
        parties, held = parties_of(columns=columns, labels=labels)
        steps = SplitSteps(epochs=epochs, batch_size=PEOPLE, learning_rate=0.5)
        train_split(parties, held, delta=DELTA, steps=steps, generator=seeded(3))
    return recorded.sent, parties, held


HOSTILE = [math.nan, math.inf, 1e38, -1e38, 100.0]


@pytest.mark.parametrize("bad", HOSTILE)
def test_one_person_s_columns_move_what_is_released_by_at_most_two_clip_norms(monkeypatch, bad):
    changed = COLUMNS.clone()
    changed[5, :2] = bad
    bank, shop, _ = first_epoch(monkeypatch)[0]
    other, same, _ = first_epoch(monkeypatch, columns=changed)[0]
    moved = (bank - other).norm(dim=1)
    assert (moved > 0).sum() <= 1 and moved.max() <= 2 * CLIP * (1 + 1e-5)
    assert torch.equal(shop, same)


def test_given_the_same_messages_columns_move_a_step_by_at_most_two_clip_norms(monkeypatch):
    """With returned gradients fixed, one person has one clipped part in a step of the bottom network."""
    _, parties, _ = first_epoch(monkeypatch)
    gradients = torch.randn(PEOPLE, 2, generator=torch.Generator().manual_seed(1)) * 10
    found = []
    for bad in (None, *HOSTILE):
        columns = COLUMNS[:, :2].clone()
        columns[5] = columns[5] if bad is None else bad
        bottom = copy.deepcopy(parties[0].bottom)
        steps = SplitSteps(batch_size=1, learning_rate=1.0)
        part = module._Part(bottom, module._along(LOUD), LOUD, steps, seeded(2))
        part.step(columns, gradients)
        found.append(values(bottom))
    moves = torch.stack([value - found[0] for value in found]).norm(dim=1)
    assert 0 < moves.max() <= 2 * CLIP * (1 + 1e-3)


def test_one_label_moves_what_is_returned_by_at_most_two_clip_norms(monkeypatch):
    changed = LABELS.clone()
    changed[5] = 1 - changed[5]
    (bank, shop, returned), _, labels = first_epoch(monkeypatch)
    (same, alike, other), _, others = first_epoch(monkeypatch, labels=changed)
    assert torch.equal(bank, same) and torch.equal(shop, alike)
    moved = (returned - other).norm(dim=1)
    assert (moved > 0).nonzero().numel() == 1 and moved.max() <= 2 * CLIP * (1 + 1e-5)
    top = (values(labels.top) - values(others.top)).norm() * PEOPLE / 0.5
    assert 0 < top <= 2 * CLIP * (1 + 1e-3)


def carried(monkeypatch):
    """Return how far one person's columns move the bank's weights in clip norms, given what is returned."""
    found = []
    for row in (COLUMNS[5], COLUMNS[5] + 3):
        columns = COLUMNS.clone()
        columns[5] = row
        with monkeypatch.context() as patch:
            patch.setattr(
                LabelParty, "row_gradients", lambda self, rows, labels: torch.full((PEOPLE, 4), 9.0)
            )
            found.append(values(first_epoch(patch, columns=columns)[1][0].bottom))
    return float((found[0] - found[1]).norm()) * PEOPLE / 0.5 / CLIP


def test_weights_carry_at_most_two_clip_norms_of_a_person_and_exact_steps_are_caught(monkeypatch):
    """A planted bug: bottom networks take exact steps, which later embeddings of others would tell of."""
    assert 0 < carried(monkeypatch) <= 2 * (1 + 1e-3)
    noisy = module._Part.step

    def exact(self, *rows):
        if rows[1].dim() == 1:  # the top network
            noisy(self, *rows)
            return
        with torch.enable_grad():
            module._along(LOUD)(self.network, *rows).mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    monkeypatch.setattr(module._Part, "step", exact)
    assert carried(monkeypatch) > 2 * (1 + 1e-3)


def test_noise_differs_between_parties_epochs_and_directions(monkeypatch):
    zeros = torch.zeros_like(COLUMNS)
    with monkeypatch.context() as patch:
        patch.setattr(LabelParty, "row_gradients", lambda self, rows, labels: torch.zeros(len(rows), 4))
        patch.setattr(
            FeatureParty, "embedded", lambda self, rows: (torch.zeros(len(rows), 2), rows[:, 0] == 0)
        )
        sent = first_epoch(patch, columns=zeros, epochs=2)[0]
    drawn = {tuple(part[:, :2].flatten().tolist()) for part in sent}
    assert len(sent) == len(drawn) == 6


def test_each_guarantee_is_the_price_of_two_releases_an_epoch():
    parties, labels = parties_of()
    run = train_split(parties, labels, delta=DELTA, steps=STEPS, generator=seeded(1))
    wanted = events.dp_sgd(noise_multiplier=1.0, sampling_rate=1.0, steps=6)
    assert run.parties["bank"].epsilon == price(wanted, delta=DELTA, relation=Relation.REPLACE_ONE).epsilon
    assert run.labels.epsilon == run.parties["shop"].epsilon < run.person.epsilon
    assert run.labels.relation is Relation.REPLACE_LABEL and run.top_may_leave
    assert "3 epochs" in run.statement() and "seeded" in run.statement()


def test_accuracy_after_each_epoch_is_that_of_noisy_embeddings():
    parties, labels = parties_of(QUIET)
    evaluation = (COLUMNS[:, :2], COLUMNS[:, 2:]), LABELS
    run = train_split(
        parties,
        labels,
        delta=DELTA,
        steps=SplitSteps(epochs=8, batch_size=8, learning_rate=1.0),
        evaluation=evaluation,
    )
    assert len(run.accuracies) == 8 and run.accuracy > 0.8


def test_a_row_that_makes_the_network_fail_stops_nothing():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 2)

        def forward(self, rows):
            return self.table(rows[:, 0].long())

    columns = torch.zeros(PEOPLE, 1)
    columns[5] = 99.0
    party = FeatureParty(name="bank", columns=columns, bottom=Picky(), embeddings=LOUD, updates=LOUD)
    labels = LabelParty(labels=LABELS, classes=2, top=nn.Linear(2, 2), gradients=LOUD, updates=LOUD)
    train_split([party], labels, delta=DELTA, steps=STEPS)


def test_all_parties_are_charged_or_none():
    def accounts(*budgets):
        relations = ("replace-one", "replace-one", "replace-label")
        return [
            Ledger.temporary().open(
                "a", privacy_unit="person", relation=relation, budget=Budget(epsilon=budget, delta=DELTA)
            )
            for relation, budget in zip(relations, budgets, strict=True)
        ]

    paying = accounts(50.0, 50.0, 50.0)
    parties, labels = parties_of(accounts=paying)
    train_split(parties, labels, delta=DELTA, steps=STEPS, purpose="study")
    assert [len(account.releases()) for account in paying] == [1, 1, 1]
    poor = accounts(50.0, 50.0, 0.1)
    parties, labels = parties_of(accounts=poor)
    with pytest.raises(BudgetExceededError):
        train_split(parties, labels, delta=DELTA, steps=STEPS, purpose="study")
    assert [account.spent().epsilon for account in poor] == [0, 0, 0]


def test_a_party_without_noise_for_its_steps_is_refused():
    parties, labels = parties_of()
    bare = FeatureParty(name="bare", columns=COLUMNS, bottom=nn.Linear(5, 2), embeddings=LOUD)
    with pytest.raises(InvalidParameterError, match="updates"):
        train_split([*parties, bare], labels, delta=DELTA, steps=STEPS)
