# SPDX-License-Identifier: Apache-2.0
import logging
import re

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy
from torch import nn

from sfumato import Budget, Ledger
from sfumato.audit import Canaries
from sfumato.errors import (
    BudgetExceededError,
    InvalidParameterError,
    UnsupportedModelError,
    UnsupportedUseError,
)
from sfumato.federated.flower import PrivateResult, PrivateStrategy
from sfumato.testing import seeded
from sfumato.training import CyclicBatches, Evaluation, Storage
from tests.federated.flower.local_grid import LocalGrid, moved
from tests.federated.flower.test_grid_clients import HOSTILE, failed

ROUNDS = 6


def model_of():
    torch.manual_seed(0)
    return nn.Linear(2, 2)


def arrays_of(model):
    return ArrayRecord(model.state_dict())


def strategy_of(model=None, **options):
    settings = {
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "cohort": 2,
        "generator": seeded(3),
        "progress": False,
    }
    return PrivateStrategy(model_of() if model is None else model, **settings | options)


def started(grid=None, *, model=None, rounds=ROUNDS, timeout=5.0, start=(), **options):
    model = model_of() if model is None else model
    strategy = strategy_of(model, **options)
    grid = LocalGrid({n: moved(0.1) for n in (1, 2, 3, 4)}) if grid is None else grid
    return strategy.start(grid, arrays_of(model), rounds, timeout, **dict(start))


def test_a_start_is_a_training_run_of_clients():
    grid = LocalGrid({n: moved(0.1, metrics={"num-examples": 12345}) for n in (1, 2, 3, 4)})
    result = started(grid)
    run = result.run
    assert isinstance(result, PrivateResult) and isinstance(strategy_of(), Strategy)
    assert run.mechanism.steps == ROUNDS and run.mechanism.sampling.sampling_rate == 0.5
    assert run.privacy_unit == "client" and run.expected_batch_size == 2
    assert result.train_metrics_clientapp == {} and result.evaluate_metrics_clientapp == {}
    assert torch.equal(result.arrays.to_torch_state_dict()["weight"], run.model.weight)
    assert set(round_ for round_, _ in grid.asked) <= set(range(1, ROUNDS + 1))
    assert result.evaluate_metrics_serverapp[ROUNDS]["epsilon"] == run.epsilon


def test_federated_averaging_is_the_default_step():
    """Without noise to speak of and with everybody in each round, the model moves as all clients do."""
    model = model_of()
    before = model.weight.detach().clone()
    started(model=model, rounds=3, noise_multiplier=1e-6, cohort=4, clip_norm=10.0, generator=seeded(0))
    assert torch.allclose(model.weight, before + 3 * 0.1, atol=1e-3)


def test_an_audit_adds_canaries_of_the_server_and_asks_no_other_node():
    grid = LocalGrid({n: moved(0.1) for n in (1, 2, 3, 4)})
    run = started(grid, rounds=3, cohort=4, audit=Canaries(count=100)).run
    assert not run.audit.refuted and run.audit.blind is None
    assert sorted(grid.asked) == [(number, node) for number in (1, 2, 3) for node in (1, 2, 3, 4)]


def test_a_rate_or_an_optimizer_of_the_server_is_used():
    model = model_of()
    before = model.weight.detach().clone()
    options = {"noise_multiplier": 1e-6, "cohort": 4, "clip_norm": 10.0, "rounds": 1}
    started(model=model, learning_rate=0.5, **options)
    assert torch.allclose(model.weight, before + 0.05, atol=1e-3)
    adam = started(optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01), **options).run
    assert torch.allclose(adam.model.weight, before + 0.01, atol=1e-3)


ALSO = {
    "nan": moved(float("nan")),
    "infinite": moved(float("inf")),
    "enormous": moved(1e38),
    "twice": lambda message: moved(1.0)(message) + moved(5.0)(message),
}


@pytest.mark.parametrize("kind", HOSTILE | ALSO)
def test_hostile_clients_do_not_stop_a_run_and_it_is_accounted_as_any_other(kind, caplog, capfd):
    node = (HOSTILE | ALSO)[kind]
    hostile = started(LocalGrid(dict.fromkeys((1, 2, 3, 4), node)), rounds=2, timeout=0.01)
    said = caplog.text + "".join(capfd.readouterr())
    assert "what a client says" not in said and "no message" not in said
    assert hostile.run.price.epsilon == started(rounds=2).run.price.epsilon
    assert all(value.isfinite().all() for value in hostile.arrays.to_torch_state_dict().values())


def test_rounds_without_replies_and_empty_cohorts_are_both_noise_alone():
    quiet = started(LocalGrid(dict.fromkeys((1, 2, 3, 4), failed))).run
    grid = LocalGrid({n: moved(0.1) for n in (1, 2, 3, 4)})
    empty = started(grid, public_size=10**12).run  # nobody is ever drawn
    assert grid.asked == [] and torch.equal(quiet.model.weight, empty.model.weight)
    assert not torch.equal(quiet.model.weight, model_of().weight)


def test_connected_nodes_that_are_counted_are_public_and_a_declared_number_is_not_compared():
    counted, declared = started().run, started(public_size=100, cohort=5).run
    assert re.search(r"; the number of clients, \d+, is public$", str(counted.guarantee))
    assert "is public" not in str(declared.guarantee)
    for word in ("DP-SGD", "gradient", "step"):
        assert word not in counted.statement()


def test_a_declared_number_of_clients_sets_the_rate():
    run = started(public_size=100, cohort=5).run
    assert run.mechanism.sampling.sampling_rate == 0.05 and run.expected_batch_size == pytest.approx(5)


def test_epsilon_sets_the_noise_and_a_budget_stops_the_run():
    run = started(epsilon=3.0, noise_multiplier=None).run
    assert run.epsilon == pytest.approx(3.0, rel=1e-3) and run.mechanism.steps == ROUNDS
    stopped = started(epsilon=run.epsilon, noise_multiplier=run.mechanism.noise_multiplier(0), rounds=50).run
    assert stopped.mechanism.steps in (ROUNDS - 1, ROUNDS)


def test_an_account_is_charged_before_anybody_is_asked(tmp_path):
    account = Ledger(tmp_path / "ledger.db").open(
        "people", privacy_unit="client", budget=Budget(epsilon=2.0, delta=1e-3)
    )
    grid = LocalGrid({n: moved(0.1) for n in (1, 2, 3, 4)})
    with pytest.raises(BudgetExceededError):
        started(grid, account=account, purpose="too much", noise_multiplier=0.3)
    assert grid.asked == [] and not account.releases()
    result = started(account=account, purpose="a run", noise_multiplier=None)  # all that is left
    assert result.run.account == "people" and result.run.release_number == 1


class Dying(LocalGrid):
    """A grid that ends the server in the middle of a round."""

    def pull_messages(self, message_ids):
        if max(round_ for round_, _ in self.asked) >= 4:
            raise KeyboardInterrupt
        return super().pull_messages(message_ids)


def test_a_server_that_died_goes_on_from_its_checkpoint_without_a_second_charge(tmp_path):
    def account(name):
        return Ledger(tmp_path / name).open(
            "people", privacy_unit="client", budget=Budget(epsilon=20.0, delta=1e-3)
        )

    nodes = {n: moved(0.1) for n in (1, 2, 3, 4)}
    paid = {"purpose": "a run", "checkpoint_every": 1}
    whole = started(folder=tmp_path / "whole", account=account("a.db"), **paid)
    with pytest.raises(KeyboardInterrupt):
        started(Dying(nodes), folder=tmp_path / "died", account=account("b.db"), **paid)
    grid = LocalGrid({n + 50: node for n, node in nodes.items()})  # nodes may have other ids by now
    resumed = started(grid, folder=tmp_path / "died", account=account("b.db"), start={"resume": True}, **paid)
    assert torch.equal(whole.run.model.weight, resumed.run.model.weight)
    assert min(round_ for round_, _ in grid.asked) >= 4  # nothing shown is drawn again
    assert len(account("b.db").releases()) == 1


def test_batches_in_a_fixed_order_are_resumed_with_the_same_nodes_only(tmp_path):
    sampling = CyclicBatches(batch_size=2, public_size=4)
    options = {"sampling": sampling, "cohort": None, "folder": tmp_path / "run", "checkpoint_every": 1}
    options["relation"] = "replace-one"
    nodes = {n: moved(0.1) for n in (1, 2, 3, 4)}
    with pytest.raises(KeyboardInterrupt):
        started(Dying(nodes), **options)
    with pytest.raises(InvalidParameterError, match="contributor"):
        started(LocalGrid({n + 1: moved(0.1) for n in nodes}), start={"resume": True}, **options)
    assert started(LocalGrid(nodes), start={"resume": True}, **options).run.mechanism.steps == ROUNDS


def test_evaluation_data_of_the_server_is_measured():
    data = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    result = started(evaluation=Evaluation(data=data, evaluate_every=3))
    assert sorted(result.evaluate_metrics_serverapp) == [3, 6]
    assert set(result.evaluate_metrics_serverapp[3]) == {"epsilon", "loss", "accuracy"}


def test_flowers_evaluate_fn_is_called_with_the_round_and_the_arrays(tmp_path):
    calls = []

    def evaluate(number, arrays):
        calls.append((number, arrays.to_torch_state_dict()["weight"]))
        return MetricRecord({"accuracy": 0.5, "other": number})

    result = started(evaluate_every=2, start={"evaluate_fn": evaluate})
    assert [number for number, _ in calls] == [0, 2, 4, 6]
    assert torch.equal(calls[0][1], model_of().weight) and torch.equal(calls[-1][1], result.run.model.weight)
    assert result.evaluate_metrics_serverapp[4]["other"] == 4 and result.run.accuracy == 0.5
    with pytest.raises(InvalidParameterError, match="not both"):
        data = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
        started(evaluation=data, start={"evaluate_fn": evaluate})


def test_evaluate_fn_gets_the_right_rounds_after_a_restart(tmp_path):
    calls = []
    start = {"evaluate_fn": lambda number, arrays: calls.append(number)}
    options = {"folder": tmp_path / "run", "checkpoint_every": 1, "evaluate_every": 1}
    nodes = {n: moved(0.1) for n in (1, 2, 3, 4)}
    with pytest.raises(KeyboardInterrupt):
        started(Dying(nodes), start=start, **options)
    started(LocalGrid(nodes), start={**start, "resume": True}, **options)
    assert calls == [0, 1, 2, 3, 3, 4, 5, 6]  # whether the third was shown is not known any more


def test_only_public_settings_are_logged(caplog):
    nodes = {1000001: failed, 1000002: HOSTILE["shape"], 1000003: moved(0.777)}
    with caplog.at_level(logging.DEBUG):
        started(LocalGrid(nodes))
    assert "PrivateStrategy" in caplog.text
    assert not any(text in caplog.text for text in ("100000", "0.777", "what a client says"))


@pytest.mark.parametrize(
    "name", ["configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"]
)
def test_flowers_own_loop_is_refused(name):
    arguments = {"configure": (1, None, None, None), "aggregate": (1, [])}[name.partition("_")[0]]
    with pytest.raises(UnsupportedUseError, match=r"Call strategy\.start"):
        getattr(strategy_of(), name)(*arguments)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"cohort": 2, "expected_batch_size": 2}, "same number"),
        ({"owners": torch.zeros(3)}, "owners cannot be used"),
        ({"contribution_bound": 2}, "contribution_bound cannot be used"),
        ({"views": 2}, "views cannot be used"),
        ({"augment": lambda rows, generator: rows}, "augment cannot be used"),
        ({"epsilom": 1.0}, "unknown keyword"),
        ({"least_clients": 0}, "least_clients"),
        ({"storage": Storage(folder="a"), "folder": "b"}, "given twice"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, match):
    with pytest.raises(InvalidParameterError, match=match):
        strategy_of(**options)


def test_a_length_that_is_given_twice_is_refused():
    with pytest.raises(InvalidParameterError, match="another length"):
        started(steps=5)
    assert started(steps=ROUNDS).run.mechanism.steps == ROUNDS
    assert started(steps=3, rounds=None).run.mechanism.steps == 3


def test_clients_are_never_asked_to_evaluate():
    with pytest.raises(InvalidParameterError, match="not asked to evaluate"):
        started(start={"evaluate_config": ConfigRecord({"a": 1})})


def test_models_that_keep_statistics_of_batches_are_refused():
    with pytest.raises(UnsupportedModelError):
        strategy_of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


class WithBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("count", torch.tensor(5))

    def forward(self, x):
        return self.linear(x) * self.count


def test_buffers_stay_those_of_the_server():
    result = started(model=WithBuffer())
    assert int(result.arrays.to_torch_state_dict()["count"]) == 5
