# SPDX-License-Identifier: Apache-2.0
import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.datasets import load
from sfumato.errors import InvalidParameterError
from sfumato.federated.clients import vectorized
from sfumato.federated.clients.client_rows import AssignedRows, LazyRows
from sfumato.federated.clients.local_training import LocalTraining, batch_order, local_update
from sfumato.federated.clients.partitions import iid
from sfumato.federated.clients.vectorized import VectorizedClients
from sfumato.testing import seeded
from sfumato.training import Contributor, Runtime, train
from sfumato.training.models import networks

SIZES = [7, 0, 3, 16, 1, 5]
SETTINGS = [
    LocalTraining(batch_size=4),
    LocalTraining(epochs=2, batch_size=3, momentum=0.9, learning_rate=0.05),
    LocalTraining(epochs=2, batch_size=5, proximal=0.5, full_weight_rows=6),
]
COHORT = torch.tensor([4, 0, 1, 3, 5, 2])


def assigned(sizes, *, shape=(1, 8, 8)):
    draws = torch.Generator().manual_seed(0)
    rows = sum(sizes)
    data = torch.randn(rows, *shape, generator=draws), torch.randint(0, 10, (rows,), generator=draws)
    return AssignedRows(data, torch.repeat_interleave(torch.tensor(sizes)), clients=len(sizes))


def texts(sizes):
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 11, (2, sum(sizes), 6), generator=draws)
    return AssignedRows((x, y), torch.repeat_interleave(torch.tensor(sizes)), clients=len(sizes))


def one_by_one(model, rows, training, clients, step):
    each = [local_update(model, rows.rows(c), training, client=c, step=step) for c in clients]
    return {name: torch.stack([update[name] for update in each]) for name in each[0]}


def assert_close(found, wanted):
    assert list(found) == list(wanted)
    assert all(torch.allclose(found[n], wanted[n], atol=1e-5, equal_nan=True) for n in wanted)


@pytest.fixture
def no_reference(monkeypatch):
    """Call it to forbid the loop over clients."""

    def forbid(*args, **kwargs):
        raise AssertionError("a client was trained alone")

    return lambda: monkeypatch.setattr(vectorized, "local_update", forbid)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("training", SETTINGS)
def test_updates_are_those_of_one_client_after_another(name, training, no_reference):
    model = networks.for_shape((1, 8, 8), 10, name)
    rows = assigned(SIZES)
    clients = VectorizedClients(rows, training, clients_at_once=4)
    clients.rehearse(model)
    no_reference()
    assert_close(
        clients.contributions(model, (COHORT,), step=3),
        one_by_one(model, rows, training, COHORT.tolist(), 3),
    )


@pytest.mark.parametrize("training", SETTINGS)
def test_updates_of_an_lstm_are_those_of_one_client_after_another(training, no_reference):
    training = LocalTraining(
        epochs=training.epochs,
        batch_size=training.batch_size,
        momentum=training.momentum,
        loss=networks.next_token_cross_entropy,
    )
    model, rows = networks.lstm(11), texts(SIZES)
    clients = VectorizedClients(rows, training, vectorize=True)
    clients.rehearse(model)
    no_reference()
    assert_close(
        clients.contributions(model, (COHORT,), step=0),
        one_by_one(model, rows, training, COHORT.tolist(), 0),
    )


def test_the_model_and_the_random_state_stay_as_they_are():
    model, state = networks.mlp((1, 8, 8), 10), torch.get_rng_state()
    before = copy.deepcopy(model.state_dict())
    VectorizedClients(assigned(SIZES), SETTINGS[1]).contributions(model, (COHORT,), step=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_cohort_of_nobody_has_no_updates():
    model = networks.mlp((1, 8, 8), 10)
    none = torch.zeros(0, dtype=torch.int64)
    found = VectorizedClients(assigned(SIZES), SETTINGS[0]).contributions(model, (none,), step=0)
    assert {name: value.shape[0] for name, value in found.items()} == dict.fromkeys(found, 0)


@pytest.mark.parametrize("size", [1, 2, 100])
def test_clients_of_no_rows_alone_have_updates_of_zeros(size):
    rows = assigned([0, 0, 0])
    clients = VectorizedClients(rows, SETTINGS[0], clients_at_once=size)
    found = clients.contributions(networks.mlp((1, 8, 8), 10), (torch.arange(3),), step=0)
    assert all(value.shape[0] == 3 and not value.any() for value in found.values())


# --- hostile clients -------------------------------------------------------------------------------------


def nasty(client, what):
    """Return rows of a client, of whom number 2 has nasty ones."""
    x, y = torch.randn(5, 4, generator=torch.Generator().manual_seed(client)), torch.arange(5) % 3
    if client != 2:
        return x, y
    if what == "unreadable":
        raise OSError("client 2 has 41 rows")
    if what == "ends":
        raise SystemExit("client 2 has 41 rows")
    return {
        "nan": (torch.full_like(x, torch.nan), y),
        "infinite": (torch.full_like(x, torch.inf), y),
        "huge": (x * 1e30, y),
        "labels": (x, y + 1000),
        "shape": (x[:, :3], y),
        "type": (x.double(), y),
        "rows": (x[:2], y),
        "nesting": [x, y, y],
        "nothing": None,
        "text": ("a", "b"),
    }[what]


KINDS = ["nan", "infinite", "huge", "labels", "shape", "type", "rows"]
KINDS += ["nesting", "nothing", "text", "unreadable", "ends"]


@pytest.mark.parametrize("name", ["mlp", "conv"])
@pytest.mark.parametrize("what", KINDS)
def test_a_nasty_client_changes_no_update_but_its_own(what, name):
    model = (
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        if name == "mlp"
        else nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(4, 3))
    )
    like = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    good, bad = (
        VectorizedClients(LazyRows(lambda c, kind=kind: nasty(c, kind), clients=4, like=like), SETTINGS[0])
        for kind in ("unreadable", what)
    )
    cohort = (torch.arange(4),)
    wanted, found = (clients.contributions(model, cohort, step=0) for clients in (good, bad))
    others = [0, 1, 3]
    assert all(torch.allclose(found[n][others], wanted[n][others], atol=1e-6) for n in wanted)
    assert not any(value[2].any() for value in wanted.values())  # of the client that cannot be read


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, of polars and tokenizers."""


class Factored(nn.Linear):
    def forward(self, x):
        root = torch.linalg.cholesky(x.abs().unsqueeze(-1) * torch.eye(4) * x[:, :1, None].sign())
        return super().forward(root.diagonal(dim1=1, dim2=2))


def test_a_row_that_makes_the_model_fail_has_an_update_of_zeros(monkeypatch):
    def made_up(*args):  # the model cannot be rehearsed on negative numbers
        return tuple(t.abs() for t in plain(*args))

    plain = vectorized._made_up
    monkeypatch.setattr(vectorized, "_made_up", made_up)
    rows = LazyRows(
        lambda c: (torch.full((3, 4), -1.0 if c == 1 else 2.0), torch.zeros(3, dtype=torch.int64)),
        clients=3,
        like=(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)),
    )
    found = VectorizedClients(rows, SETTINGS[0]).contributions(Factored(4, 3), (torch.arange(3),), step=0)
    assert [bool(value.any()) for value in found["weight"]] == [True, False, True]


@pytest.mark.filterwarnings("ignore::UserWarning")  # vmap cannot run a loss that looks at values
@pytest.mark.parametrize("ends", [SystemExit, Panic])
def test_a_loss_that_ends_the_program_for_a_client_stops_no_other(ends):
    def loss(model, x, y):
        if x.shape[0] > 1 and bool((x == 7).all()):
            raise ends("client 1")
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    like = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    rows = LazyRows(
        lambda c: (torch.full((3, 4), 7.0 if c == 1 else 2.0), torch.zeros(3, dtype=torch.int64)),
        clients=3,
        like=like,
    )
    how = replace(SETTINGS[0], loss=loss)
    found = VectorizedClients(rows, how).contributions(nn.Linear(4, 3), (torch.arange(3),), step=0)
    assert [bool(value.any()) for value in found["weight"]] == [True, False, True]


@pytest.mark.parametrize("index", [5, 9, -1, -6, 1000])
def test_an_index_out_of_range_reaches_no_other_client(index):
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))

    def updates(index):
        held = {
            c: (torch.full((3, 2), index if c == 1 else c), torch.zeros(3, dtype=torch.int64))
            for c in range(3)
        }
        rows = LazyRows(held.__getitem__, clients=3, like=held[0])
        return VectorizedClients(rows, SETTINGS[0]).contributions(model, (torch.arange(3),), step=0)

    found, wanted = updates(index), updates(3)
    assert all(torch.allclose(found[n][[0, 2]], wanted[n][[0, 2]], atol=1e-6) for n in wanted)
    assert any(not value[1].isfinite().all() for value in found.values())  # clipping leaves it out


def test_the_number_of_rows_of_one_client_changes_others_by_rounding_alone():
    model, training = networks.mlp((4,), 3), LocalTraining(epochs=2, batch_size=4, momentum=0.9)

    def updates(count):
        def read(client):
            return tuple(t.repeat_interleave(count, 0) if client == 2 else t for t in nasty(client % 2, ""))

        rows = LazyRows(read, clients=3, like=nasty(0, ""))
        return VectorizedClients(rows, training).contributions(model, (torch.arange(3),), step=0)

    few, many = updates(1), updates(9)
    assert all(torch.allclose(few[n][:2], many[n][:2], atol=1e-6) for n in few)
    assert not torch.allclose(few["1.weight"][2], many["1.weight"][2], atol=1e-6)


# --- models that cannot be stacked -----------------------------------------------------------------------


@pytest.mark.parametrize("vectorize", [None, False])
def test_an_lstm_is_trained_client_by_client_on_a_cpu_unless_told_otherwise(vectorize, monkeypatch):
    training = LocalTraining(batch_size=4, loss=networks.next_token_cross_entropy)
    model, rows = networks.lstm(11), texts(SIZES)
    clients = VectorizedClients(rows, training, vectorize=vectorize)
    clients.rehearse(model)
    monkeypatch.setattr(vectorized, "stacked_updates", None)
    found = clients.contributions(model, (COHORT,), step=0)
    assert_close(found, one_by_one(model, rows, training, COHORT.tolist(), 0))


class ByValue(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)),
        lambda: ByValue(4, 3),
    ],
)
def test_a_model_that_vmap_cannot_train_is_trained_client_by_client_with_one_warning(layer):
    model = layer()
    before = copy.deepcopy(model.state_dict())
    like = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    rows = LazyRows(lambda client: nasty(client % 2, ""), clients=4, like=like)
    training, state = LocalTraining(batch_size=3), torch.get_rng_state()
    clients = VectorizedClients(rows, training)
    with pytest.warns(UserWarning, match="one after another") as caught:
        first = clients.contributions(model, (torch.arange(4),), step=1)
        again = clients.contributions(model, (torch.arange(4),), step=1)
    assert len(caught) == 1
    assert_close(first, one_by_one(model, rows, training, range(4), 1))
    assert_close(again, first)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_layer_that_has_two_places_in_a_model_is_trained_at_once(no_reference):
    twice = nn.Linear(64, 64)
    model = nn.Sequential(nn.Flatten(), twice, nn.Tanh(), twice, nn.Linear(64, 10))
    rows, training = assigned(SIZES), LocalTraining(batch_size=4)
    wanted = one_by_one(model, rows, training, COHORT.tolist(), 0)
    clients = VectorizedClients(rows, training)
    clients.rehearse(model)
    no_reference()
    assert_close(clients.contributions(model, (COHORT,), step=0), wanted)
    assert all(isinstance(p, nn.Parameter) for p in twice.parameters())


def test_dropout_draws_anew_for_each_client_and_round():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    rows = nasty(0, "")
    training = LocalTraining(batch_size=5)  # one step
    found = [
        local_update(model, rows, training, client=c, step=s)["1.weight"] for c, s in [(0, 0), (1, 0), (0, 1)]
    ]
    assert not any(torch.allclose(found[0], other) for other in found[1:])


def test_a_loss_that_is_not_of_rows_is_refused():
    training = LocalTraining(loss=lambda model, x, y: nn.functional.cross_entropy(model(x), y))
    clients = VectorizedClients(assigned(SIZES), training)
    with pytest.raises(InvalidParameterError, match="one number for the whole batch"):
        clients.rehearse(networks.mlp((1, 8, 8), 10))


# --- memory ----------------------------------------------------------------------------------------------


class Counted:
    """Rows that count what is read, and how many clients are held at once."""

    def __init__(self, clients):
        self.clients, self.read = clients, []
        self.like = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)

    def __len__(self):
        return self.clients

    def rows(self, client):
        self.read.append(client)
        return nasty(client % 2, "")


@pytest.mark.parametrize("number", [1_000, 10_000])
def test_a_round_reads_its_cohort_alone_and_once(number, monkeypatch):
    rows, sizes = Counted(number), []
    plain = vectorized.stacked_updates
    monkeypatch.setattr(
        vectorized, "stacked_updates", lambda *a, **k: sizes.append(len(a[1])) or plain(*a, **k)
    )
    clients = VectorizedClients(rows, SETTINGS[0], clients_at_once=40)
    cohort = torch.randperm(number, generator=torch.Generator().manual_seed(0))[:100]
    model = networks.mlp((4,), 3)
    clients.rehearse(model)
    assert rows.read == []
    clients.contributions(model, (cohort,), step=0)
    assert rows.read == cohort.tolist()
    assert sizes == [3, 40, 40, 20]  # 3: made-up rows


# --- whole runs ------------------------------------------------------------------------------------------


def test_it_is_a_contributor_whose_description_says_how_clients_learn():
    clients = VectorizedClients(assigned(SIZES), SETTINGS[1])
    assert isinstance(clients, Contributor)
    assert repr(clients) == (
        "VectorizedClients(epochs=2, batch_size=3, learning_rate=0.05, momentum=0.9, "
        "proximal=0.0, full_weight_rows=None, loss=cross_entropy)"
    )


def averaged(model, rows, training, rounds):
    """Run plain federated averaging."""
    model = copy.deepcopy(model)
    for step in range(rounds):
        locals_ = []
        for client in range(len(rows)):
            own = copy.deepcopy(model)
            optimizer = torch.optim.SGD(own.parameters(), lr=training.learning_rate)
            x, y = rows.rows(client)
            for chosen in batch_order(len(y), training, client=client, step=step):
                optimizer.zero_grad()
                nn.functional.cross_entropy(own(x[chosen]), y[chosen]).backward()
                optimizer.step()
            locals_.append(own.state_dict())
        model.load_state_dict({n: torch.stack([s[n] for s in locals_]).mean(0) for n in locals_[0]})
    return model


def test_a_run_of_all_clients_with_next_to_no_noise_is_federated_averaging_and_learns_digits():
    digits = load("digits")
    rows, training = iid(digits, clients=20), LocalTraining(epochs=2, batch_size=10, learning_rate=0.3)
    torch.manual_seed(0)
    model = networks.model_for(digits, "mlp")
    wanted = averaged(model, rows, training, 5)
    train(
        model,
        (torch.arange(20),),
        runtime=Runtime(engine=VectorizedClients(rows, training)),
        noise_multiplier=1e-9,
        steps=5,
        expected_batch_size=20,
        public_size=20,
        clip_norm=100.0,
        delta=1e-3,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        progress=False,
        generator=seeded(0),
    )
    assert all(
        torch.allclose(a, b, atol=1e-4) for a, b in zip(model.parameters(), wanted.parameters(), strict=True)
    )
    accuracy = (model(digits.test.features).argmax(1) == digits.test.labels).float().mean()
    assert accuracy > 0.9
