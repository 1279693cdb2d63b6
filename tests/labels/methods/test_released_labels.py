# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import pytest
import torch
from dp_accounting import dp_event as dp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn

from sfumato import Budget, Ledger
from sfumato.accounting.events import ParallelDpEvent, PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.labels.learning import learn, predictions, soft_cross_entropy, teacher
from sfumato.labels.methods.randomized_response import Correction, marginal_loss, response
from sfumato.labels.methods.released_labels import (
    Alibi,
    MultiStage,
    PriorLabels,
    RandomizedLabels,
    label_share,
)
from sfumato.ledger.charge import Mechanism
from sfumato.testing import seeded

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

METHODS = {
    "randomized": lambda **said: RandomizedLabels(**said),
    "backward": lambda **said: RandomizedLabels(correction=Correction.BACKWARD, **said),
    "forward": lambda **said: RandomizedLabels(correction=Correction.FORWARD, **said),
    "prior": lambda **said: PriorLabels(prior=[0.5, 0.3, 0.2], **said),
    "prior-forward": lambda **said: PriorLabels(
        prior=torch.linspace(0.1, 1.0, 90).view(30, 3), correction=Correction.FORWARD, **said
    ),
    "stages": lambda **said: MultiStage(**said),
    "stages-forward": lambda **said: MultiStage(shares=(1, 1, 1), correction=Correction.FORWARD, **said),
    "alibi": lambda **said: Alibi(**said),
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
LABELS = torch.arange(30) % 3


def teach(rows, released):
    return torch.ones(30, 3)


@every_method
def test_a_run_is_one_event_that_costs_epsilon_for_replaced_labels(make):
    method = make(epsilon=0.8, classes=3)
    assert isinstance(method, Mechanism) and method.relation is Relation.REPLACE_LABEL and method.name
    cost = price(method.event(), relation=Relation.REPLACE_LABEL, delta=1e-12).upper
    assert cost <= 0.8 + 1e-9 and cost == pytest.approx(0.8, rel=1e-3)


@every_method
@pytest.mark.parametrize("bound", [2, 3, 7])
def test_a_user_with_several_labels_pays_epsilon_for_all_of_them(make, bound):
    method = make(epsilon=0.8, classes=3, contribution_bound=bound)
    cost = price(method.event(), relation=Relation.REPLACE_LABEL, delta=1e-12).upper
    assert cost <= 0.8 + 1e-9 and cost == pytest.approx(0.8, rel=5e-2)
    one = make(epsilon=0.8, classes=3)
    # Each label alone costs a share of it: without shares the user would pay about `bound` times as much.
    dear = price(
        dp.SelfComposedDpEvent(one.event(), bound), relation=Relation.REPLACE_LABEL, delta=1e-12
    ).upper
    assert dear > 0.8 * 1.5


@every_method
def test_a_ledger_takes_the_method_itself_and_refuses_a_second_run(make, tmp_path):
    account = Ledger(tmp_path / "l.db").open(
        "d", privacy_unit="label", budget=Budget(epsilon=1.0, delta=1e-6), relation=Relation.REPLACE_LABEL
    )
    method = make(epsilon=0.9, classes=3)
    with account.spend(method, purpose="labels", seeded=True):
        method.release(LABELS, teach=teach, generator=seeded(0))
    assert not account.admits(method)


@every_method
def test_what_is_released_can_be_learned_from_and_a_seed_repeats_it(make):
    method = make(epsilon=1.0, classes=3)
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    found = []
    for _ in range(2):
        released = method.release(LABELS, teach=teach, generator=seeded(1))
        assert len(released.targets) == 30
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            model = nn.Linear(4, 3)
        learn(model, x, released.targets, loss=released.loss, epochs=2, batch_size=10, learning_rate=0.05)
        found.append(predictions(model, x))
    assert found[0].equal(found[1]) and bool(found[0].isfinite().all())


@every_method
@pytest.mark.parametrize(
    "bad", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"classes": 1}, {"contribution_bound": 0}]
)
def test_parameters_that_make_no_sense_are_refused(make, bad):
    with pytest.raises(InvalidParameterError, match=next(iter(bad))):
        make(**({"epsilon": 1.0, "classes": 3} | bad))


@every_method
def test_labels_outside_of_the_classes_are_released_as_the_nearest_class(make):
    method = make(epsilon=1.0, classes=3)
    odd, nearest = LABELS.clone(), LABELS.clone()
    odd[11], nearest[11] = 5, 2
    first, second = (method.release(labels, teach=teach, generator=seeded(0)) for labels in (odd, nearest))
    if isinstance(first.targets, torch.Tensor):
        assert torch.equal(first.targets, second.targets)
    else:
        even = torch.zeros(30, 3)
        rows = torch.arange(30)
        assert torch.equal(first.targets.at(rows, even), second.targets.at(rows, even))


@every_method
def test_what_is_no_label_is_refused_without_being_shown(make):
    bad = LABELS.double()
    bad[11] = 0.75
    with pytest.raises(InvalidParameterError, match="Nothing was released") as caught:
        make(epsilon=1.0, classes=3).release(bad, teach=teach)
    assert "0.75" not in str(caught.value) and "11" not in str(caught.value)


def test_corrections_come_with_their_losses():
    plain = RandomizedLabels(epsilon=1.0, classes=3).release(LABELS)
    assert plain.loss is soft_cross_entropy and plain.targets.dtype == torch.int64
    forward = RandomizedLabels(epsilon=1.0, classes=3, correction=Correction.FORWARD).release(LABELS)
    assert forward.loss is marginal_loss and forward.targets.shape == (30, 3)


@pytest.mark.parametrize("kind", [PriorLabels, MultiStage])
def test_the_backward_correction_is_for_plain_randomized_response(kind):
    prior = {"prior": [1, 1, 1]} if kind is PriorLabels else {}
    with pytest.raises(InvalidParameterError, match="correction must be one of"):
        kind(epsilon=1.0, classes=3, correction=Correction.BACKWARD, **prior)


def test_stages_need_a_teacher():
    with pytest.raises(InvalidParameterError, match="teach"):
        MultiStage(epsilon=1.0, classes=3).release(LABELS)


def test_lessons_are_those_that_a_teacher_gives_and_the_last_one_of_all_rows():
    method, learned = MultiStage(epsilon=1.0, classes=3, shares=(1, 1, 2)), []

    def teach(rows, released):
        learned.append(len(rows))
        return torch.full((40, 3), 1 / 3)

    method.release(torch.zeros(40, dtype=torch.int64), teach=teach, generator=seeded(0))
    assert [*learned, 40] == method.lessons(40) == [10, 20, 40]
    assert MultiStage(epsilon=1.0, classes=3, shares=(1, 10_000)).lessons(40) == [40]
    assert RandomizedLabels(epsilon=1.0, classes=3).lessons(40) == [40]


def test_stages_cost_what_parallel_composition_says():
    first = response(epsilon=1.0, classes=3).event()
    parts = ParallelDpEvent((first, PureDpEvent(1.0)))
    costs = [
        price(event, relation=Relation.REPLACE_LABEL, delta=1e-6).upper
        for event in (MultiStage(epsilon=1.0, classes=3).event(), parts)
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-9)


@given(st.floats(1e-6, 1e6), st.integers(1, 10**6))
def test_shares_never_add_up_to_more(epsilon, bound):
    share = label_share(epsilon, bound)
    assert 0 < Fraction(share) * bound <= Fraction(epsilon)
    assert share == pytest.approx(epsilon / bound, rel=1e-15)


def test_two_stages_do_better_than_one_on_digits():
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(x / 16, dtype=torch.float32)[order], torch.tensor(y)[order]

    def learner(model, features, released):
        settings = {"epochs": 20, "batch_size": 64, "learning_rate": 3e-3, "weight_decay": 1e-4}
        learn(model, features, released.targets, loss=released.loss, **settings)

    def accuracy(method, seed):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        released = method.release(y[:1400], teach=teacher(model, x[:1400], learner), generator=seeded(seed))
        learner(model, x[:1400], released)
        kept = (released.targets == y[:1400]).double().mean()
        right = (predictions(model, x[1400:]).argmax(1) == y[1400:]).double().mean()
        return torch.stack([kept, right])

    one, two = (
        torch.stack([accuracy(method, seed) for seed in range(3)]).mean(0)
        for method in (RandomizedLabels(epsilon=2.0, classes=10), MultiStage(epsilon=2.0, classes=10))
    )
    assert two[0] > one[0] + 0.05  # more reports are the label, at the same cost
    assert two[1] >= one[1] > 0.8
