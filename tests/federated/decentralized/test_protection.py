# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.accounting import events
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.client_rows import LazyRows
from sfumato.federated.clients.local_training import LocalTraining
from sfumato.federated.decentralized.protection import ClippedUpdates, NoisySteps, load_state_, state_of
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.testing import seeded

CLIP = 0.25
UPDATES = ClippedUpdates(noise=ClippedNoise(noise_multiplier=1.0, clip_norm=CLIP))
STEPS = NoisySteps(noise_multiplier=2.0, public_size=20, expected_batch_size=5, steps=3)


def clients(features=None, labels=None):
    features = (
        torch.randn(20, 3, generator=torch.Generator().manual_seed(1)) if features is None else features
    )
    labels = torch.arange(len(features)) % 2 if labels is None else labels
    return LazyRows(lambda _: (features, labels), clients=2, like=(torch.zeros(0, 3), torch.zeros(0).long()))


def speak(protection, held, node=0, seed=0):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return protection.open(model, held, node=node, generator=seeded(seed)), state_of(model)


@settings(max_examples=25)
@given(st.lists(st.floats(width=32), min_size=6, max_size=6))
def test_whatever_rows_a_node_has_its_message_moves_by_two_clip_norms_at_most(values):
    spoken, start = speak(UPDATES, clients(torch.tensor(values).view(2, 3)))
    other, _ = speak(UPDATES, clients())
    assert (spoken(start, 0) - other(start, 0)).norm() <= 2 * CLIP * (1 + 1e-5)


@pytest.mark.parametrize(
    "bad", [(torch.zeros(2, 5), torch.zeros(2).long()), (torch.zeros(2, 3), torch.tensor([9, -7]))]
)
def test_rows_that_make_the_model_fail_count_as_no_update(bad):
    spoken, start = speak(UPDATES, clients(*bad))
    empty, _ = speak(UPDATES, clients(torch.zeros(0, 3)))
    assert torch.equal(spoken(start, 1), empty(start, 1))


def unreadable(_):
    raise OSError("a row was here")


@pytest.mark.parametrize(
    "read",
    [
        unreadable,
        lambda _: (torch.zeros(7, 5), torch.zeros(7).long()),
        lambda _: (torch.zeros(7, 3), torch.zeros(5).long()),
        lambda _: (torch.zeros(7, 3, dtype=torch.float64), torch.zeros(7).long()),
        lambda _: torch.zeros(7, 3),
    ],
)
@pytest.mark.parametrize("protection", [UPDATES, STEPS])
def test_a_node_whose_rows_are_not_as_declared_has_none(protection, read):
    spoken, start = speak(protection, LazyRows(read, clients=2, like=clients().like))
    empty, _ = speak(protection, clients(torch.zeros(0, 3)))
    assert torch.equal(spoken(start, 1), empty(start, 1))


def fails_above(model, x, y):
    if bool((x > 100).any()):
        raise ValueError(f"a row of {x.shape}")
    return nn.functional.cross_entropy(model(x), y, reduction="none")


@pytest.mark.filterwarnings("ignore:the model or the loss does something")
@pytest.mark.parametrize("where", [[0], [3, 7], list(range(20))])
def test_rows_that_make_the_model_fail_are_left_out_of_steps_each_on_its_own(where):
    steps = NoisySteps(
        noise_multiplier=1.0,
        public_size=20,
        expected_batch_size=20,
        steps=1,
        learning_rate=1.0,
        loss=fails_above,
    )
    held = clients().rows(0)
    bad = held[0].clone()
    bad[where] = 1e3
    kept = [i for i in range(20) if i not in where]
    spoken, start = speak(steps, clients(bad, held[1]))
    other, _ = speak(steps, clients(held[0][kept], held[1][kept]))
    assert torch.allclose(spoken(start, 0), other(start, 0), atol=1e-6)


@pytest.mark.parametrize("protection", [UPDATES, STEPS])
def test_noise_of_two_rounds_and_two_nodes_differs(protection):
    empty = clients(torch.zeros(0, 3))
    spoken, start = speak(protection, empty)
    other, _ = speak(protection, empty, node=1, seed=1)
    first, second, third = spoken(start, 0) - start, spoken(start, 1) - start, other(start, 0) - start
    assert len({tuple(value.tolist()) for value in (first, second, third)}) == 3
    assert min(first.norm(), second.norm(), third.norm()) > 0


def test_noise_from_one_stream_for_all_rounds_is_caught():
    """A planted bug: every round draws from the beginning of the same stream."""

    class Same:
        secure, seeded = False, True

        def fork(self, label, index):
            return seeded(5)

    protection = UPDATES
    model = nn.Linear(3, 2)
    spoken = protection.open(model, clients(torch.zeros(0, 3)), node=0, generator=Same())
    start = state_of(model)
    assert torch.equal(spoken(start, 0), spoken(start, 1))


def test_nothing_is_remembered_from_one_round_to_the_next():
    spoken, start = speak(UPDATES, clients())
    fresh, _ = speak(UPDATES, clients())
    spoken(start + 1, 0)
    assert torch.equal(spoken(start, 1), fresh(start, 1))


def test_the_event_of_updates_is_one_release_a_round_and_that_of_steps_is_dp_sgd():
    assert UPDATES.event(4) == events.dp_sgd(noise_multiplier=1.0, sampling_rate=1.0, steps=4)
    assert STEPS.event(4) == events.dp_sgd(noise_multiplier=2.0, sampling_rate=0.25, steps=12)
    assert UPDATES.relation is Relation.REPLACE_ONE and UPDATES.privacy_unit == "client"
    assert STEPS.relation is Relation.ADD_REMOVE and STEPS.privacy_unit == "example"


@settings(max_examples=15)
@given(st.tuples(*[st.floats(width=32)] * 3), st.integers(-3, 9))
def test_one_example_moves_a_noisy_step_by_at_most_its_share(values, label):
    once = NoisySteps(
        noise_multiplier=1.0, public_size=20, expected_batch_size=20, steps=1, learning_rate=1.0
    )
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(20) % 2
    changed, also = torch.cat([features, torch.tensor([values])]), torch.cat([labels, torch.tensor([label])])
    spoken, start = speak(once, clients(features, labels))
    other, _ = speak(once, clients(changed, also))
    assert (spoken(start, 0) - other(start, 0)).norm() <= (1 + 1e-4) / 20


def test_a_rehearsal_reads_no_row_and_changes_nothing():
    def read(_):
        raise AssertionError("a row was read")

    held = LazyRows(read, clients=2, like=clients().like)
    model = nn.Linear(3, 2)
    before = state_of(model)
    for protection in (UPDATES, STEPS):
        protection.rehearse(model, held)
        with pytest.raises(Exception):  # noqa: B017 - whatever torch says of shapes
            protection.rehearse(nn.Linear(4, 2), held)
    assert torch.equal(state_of(model), before) and model.weight.grad is None


@pytest.mark.parametrize("count", [0, 1, 9])
def test_no_state_tells_whether_a_batch_has_rows(count):
    held = LazyRows(
        lambda _: (torch.ones(count, 3), torch.zeros(count, dtype=torch.int64)),
        clients=1,
        like=(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)),
    )
    steps = NoisySteps(noise_multiplier=1.0, public_size=10, expected_batch_size=9)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    said = steps.open(model, held, node=0, generator=seeded(0))
    state = torch.full_like(state_of(model), 3e38)  # finite, but no row has a finite gradient
    for step in range(3):
        assert said(state, step).shape == state.shape


def test_states_are_copies():
    model = nn.Linear(3, 2)
    state = state_of(model)
    load_state_(model, state + 1)
    with torch.no_grad():
        model.weight.zero_()
    assert (state != 0).any() and torch.equal(state_of(model)[6:], state[6:] + 1)


def test_other_types_than_float32_are_refused():
    with pytest.raises(InvalidParameterError, match="float32"):
        state_of(nn.Linear(3, 2).double())


@pytest.mark.parametrize("wrong", [{"expected_batch_size": 30}, {"steps": 0}, {"noise_multiplier": 0.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        NoisySteps(**{"noise_multiplier": 1.0, "public_size": 20, "expected_batch_size": 5} | wrong)


def test_statements_name_the_bound_and_the_noise():
    assert "norm of 0.25" in UPDATES.statement() and "1 pass of" in UPDATES.statement()
    assert "2 passes" in ClippedUpdates(noise=UPDATES.noise, local=LocalTraining(epochs=2)).statement()
    assert "probability 0.25" in STEPS.statement()
