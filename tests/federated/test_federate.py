# SPDX-License-Identifier: Apache-2.0
import copy
import json

import pytest
import torch
from torch import nn

from sfumato import Budget, Ledger
from sfumato.accounting import events, price
from sfumato.datasets import Examples, load
from sfumato.errors import BudgetExceededError, InvalidParameterError, NotPrivateError
from sfumato.federated.clients.client_rows import AssignedRows, LazyRows
from sfumato.federated.clients.local_training import LocalTraining, local_update
from sfumato.federated.clients.partitions import by_user, iid
from sfumato.federated.federate import federate
from sfumato.testing import seeded
from sfumato.training import AdaptiveClip, BandedNoise, Clipping, CyclicBatches, TrainingRun
from sfumato.training.models import networks

LOCAL = LocalTraining(epochs=1, batch_size=4, learning_rate=0.2)


def rows(count=60):
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=draws)
    return x, (x.sum(1) > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def federated(clients, **options):
    settings = {"rounds": 3, "expected_cohort_size": 10, "local": LOCAL, "progress": False, "delta": 1e-3}
    model = options.pop("model", None) or network()
    return federate(model, clients, **settings | {"noise_multiplier": 1.0, "generator": seeded(0)} | options)


def test_without_noise_all_clients_together_are_federated_averaging():
    clients = iid(rows(), clients=10)
    model = network()
    for step in range(3):
        updates = [local_update(model, clients.rows(c), LOCAL, client=c, step=step) for c in range(10)]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.sub_(sum(update[name] for update in updates) / 10)
    run = federated(clients, noise_multiplier=1e-9, clip_norm=1e3)
    for found, wanted in zip(run.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
def test_one_client_moves_the_model_by_at_most_the_clip_norm(poison):
    x, y = rows()
    owner = torch.arange(60) % 10
    hostile = x.clone()
    hostile[owner == 3] = poison
    once = {"rounds": 1, "noise_multiplier": 1e-9, "clip_norm": 0.1}
    with_client = federated(AssignedRows((hostile, y), owner, clients=10), **once)
    without = federated(AssignedRows((x, y), owner.where(owner != 3, -1), clients=10), **once)
    moved = [a - b for a, b in zip(with_client.model.parameters(), without.model.parameters(), strict=True)]
    assert torch.cat([part.flatten() for part in moved]).norm() <= 0.1 / 10 * (1 + 1e-3)


@pytest.mark.parametrize("count", [0, 1, 30, 3000])
def test_a_client_of_any_size_moves_the_model_by_at_most_the_clip_norm_if_rows_are_weights(count):
    x, y = rows()
    owner = torch.arange(60) % 10
    others = owner != 3
    large = torch.full((count, 3), 50.0), torch.zeros(count, dtype=torch.int64)
    data = torch.cat([x[others], large[0]]), torch.cat([y[others], large[1]])
    owners = torch.cat([owner[others], torch.full((count,), 3)])
    once = {"rounds": 1, "noise_multiplier": 1e-9, "clip_norm": 0.1}
    weighted = LocalTraining(epochs=1, batch_size=32, learning_rate=0.2, full_weight_rows=30)
    with_client = federated(AssignedRows(data, owners, clients=10), local=weighted, **once)
    plain = AssignedRows((x, y), owner.where(others, -1), clients=10)
    without = federated(plain, local=weighted, **once)
    moved = [a - b for a, b in zip(with_client.model.parameters(), without.model.parameters(), strict=True)]
    assert torch.cat([part.flatten() for part in moved]).norm() <= 0.1 / 10 * (1 + 1e-3)
    assert "divided by 30, at most 1" in without.statement()


def unreadable():
    raise OSError("secret path")


BAD = {
    "nothing": lambda: rows(0),
    "zeros": lambda: (torch.zeros(6, 3), torch.zeros(6, dtype=torch.int64)),
    "enormous": lambda: (torch.full((6, 3), 3e38), torch.ones(6, dtype=torch.int64)),
    "not a number": lambda: (torch.full((6, 3), torch.nan), torch.zeros(6, dtype=torch.int64)),
    "no class": lambda: (torch.ones(6, 3), torch.full((6,), 99)),
    "another shape": lambda: (torch.ones(6, 5), torch.zeros(6, dtype=torch.int64)),
    "another type": lambda: (torch.ones(6, 3).double(), torch.zeros(6, dtype=torch.int64)),
    "unreadable": unreadable,
}


@pytest.mark.parametrize("noise", [None, "skellam"])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_client_moves_the_model_by_at_most_the_clip_norm_and_is_not_logged(kind, noise, caplog, capfd):
    def run(read):
        held = LazyRows(lambda client: read() if client == 3 else rows(6), clients=10, like=rows(0))
        quiet = {"noise_multiplier": 1e-9 if noise is None else 1e-3, "noise": noise}
        return federated(held, rounds=1, clip_norm=0.1, **quiet)

    with caplog.at_level("DEBUG", logger="sfumato"):
        bad, without = run(BAD[kind]), run(lambda: rows(0))
    moved = [a - b for a, b in zip(bad.model.parameters(), without.model.parameters(), strict=True)]
    rounding = 1e-3 if noise is None else 0.05  # to integers
    assert torch.cat([part.flatten() for part in moved]).norm() <= 0.1 / 10 * (1 + rounding)
    assert bad.price.epsilon == without.price.epsilon
    assert "secret" not in caplog.text + "".join(capfd.readouterr())


def test_a_round_without_clients_is_noise_alone_and_counts():
    read = []

    def reading(client):
        read.append(client)
        return rows(6)

    before = network()
    run = federated(LazyRows(reading, clients=10, like=rows(0)), expected_cohort_size=1e-9)
    assert not read and run.mechanism.steps == 3
    moved = [a - b for a, b in zip(run.model.parameters(), before.parameters(), strict=True)]
    assert all(part.any() for part in moved)


def test_a_client_that_cannot_be_read_stops_nothing():
    def read(client):
        if client == 4:
            raise OSError("secret path")
        return rows(6)

    run = federated(LazyRows(read, clients=10, like=rows(0)))
    assert run.history[-1].step == 3


def test_the_unit_is_a_client_and_the_statement_says_so():
    run = federated(iid(rows(), clients=10))
    assert run.guarantee.privacy_unit == "client" and "its update" in run.statement()


def test_clients_that_are_counted_are_public_and_the_guarantee_says_so(tmp_path):
    run = federated(iid(rows(), clients=20), folder=tmp_path / "run")
    fact = "the number of clients, 20, is public"
    assert run.mechanism.sampling.sampling_rate == 0.5
    assert str(run.guarantee).endswith(f"add-remove neighbors; {fact}") and f"; {fact}." in run.statement()
    loaded = TrainingRun.load(tmp_path / "run")
    assert str(loaded.guarantee) == str(run.guarantee) and loaded.statement() == run.statement()


@pytest.mark.parametrize("noise", [None, "skellam"])
def test_a_declared_number_of_clients_sets_the_rate_and_nothing_tells_the_true_one(tmp_path, noise):
    told = []
    for clients in (20, 21):
        folder = tmp_path / str(clients)
        run = federated(
            iid(rows(), clients=clients), public_size=25, noise=noise, folder=folder, evaluate_every=3
        )
        assert run.mechanism.sampling.sampling_rate == 0.4 and "is public" not in str(run.guarantee)
        settings = torch.load(folder / "checkpoint.pt", weights_only=False)["fingerprint"]
        told.append((settings, repr(run.mechanism), run.statement(), str(run.guarantee)))
    assert told[0] == told[1]


def test_a_federation_is_told_in_rounds_and_updates():
    said = federated(iid(rows(), clients=20)).statement()
    for word in ("DP-SGD", "gradient", "step"):
        assert word not in said
    assert "in 3 noisy rounds" in said and "clipped its update" in said


def test_noise_of_the_clients_has_a_price_against_the_server_without_sampling(tmp_path):
    run = federated(iid(rows(), clients=20), noise="skellam", folder=tmp_path / "run")
    step = run.mechanism.step.event(1.0)
    wanted = price(events.compose(step, step, step), delta=1e-3, relation="zero-out")
    assert run.against_server == wanted.guarantee("client")
    assert run.against_server.epsilon > 1.5 * run.epsilon
    assert f"sampling does not amplify: {run.against_server}." in run.statement()
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["against_server"] == run.against_server.to_dict()
    assert federated(iid(rows(), clients=20)).against_server is None


@pytest.mark.parametrize(
    ("unit", "said"),
    [("row", "privacy_unit='client'"), ("phone", "privacy_unit='phone' if each client is one")],
)
def test_an_account_of_another_unit_is_refused_in_words_about_clients(tmp_path, unit, said):
    account = Ledger(tmp_path / "ledger.db").open(
        "people", privacy_unit=unit, budget=Budget(epsilon=1, delta=1e-3)
    )
    with pytest.raises(InvalidParameterError, match="a federation protects a client") as refused:
        federated(iid(rows(), clients=20), account=account, purpose="a model")
    assert said in str(refused.value)
    assert "privacy_unit='row'" not in str(refused.value)
    assert account.spent().epsilon == 0


def test_a_run_is_charged_before_a_client_is_read(tmp_path):
    account = Ledger(tmp_path / "ledger.db").open(
        "people", privacy_unit="client", budget=Budget(epsilon=1, delta=1e-3)
    )
    read = []

    def reading(client):
        read.append(client)
        return rows(6)

    clients = LazyRows(reading, clients=10, like=rows(0))
    with pytest.raises(BudgetExceededError):
        federated(clients, noise_multiplier=0.1, account=account, purpose="too much", generator=None)
    assert not read
    federated(clients, noise_multiplier=9.0, account=account, purpose="little", generator=None)
    assert read and account.spent().epsilon > 0


@pytest.mark.parametrize(
    "options",
    [
        {
            "clipping": Clipping(
                clip_norm=1.0, adaptive=AdaptiveClip(quantile=0.5, count_noise_multiplier=5.0)
            )
        },
        {
            "sampling": CyclicBatches(batch_size=5, public_size=10),
            "correlation": BandedNoise(bands=2),
            "relation": "zero-out",
        },
        {"optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.1)},
        {"local": LocalTraining(proximal=0.5, momentum=0.9)},
    ],
)
def test_every_way_to_run_a_federation_takes_its_rounds(options):
    model = network()
    before = copy.deepcopy(model.state_dict())
    run = federated(iid(rows(), clients=10), model=model, **options)
    assert run.mechanism.steps == 3
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", ["mlp", "cnn", "lstm"])
def test_networks_of_users_are_trained(kind):
    draws = torch.Generator().manual_seed(0)
    if kind == "lstm":
        text = torch.randint(0, 11, (60, 7), generator=draws)
        model, pair, loss = networks.lstm(11), (text[:, :-1], text[:, 1:]), networks.next_token_cross_entropy
    else:
        model = networks.for_shape((1, 8, 8), 10, kind)
        pair = torch.randn(60, 1, 8, 8, generator=draws), torch.randint(0, 10, (60,), generator=draws)
        loss = LOCAL.loss
    before = copy.deepcopy(model.state_dict())
    clients = by_user(Examples(*pair, user_ids=torch.arange(60) % 10))
    run = federated(clients, model=model, local=LocalTraining(batch_size=4, loss=loss), rounds=2)
    assert run.mechanism.steps == 2 and run.guarantee.privacy_unit == "client"
    assert all(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 3}, "set by rounds"),
        ({"expected_batch_size": 3}, "expected_cohort_size"),
        ({"public_size": 3}, "expected_cohort_size=10 must be at most public_size=3"),
        ({"cohort": 3}, "expected_cohort_size"),
        ({"rounds": 0}, "rounds must be"),
        ({"expected_cohort_size": 11}, "expected_cohort_size=11 must be at most clients=10"),
        ({"epsilom": 1.0}, "Did you mean"),
    ],
)
def test_wrong_settings_say_what_to_do(wrong, said):
    with pytest.raises(InvalidParameterError, match=said):
        federated(iid(rows(), clients=10), **wrong)


def test_digits_are_learned_at_little_noise():
    data = load("digits")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    run = federated(
        iid(data, clients=50),
        model=model,
        rounds=15,
        expected_cohort_size=25,
        noise_multiplier=0.01,
        clip_norm=3.0,
        local=LocalTraining(epochs=3, batch_size=8, learning_rate=0.3),
        evaluation=data.test,
    )
    assert run.accuracy is not None and run.accuracy > 0.9


def client_account(folder, epsilon):
    budget = Budget(epsilon=epsilon, delta=1e-3)
    return Ledger(folder / "l.db").open("phones", privacy_unit="client", budget=budget)


SHARED = {"noise": "skellam", "epsilon": 4, "noise_multiplier": None, "generator": None, "purpose": "a model"}


def test_a_run_that_costs_more_against_the_server_than_the_account_has_warns_and_is_recorded_so(tmp_path):
    account = client_account(tmp_path, 4)
    with pytest.warns(UserWarning, match="With expected_cohort_size=20, all clients") as told:
        run = federated(iid(rows(), clients=20), **SHARED, expected_cohort_size=5, account=account)
    assert run.epsilon <= 4 < run.against_server.epsilon
    (release,) = account.releases()
    assert str(run.against_server) in release.purpose and "those who see the models" in release.purpose
    assert str(run.against_server) in str(told[0].message)


def test_with_all_clients_in_each_cohort_the_budget_holds_against_the_server_too(tmp_path):
    account = client_account(tmp_path, 4)  # a warning would be an error here
    run = federated(iid(rows(), clients=20), **SHARED, expected_cohort_size=20, account=account)
    assert run.against_server.epsilon == pytest.approx(run.epsilon, rel=1e-9) and run.epsilon <= 4


def test_a_statement_says_against_whom_a_central_federation_holds(tmp_path):
    account = client_account(tmp_path, 40)
    run = federated(iid(rows(), clients=20), account=account, purpose="a model", generator=None)
    assert "The server is trusted" in run.statement() and run.against_server is None
    assert account.releases()[0].purpose == "a model"


@pytest.mark.parametrize(
    ("unit", "told"),
    [
        ("row", "Use an account opened with privacy_unit='client'. Nothing was spent."),
        ("phone", "'client', or pass privacy_unit='phone' if each client is one phone. Nothing was spent."),
    ],
)
def test_the_two_ways_out_of_a_wrong_unit_are_alternatives(tmp_path, unit, told):
    account = Ledger(tmp_path / "l.db").open("x", privacy_unit=unit, budget=Budget(epsilon=4, delta=1e-3))
    with pytest.raises(InvalidParameterError) as refusal:
        federated(iid(rows(), clients=20), account=account, purpose="a model")
    assert told in " ".join(str(refusal.value).split()) and not account.releases()


# --- what is wrong with public things costs nothing ------------------------------------------------------


class Keeping(nn.Linear):
    """A model that keeps what it sees."""

    seen = None

    def forward(self, x):
        self.seen = x.detach()
        return super().forward(x)


class Filling(nn.Linear):
    """A model that makes something of shapes alone when it is first called."""

    ones = None

    def forward(self, x):
        if self.ones is None:
            self.ones = torch.ones(x.shape[-1])
        return super().forward(x * self.ones)


def refused(tmp_path, error, **options):
    """Return the words in which a run is refused, with an account that paid nothing and read no client."""

    def read(_):
        raise AssertionError("a client was read")

    account = client_account(tmp_path, 8)
    paid = {"account": account, "purpose": "a model", "generator": None}
    with pytest.raises(error) as refusal:
        federated(LazyRows(read, clients=20, like=rows(0)), **paid, **options)
    assert account.spent().epsilon == 0
    return str(refusal.value)


def test_a_model_that_keeps_rows_is_refused_before_the_charge(tmp_path):
    model = Keeping(3, 2)
    model.seen = None
    assert "['seen']" in refused(tmp_path, NotPrivateError, model=model)
    assert model.seen is None


def test_a_model_that_fills_a_cache_at_first_use_is_trained():
    run = federated(iid(rows(), clients=20), model=Filling(3, 2))
    assert torch.equal(run.model.ones, torch.ones(3))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (lambda: nn.Linear(4, 2), "16x3 and 4x2"),
        (lambda: nn.Linear(3, 2).double(), "The model has parameters of float64."),
        (lambda: nn.Linear(3, 2).half(), "The model has parameters of float16."),
    ],
)
def test_a_model_that_does_not_fit_the_clients_is_refused_in_words(tmp_path, model, told):
    said = refused(tmp_path, InvalidParameterError, model=model(), local=LocalTraining())
    assert "of the clients' rows, [rows, 3] of float32, [rows] of int64: " in said and told in said


@pytest.mark.parametrize("noise", [None, "skellam"])
def test_noise_that_could_overflow_is_refused_before_the_charge(tmp_path, noise):
    said = refused(tmp_path, InvalidParameterError, clip_norm=1e38, noise=noise, expected_cohort_size=20)
    assert "could overflow torch.float32" in said


def test_a_model_that_starts_without_finite_weights_is_refused_before_the_charge(tmp_path):
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.bias[1] = torch.inf
    with pytest.warns(UserWarning, match="one after another"):
        assert "['bias']" in refused(tmp_path, InvalidParameterError, model=model)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"optimizer": lambda parameters: 3}, "returns 3."),
        ({"evaluation": (torch.zeros(4, 3),)}, "missing 1 required positional argument: 'y'"),
        ({"evaluation": (torch.zeros(4, 5), torch.zeros(4, dtype=torch.int64))}, "2x5 and 3x4"),
        ({"evaluation": (torch.zeros(4, 3).double(), torch.zeros(4, dtype=torch.int64))}, "dtype"),
    ],
)
def test_a_wrong_optimizer_or_evaluation_is_refused_in_words(tmp_path, options, told):
    said = refused(tmp_path, InvalidParameterError, **options)
    assert told in said and any(name in said for name in options)
