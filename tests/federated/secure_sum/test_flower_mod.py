# SPDX-License-Identifier: Apache-2.0
import dataclasses

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from sfumato import Budget, Ledger
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.flower_mod import (
    RECORD,
    mechanism_from_text,
    mechanism_text,
    secure_sum_mod,
)
from sfumato.federated.secure_sum.flower_round import secure_round
from sfumato.federated.secure_sum.masking_client import MaskingClient, ProtocolError
from sfumato.federated.secure_sum.secure_sum import IntegerNoise, SecureSum
from sfumato.federated.secure_sum.simulated import simulated_sum
from sfumato.testing import seeded

MECHANISM = SecureSum(dimension=8, clip_norm=1.0, noise_multiplier=0.5, cohort=4, least_survivors=3)
UPDATES = {n: np.full(8, 0.1 * n) for n in (1, 2, 3, 4)}


def expected(updates):
    rows = np.stack([np.asarray(u, dtype=np.float64) for u in updates.values()])
    return simulated_sum(rows, MECHANISM, seed=5, generator=seeded(11), numbers=list(updates))


def test_updates_are_differences_of_models(grid, model):
    found = secure_round(grid(UPDATES), list(UPDATES), MECHANISM, content=model(8), seed=5)
    np.testing.assert_allclose(found.total, expected(UPDATES), atol=1e-9)


@pytest.mark.parametrize(
    "bad",
    [
        np.full(8, np.nan),
        np.full(8, np.inf),
        ValueError("the row of Ada Lovelace"),
        RuntimeError("Ada Lovelace"),
        SystemExit("Ada Lovelace"),
    ],
)
def test_an_app_that_fails_or_is_not_finite_adds_zeros_and_stays(grid, model, bad):
    nodes = grid({**UPDATES, 2: bad})
    found = secure_round(nodes, list(UPDATES), MECHANISM, content=model(8), seed=5)
    assert found.survivors == 4
    np.testing.assert_allclose(found.total, expected({**UPDATES, 2: np.zeros(8)}), atol=1e-9)
    good = grid(UPDATES)
    secure_round(good, list(UPDATES), MECHANISM, content=model(8), seed=5)
    assert nodes.forms() == good.forms()  # no word more


def test_a_text_in_a_message_would_be_seen(grid, model):
    """A planted bug: the server gets the text of an error."""

    def told(stage, replies):
        for reply in replies:
            reply.content["told"] = ConfigRecord({"error": b"the row of Ada Lovelace"})
        return replies

    good, bad = grid(UPDATES), grid(UPDATES, change=told)
    for nodes in (good, bad):
        secure_round(nodes, list(UPDATES), MECHANISM, content=model(8), seed=5)
    assert bad.forms() != good.forms()


def test_an_enormous_update_is_clipped(grid, model):
    found = secure_round(
        grid({**UPDATES, 2: np.full(8, 1e200)}), [1, 2, 3, 4], MECHANISM, content=model(8), seed=5
    )
    assert np.linalg.norm(found.total - expected({**UPDATES, 2: np.zeros(8)})) <= 1.1


def test_clients_that_are_not_asked_to_contribute_add_noise_alone(grid, model):
    found = secure_round(
        grid({**UPDATES, 4: AssertionError("not called")}),
        [1, 2, 3, 4],
        MECHANISM,
        content=model(8),
        seed=5,
        contributors=[1, 3],
    )
    np.testing.assert_allclose(found.total, expected({**UPDATES, 2: np.zeros(8), 4: np.zeros(8)}), atol=1e-9)


def test_only_named_parameters_count(grid):
    content = RecordDict({"arrays": ArrayRecord([np.ones(8)])})
    found = secure_round(grid(UPDATES), list(UPDATES), MECHANISM, content=content, seed=5, parameters=["0"])
    np.testing.assert_allclose(found.total, expected(UPDATES), atol=1e-9)


def test_a_client_takes_part_only_in_the_mechanism_it_accepts(grid, model):
    weaker = MECHANISM.scaled(0.01)
    nodes = grid(UPDATES, mechanism=MECHANISM)
    assert secure_round(nodes, list(UPDATES), weaker, content=model(8), seed=5).skipped
    assert all(message.has_error() for message in nodes.received)
    for accepted in (MECHANISM, MECHANISM.scaled(0.7)):  # more noise is welcome
        assert not secure_round(nodes, list(UPDATES), accepted, content=model(8), seed=6).skipped
    fewer = dataclasses.replace(MECHANISM, least_survivors=2)
    assert secure_round(nodes, list(UPDATES), fewer, content=model(8), seed=7).skipped


@pytest.mark.parametrize("noise", list(IntegerNoise))
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"noise_multiplier": 0.05}, "noise_multiplier"),
        ({"clip_norm": 10.0}, "clip_norm"),
        ({"least_survivors": 2}, "least_survivors"),
        ({"cohort": 9}, "cohort"),
        ({"bits": 24}, "bits"),
        ({"wrap_probability": 1e-3}, "wrap_probability"),
        ({"dimension": 4}, "dimension"),
        ({"noise": None}, "noise"),
        ({"noise_multiplier": 0.05, "clip_norm": 10.0}, "clip_norm, noise_multiplier"),
    ],
)
def test_a_server_that_asks_for_less_than_the_client_states_gets_nothing(grid, model, noise, change, named):
    """The audit of an outsider: a server that asked for noise of 0.05 (epsilon 706) was obeyed."""
    agreed = dataclasses.replace(MECHANISM, noise=noise)
    other = next(kind for kind in IntegerNoise if kind is not noise)
    asked = dataclasses.replace(agreed, **({"noise": other} if "noise" in change else change))
    nodes = grid({n: AssertionError("not called") for n in UPDATES}, mechanism=agreed)
    assert secure_round(nodes, list(UPDATES), asked, content=model(8), seed=5).skipped
    assert all(m.has_error() and f"another {named} than" in m.error.reason for m in nodes.received)
    assert len(nodes.received) == 4  # refused at the first message, before there are keys


def test_without_a_mechanism_or_a_number_of_rounds_there_is_no_mod():
    for missing in ({"rounds": 3}, {"mechanism": MECHANISM}):
        with pytest.raises(TypeError, match="missing"):
            secure_sum_mod(**missing)
    with pytest.raises(InvalidParameterError, match="the server would choose"):
        secure_sum_mod(None, rounds=3)


def test_an_account_is_charged_for_all_rounds_and_counts_them_over_all_runs(grid, model, tmp_path):
    def account_of(context):
        budget = Budget(epsilon=60, delta=1e-5)
        ledger = Ledger(tmp_path / f"{context.node_id}.db")
        return ledger.open("own", privacy_unit="client", budget=budget, relation="zero-out")

    skipped = []
    for _ in range(3):  # three runs of Flower: contexts are new
        nodes = grid(UPDATES, rounds=2, account_of=account_of)
        skipped.append(secure_round(nodes, list(UPDATES), MECHANISM, content=model(8), seed=1).skipped)
    assert skipped == [False, False, True]
    (release,) = account_of(nodes.contexts[1]).releases()
    promised = MECHANISM.against_server(rounds=2, delta=1e-5)
    assert price(release.event, delta=1e-5, relation="zero-out").epsilon == promised.epsilon


def test_a_client_whose_account_cannot_pay_sends_nothing(grid, model, tmp_path):
    def account_of(context):
        budget = Budget(epsilon=1, delta=1e-5)
        return Ledger(tmp_path / "l.db").open("o", privacy_unit="client", budget=budget, relation="zero-out")

    nodes = grid(UPDATES, rounds=2, account_of=account_of)
    assert secure_round(nodes, list(UPDATES), MECHANISM, content=model(8), seed=1).skipped
    assert not any("vector" in m.content[RECORD] for m in nodes.received if not m.has_error())


def test_a_client_takes_part_in_as_many_rounds_as_it_agreed_to(grid, model):
    nodes = grid(UPDATES, rounds=2)
    found = [secure_round(nodes, list(UPDATES), MECHANISM, content=model(8), seed=i) for i in range(3)]
    assert [each.skipped for each in found] == [False, False, True]


def test_nothing_of_the_apps_reply_reaches_the_server_in_the_clear(grid, model):
    nodes = grid(UPDATES)
    secure_round(nodes, list(UPDATES), MECHANISM, content=model(8), seed=5)
    for message in nodes.received:
        assert set(message.content) == {RECORD}  # no arrays, no metrics, no counts of examples
        assert set(message.content[RECORD]) <= {"keys", "numbers", "sealed", "commitment", "vector", "shares"}


def test_a_message_outside_of_a_session_is_refused(grid):
    grid({})  # sets what Flower's messages need
    mod = secure_sum_mod(MECHANISM, rounds=1)
    context = Context(1, 7, {}, RecordDict(), {})

    def called(message, context):
        raise AssertionError("the app must not train in the clear")

    for record in (None, {"stage": "vector", "session": b"x"}):
        content = RecordDict({} if record is None else {RECORD: ConfigRecord(record)})
        with pytest.raises(ProtocolError):
            mod(Message(content, 7, "train"), context, called)


@pytest.mark.parametrize("kind", ["train.default", "train.other", "evaluate", "query", "evaluate.default"])
def test_no_kind_of_message_reaches_the_app_in_the_clear(grid, model, kind):
    grid({})
    with pytest.raises(ProtocolError):
        secure_sum_mod(MECHANISM, rounds=1)(
            Message(model(8), 7, kind), Context(1, 7, {}, RecordDict(), {}), lambda m, c: m
        )


@pytest.mark.parametrize(("neighbors", "told"), [(None, 2), (2, 2), (1, 1)])
def test_a_client_refuses_fewer_neighbors_than_it_accepts(grid, neighbors, told):
    grid({})
    mod = secure_sum_mod(MECHANISM, rounds=1, neighbors=neighbors)
    context = Context(1, 7, {}, RecordDict(), {})

    def asked(**question):
        content = RecordDict({RECORD: ConfigRecord({"session": b"x", **question})})
        return mod(Message(content, 7, "train"), context, AssertionError).content[RECORD]

    own = asked(stage="keys", mechanism=mechanism_text(MECHANISM))["keys"]
    others = [
        key
        for _ in range(told - 1)
        for key in MaskingClient(number=8, session="", least_active=0).public_keys()
    ]
    with pytest.raises(ProtocolError, match="fewer neighbors"):
        asked(stage="shares", numbers=[7, 8][:told], keys=[*own, *others], threshold=told)


@pytest.mark.parametrize(("neighbors", "refused"), [(None, True), (3, True), (2, False)])
def test_a_client_that_knows_all_others_reveals_nothing_about_a_sum_of_too_few(grid, neighbors, refused):
    """A server that says that two dropped out of four gets the sum of two, with less noise than stated."""
    grid({})
    few = dataclasses.replace(MECHANISM, cohort=4, least_survivors=4)
    mods = {n: secure_sum_mod(few, rounds=1, neighbors=neighbors) for n in (1, 2, 3, 4)}
    contexts = {n: Context(1, n, {}, RecordDict(), {}) for n in mods}

    def ask(node, stage, **question):
        told = ConfigRecord({"session": b"x", "stage": stage, **question})
        content = RecordDict({RECORD: told, "arrays": ArrayRecord([np.ones(8)])})
        return mods[node](Message(content, node, "train"), contexts[node], AssertionError).content[RECORD]

    keys = {n: ask(n, "keys", mechanism=mechanism_text(few))["keys"] for n in mods}
    flat = [key for pair in keys.values() for key in pair]
    sealed = {n: ask(n, "shares", numbers=list(mods), keys=flat, threshold=3) for n in mods}
    others = {n: dict(zip(a["numbers"], a["sealed"], strict=True)) for n, a in sealed.items()}
    got = {n: [others[near][n] for near in mods if near != n] for n in mods}
    for n in mods:
        asked = {"numbers": [near for near in mods if near != n], "sealed": got[n], "seed": 1}
        ask(n, "vector", **asked, parameters=[], contributes=False)
    if refused:
        with pytest.raises(ProtocolError, match="too few clients are in the sum"):
            ask(1, "reveal", active=[1, 2, 3], dropped=[4])
    else:
        assert ask(1, "reveal", active=[1, 2, 3], dropped=[4])["shares"]


@pytest.mark.parametrize("name", ["neighbors", "rounds"])
def test_numbers_below_one_are_refused(name):
    with pytest.raises(InvalidParameterError, match=name):
        secure_sum_mod(MECHANISM, **{"rounds": 1, name: 0})


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"noise": "other"}', mechanism_text(MECHANISM).replace("4", "0")]
)
def test_texts_that_describe_no_mechanism_are_refused(text):
    with pytest.raises(ProtocolError):
        mechanism_from_text(text)


def test_an_older_client_with_fit_works_too(grid):
    import flwr.compat.common.recorddict_compat as compat
    from flwr.client import NumPyClient
    from flwr.clientapp import ClientApp
    from flwr.common import FitIns, ndarrays_to_parameters

    class Older(NumPyClient):
        def __init__(self, by):
            self.by = by

        def fit(self, parameters, config):
            return [parameter - self.by for parameter in parameters], 99, {"loss": 1.0}

    def client_fn(context: Context):
        return Older(0.1 * context.node_id).to_client()

    nodes = grid(UPDATES)
    for number in UPDATES:
        nodes.apps[number] = ClientApp(
            client_fn=client_fn, mods=[secure_sum_mod(MECHANISM, rounds=1, generator=seeded(11))]
        )
    fit = FitIns(ndarrays_to_parameters([np.ones(8)]), {})
    content = compat.fitins_to_recorddict(fit, keep_input=True)
    found = secure_round(nodes, list(UPDATES), MECHANISM, content=content, seed=5)
    np.testing.assert_allclose(found.total, expected(UPDATES), atol=1e-9)
    assert all(set(message.content) == {RECORD} for message in nodes.received)
