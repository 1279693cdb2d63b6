# SPDX-License-Identifier: Apache-2.0
import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato import Budget, Ledger
from sfumato.errors import InvalidParameterError
from sfumato.federated.flower import ExampleLevel
from sfumato.testing import seeded
from sfumato.training import DpSgd, PoissonSampling, ShuffledBatches, train
from tests.federated.flower.local_grid import context
from tests.federated.flower.test_client_side import message_of

SETTINGS = {
    "rounds": 3,
    "local_steps": 2,
    "delta": 1e-5,
    "public_size": 40,
    "expected_batch_size": 10,
    "noise_multiplier": 1.5,
}


def model_of():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def rows_of(_context):
    draws = torch.Generator().manual_seed(1)
    return torch.randn(40, 3, generator=draws), torch.randint(2, (40,), generator=draws)


def client(rows=rows_of, **options):
    return ExampleLevel(nn.Linear(3, 2), rows, **SETTINGS | options)


def asked(number=1):
    return message_of(model_of(), **{"server-round": number})


def test_the_price_is_that_of_all_steps_of_all_rounds():
    mechanism = client().mechanism
    assert isinstance(mechanism, DpSgd) and mechanism.steps == 6
    assert mechanism.sampling == PoissonSampling(sampling_rate=0.25)
    assert client().guarantee.epsilon == mechanism.price(delta=1e-5).epsilon
    assert client(epsilon=2.0, noise_multiplier=None).guarantee.epsilon == pytest.approx(2.0, rel=1e-3)


def test_a_round_is_dp_sgd_from_the_model_of_the_server():
    reply = client(generator=seeded(4), learning_rate=0.5)(asked(), context(partition=2))
    model = model_of()
    train(
        model,
        rows_of(None),
        noise_multiplier=1.5,
        steps=2,
        delta=1e-5,
        public_size=40,
        expected_batch_size=10,
        learning_rate=0.5,
        progress=False,
        generator=seeded(4).fork("client", 2).fork("round", 1),
    )
    assert torch.equal(reply.content["arrays"].to_torch_state_dict()["weight"], model.weight)
    assert dict(reply.content["metrics"]) == {"num-examples": 1}


any_float = st.floats(width=32)


@settings(max_examples=15)
@given(st.tuples(any_float, any_float, any_float), st.integers(-3, 9))
def test_one_example_moves_a_step_by_at_most_the_clip_norm_whatever_it_is(values, label):
    """One step over all examples, with the noise repeated: what is left is the move of the clipped sum."""

    def replied(keep, changed=None):
        def rows(_context):
            x, y = (part.clone() for part in rows_of(_context))
            if changed is not None:
                x[0], y[0] = torch.tensor(changed[0]), changed[1]
            return (x, y) if keep else (x[1:], y[1:])

        whole = {"rounds": 1, "local_steps": 1, "expected_batch_size": 40, "clip_norm": 0.5}
        reply = client(rows, generator=seeded(2), learning_rate=1.0, **whole)(asked(), context(partition=0))
        assert not reply.has_error()
        state = reply.content["arrays"].to_torch_state_dict()
        return torch.cat([value.flatten() for value in state.values()])

    moved = (replied(True, (values, label)) - replied(False)).norm()
    assert moved <= 0.5 / 40 * (1 + 1e-3)


def test_a_client_that_is_killed_while_it_learns_has_answered_the_round(tmp_path):
    class Killed(KeyboardInterrupt):
        pass

    def killed(_context):
        raise Killed

    def account(_context):
        budget = Budget(epsilon=20, delta=1e-5)
        return Ledger(tmp_path / "own.db").open("my rows", privacy_unit="example", budget=budget)

    with pytest.raises(Killed):
        client(killed, account_of=account)(asked(1), context())
    replies = [client(account_of=account)(asked(number), context()) for number in range(1, 4)]
    assert [reply.has_error() for reply in replies] == [False, False, True]  # three were planned
    assert len(account(None).releases()) == 1


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_nothing_of_a_row_is_logged(error, caplog, capfd):
    def rows(_context):
        raise error("a private value")

    with caplog.at_level(logging.DEBUG):
        client(rows)(asked(), context())
    assert "private value" not in caplog.text + "".join(capfd.readouterr())


def test_no_more_rounds_than_planned_are_answered_and_the_charge_is_one(tmp_path):
    def account(_context):
        budget = Budget(epsilon=20, delta=1e-5)
        return Ledger(tmp_path / "own.db").open("my rows", privacy_unit="example", budget=budget)

    replies = [client(account_of=account)(asked(number), context()) for number in range(1, 5)]
    assert [reply.has_error() for reply in replies] == [False, False, False, True]
    (release,) = account(None).releases()
    assert release.event == client().mechanism.event()


def test_rows_are_not_read_for_a_round_that_is_not_answered():
    reads, own = [], context()

    def rows(given):
        reads.append(1)
        return rows_of(given)

    trained = client(rows, rounds=1)
    assert [trained(asked(), own).has_error() for _ in range(3)] == [False, True, True] and reads == [1]


def test_an_error_while_learning_leaves_no_text():
    def rows(_context):
        raise ValueError("a private value")

    reply = client(rows)(asked(), context())
    assert reply.has_error() and "private value" not in reply.error.reason


def test_a_statement_has_the_guarantee():
    text = client().statement()
    assert str(client().guarantee) in text and "at most 3 rounds" in text and "Not recorded" in text
    assert "study only" in client(generator=seeded(0)).statement()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rounds": 0}, "rounds"),
        ({"local_steps": 0}, "local_steps"),
        ({"steps": 5}, "rounds=... and local_steps"),
        ({"folder": "runs"}, "unknown keyword"),
        ({"epochs": 2}, "rounds=... and local_steps"),
        ({"epsilon": 1.0}, "both given"),
        ({"epsilom": 1.0}, "unknown keyword"),
        ({"sampling": ShuffledBatches(batch_size=10, public_size=40), "expected_batch_size": None,
          "relation": "replace-one"}, "begins anew"),
        ({"public_size": None}, "public_size"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(options, match):
    with pytest.raises(InvalidParameterError, match=match):
        client(**options)


@pytest.mark.parametrize("count", [0, 1, 40])
@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 3e38])
def test_no_model_of_a_server_tells_whether_a_batch_has_rows(count, weight):
    def few(_context):
        return torch.ones(count, 3), torch.zeros(count, dtype=torch.int64)

    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(weight)
    for _ in range(3):  # an example is in some batch of a round with probability 0.94
        answering = client(few, expected_batch_size=30)
        assert not answering(message_of(model, **{"server-round": 1}), context()).has_error()


def test_an_engine_is_compared_with_the_reference_on_synthetic_rows(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "sfumato.training.engine.passes.self_check", lambda *given: bool(seen.append(given[3])) or True
    )
    client()(asked(), context())
    (weights, features, labels) = seen[0]
    assert weights is None or torch.equal(weights, torch.ones_like(weights))
    assert len(features) == 3 and bool(((labels == 0) | (labels == 1)).all())
    assert len(seen) == 1
