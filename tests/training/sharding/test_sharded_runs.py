# SPDX-License-Identifier: Apache-2.0
"""Whole runs of a trainer with parameters that `fully_shard` has cut: payment, checkpoints, evaluation."""

import importlib.util
import json
import signal
from pathlib import Path

import pytest
import torch

from sfumato import Budget, Ledger
from sfumato.ledger.state import Progress
from sfumato.training import TrainingRun

SCRIPT = Path(__file__).parents[1] / "runs.py"
SPEC = importlib.util.spec_from_file_location("sharded_runs_alone", SCRIPT)
runs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runs)

BASE = {"seed": 4, "dropout": False, "sharded": True}
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def outcome(folder, number, rank):
    return torch.load(folder / f"run{number}-rank{rank}.pt", weights_only=True)


def close(got, wanted, dtype="float32"):
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (got[name] - value).norm() <= TOLERANCE[dtype] * value.norm(), name


def account_in(path, epsilon):
    return Ledger(path).open("data", privacy_unit="example", budget=Budget(epsilon=epsilon, delta=1e-5))


def test_a_sharded_run_is_paid_once_and_leaves_the_whole_model_that_one_process_trains(tmp_path, run_ranks):
    rich, poor = account_in(tmp_path / "rich.db", 90), account_in(tmp_path / "poor.db", 0.01)
    base = BASE | {"out": str(tmp_path)}
    several = [
        base | {"dtype": "float64", "ledger": str(tmp_path / "rich.db"), "folder": str(tmp_path / "run")},
        base | {"shuffled": True, "adaptive": False, "microbatch_size": 3},
        base | {"ledger": str(tmp_path / "poor.db"), "refused": True},
    ]
    assert run_ranks(2, SCRIPT, json.dumps(several)) == [0, 0]
    alone = [
        runs.attempt({k: v for k, v in one.items() if k not in ("out", "ledger", "folder")})
        for one in several[:2]
    ]
    close(outcome(tmp_path, 0, 0), alone[0], "float64")
    close(outcome(tmp_path, 1, 0), alone[1])
    assert [r.progress for r in rich.releases()] == [Progress.COMMITTED]
    assert [outcome(tmp_path, 2, rank)["error"] for rank in (0, 1)] == [
        "BudgetExceededError",
        "OtherRankError",
    ]
    assert poor.releases() == []
    run = TrainingRun.load(tmp_path / "run", runs.network(False, torch.float64))  # compares fingerprints
    close(run.model.state_dict(), alone[0], "float64")
    evaluated = runs.make(BASE | {"dtype": "float64"}).fit().history
    assert [row.loss for row in run.history] == pytest.approx([row.loss for row in evaluated])


def killed_at_step_8(tmp_path, run_ranks, ranks):
    asked = BASE | {"dtype": "float64", "folder": str(tmp_path / "run"), "die_at": 8}
    assert run_ranks(ranks, SCRIPT, json.dumps(asked)) == [-signal.SIGKILL] * ranks
    return {k: v for k, v in asked.items() if k != "die_at"} | {"resume": True}


def test_a_sharded_run_that_was_killed_is_resumed_by_one_process_with_the_whole_model(tmp_path, run_ranks):
    resumed = runs.attempt(killed_at_step_8(tmp_path, run_ranks, 2))
    close(resumed, runs.attempt(BASE | {"dtype": "float64"}), "float64")


@pytest.mark.slow
def test_a_sharded_run_that_was_killed_is_resumed_by_another_number_of_ranks(tmp_path, run_ranks):
    resumed = killed_at_step_8(tmp_path, run_ranks, 2) | {"out": str(tmp_path)}
    assert run_ranks(4, SCRIPT, json.dumps(resumed)) == [0] * 4
    close(outcome(tmp_path, 0, 0), runs.attempt(BASE | {"dtype": "float64"}), "float64")
