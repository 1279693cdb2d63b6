# SPDX-License-Identifier: Apache-2.0
import logging
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.federated.flower import LocalNoise
from sfumato.testing import seeded
from tests.federated.flower.local_grid import answer, array, context, identify
from tests.federated.messages.test_planned_rounds import account_in

ALPHA = 1e-6
SIZE = 20_000


def message_of(values=None, kind="train", **more):
    identify()
    arrays = ArrayRecord({"weight": array(np.zeros(SIZE) if values is None else values), **more})
    return Message(RecordDict({"arrays": arrays}), 1, kind)


def noise(**options):
    return LocalNoise(**{"clip_norm": 2.0, "rounds": 5, "delta": 1e-5, "noise_multiplier": 3.0} | options)


def learned(values, **more):
    def app(message, _context):
        arrays = {"weight": array(values), **more}
        return answer(message, ArrayRecord(arrays), metrics={"num-examples": 123, "loss": 0.7})

    return app


def replied(app, mod=None, message=None, **more):
    mod = noise(noise_multiplier=1e-7) if mod is None else mod
    reply = mod(message_of([1.0, 2.0], **more) if message is None else message, context(), app)
    return reply.content["arrays"]["weight"].numpy()


def test_an_update_is_clipped_to_the_norm():
    assert replied(learned([1.3, 2.0])) == pytest.approx([1.3, 2.0], abs=1e-4)
    assert replied(learned([4.0, 6.0])) == pytest.approx([1 + 2 * 0.6, 2 + 2 * 0.8], abs=1e-4)
    assert replied(learned([1e30, 2.0])) == pytest.approx([3.0, 2.0], abs=1e-4)


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, of polars and tokenizers."""


def raising(message, _context):
    raise ValueError("a private value")


def panicking(message, _context):
    raise Panic("a private value")


@pytest.mark.parametrize(
    "app",
    [
        learned([np.nan, 1.0]),
        learned([np.inf, 1.0]),
        learned([1.0, 2.0, 3.0]),
        learned([9.0, 9.0], more=array([1.0])),
        learned([1.0, 2.0]),
        raising,
        lambda message, _: Message(Error(2, "a private text"), reply_to=message),
        lambda message, _: Message(RecordDict(), reply_to=message),
        lambda message, _: None,
    ],
)
def test_an_app_that_fails_replies_with_noise_alone(app):
    assert replied(app) == pytest.approx([1.0, 2.0], abs=1e-4)
    clear = noise(noise_multiplier=1.0)
    assert not np.allclose(replied(app, clear), [1.0, 2.0], atol=1e-4)


any_float = st.floats(width=32)


@settings(max_examples=40)
@given(st.tuples(any_float, any_float))
def test_one_reply_moves_by_at_most_the_clip_norm_whatever_was_learned(values):
    moved = np.asarray(replied(learned(values)), dtype=np.float64) - [1.0, 2.0]
    assert np.linalg.norm(moved) <= 2.0 * (1 + 1e-4)


def test_a_message_that_comes_twice_is_two_rounds(tmp_path):
    """Each answer has fresh noise: a server that asks again, or was restarted, gets another release."""
    mod = noise(rounds=2, account_of=account_in(tmp_path, epsilon=8.0))
    asked = message_of([1.0, 2.0])
    first, second, third = (mod(asked, context(), learned([1.0, 2.0])) for _ in range(3))
    assert not np.array_equal(*(r.content["arrays"]["weight"].numpy() for r in (first, second)))
    assert third.has_error()


def test_a_client_that_is_killed_while_it_learns_has_answered_the_round(tmp_path):
    class Killed(KeyboardInterrupt):
        pass

    def killed(message, _context):
        raise Killed

    mod = noise(rounds=2, account_of=account_in(tmp_path, epsilon=8.0))
    with pytest.raises(Killed):
        mod(message_of([1.0, 2.0]), context(), killed)
    replies = [mod(message_of([1.0, 2.0]), context(), learned([1.0, 2.0])) for _ in range(2)]
    assert [reply.has_error() for reply in replies] == [False, True]


@pytest.mark.parametrize("app", [raising, panicking, learned([np.nan, 7.25]), learned([7.25, 2.0, 3.0])])
def test_nothing_that_was_learned_is_logged(app, caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        replied(app)
    said = caplog.text + "".join(capfd.readouterr())
    assert "private" not in said and "7.25" not in said


def test_an_app_that_changes_its_message_moves_no_more_than_the_norm():
    def app(message, _context):
        message.content["arrays"]["weight"] = array([100.0, 100.0])
        return learned([100.0, 100.0])(message, _context)

    assert np.linalg.norm(replied(app) - [1.0, 2.0]) == pytest.approx(2.0, rel=1e-4)


def test_the_noise_has_the_stated_stddev():
    values = replied(learned(np.zeros(SIZE)), noise(generator=seeded(1)), with_round(message_of()))
    assert kstest(values, norm(scale=6.0).cdf).pvalue > ALPHA
    assert kstest(values, norm(scale=6.6).cdf).pvalue < ALPHA  # 10% off is caught


def with_round(message):
    from flwr.app import ConfigRecord

    message.content["config"] = ConfigRecord({"server-round": 1})
    return message


def test_noise_is_secure_and_fresh_by_default():
    first, second = (replied(learned(np.zeros(SIZE)), noise(), message_of()) for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / math.sqrt(SIZE)


def test_a_reply_has_no_metrics_of_the_client_and_keeps_integers_of_the_server():
    message = message_of([1.0, 2.0], count=array([3], np.int64))
    app = learned([1.0, 2.0], count=array([77], np.int64))
    reply = noise()(message, context(), app)
    assert dict(reply.content["metrics"]) == {"num-examples": 1} and list(reply.content) == [
        "arrays",
        "metrics",
    ]
    assert reply.content["arrays"]["count"].numpy().tolist() == [3]
    assert isinstance(reply.content["metrics"], MetricRecord)


def test_halves_stay_halves():
    message = message_of(half=array([0.0], np.float16))
    reply = noise()(message, context(), learned(np.zeros(SIZE), half=array([0.1], np.float16)))
    assert reply.content["arrays"]["half"].numpy().dtype == np.float16


def test_epsilon_is_that_of_all_rounds_for_replaced_data():
    stated = noise(rounds=7, noise_multiplier=4.0)
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 7)
    assert stated.guarantee.epsilon == price(event, delta=1e-5, relation=Relation.REPLACE_ONE).epsilon
    # replacing data moves a clipped update by twice its norm: as one of half the noise under add-remove
    twice = dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 7)
    assert stated.guarantee.epsilon == pytest.approx(price(twice, delta=1e-5).epsilon, rel=1e-6)
    assert LocalNoise(clip_norm=1, rounds=7, epsilon=3, delta=1e-5).guarantee.epsilon == pytest.approx(
        3, rel=1e-3
    )


def test_a_statement_has_the_guarantee_and_says_what_is_not_recorded(tmp_path):
    text = noise().statement()
    assert str(noise().guarantee) in text and "at most 5 rounds" in text and "Not recorded" in text
    assert "Not recorded" not in noise(account_of=account_in(tmp_path)).statement()
    assert "study only" in noise(generator=seeded(0)).statement()


def test_no_more_rounds_than_planned_are_answered(tmp_path):
    mod = noise(rounds=2, account_of=account_in(tmp_path, epsilon=8.0), noise_multiplier=3.0)
    replies = [mod(message_of([1.0, 2.0]), context(), learned([1.0, 2.0])) for _ in range(3)]
    assert [reply.has_error() for reply in replies] == [False, False, True]
    assert "agreed" in replies[2].error.reason


def test_the_app_is_not_run_for_a_round_that_is_not_answered():
    mod, calls, own = noise(rounds=1), [], context()

    def app(message, given):
        calls.append(1)
        return learned([1.0, 2.0])(message, given)

    for _ in range(3):
        mod(message_of([1.0, 2.0]), own, app)
    assert calls == [1]


@pytest.mark.parametrize("kind", ["evaluate", "query", "query.anything"])
def test_other_messages_are_refused(kind):
    assert noise()(message_of([1.0], kind), context(), learned([1.0])).has_error()


def test_a_clientapp_uses_it_as_a_mod():
    app = ClientApp()
    app.train(mods=[noise(noise_multiplier=1e-7)])(learned([1.5, 2.0]))
    reply = app(message_of([1.0, 2.0]), context())
    assert reply.content["arrays"]["weight"].numpy() == pytest.approx([1.5, 2.0], abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.0},
        {"rounds": 0},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": None},
        {"epsilon": 1.0},
        {"delta": 0.0, "noise_multiplier": None, "epsilon": 1.0},
    ],
)
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(InvalidParameterError):
        noise(**options)


def test_a_model_without_floating_point_numbers_is_refused():
    identify()
    message = Message(RecordDict({"arrays": ArrayRecord({"count": array([1], np.int64)})}), 1, "train")
    with pytest.raises(InvalidParameterError, match="floating-point"):
        noise()(message, context(), learned([1.0]))
