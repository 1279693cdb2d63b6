# SPDX-License-Identifier: Apache-2.0
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sfumato import Budget, Ledger
from sfumato.ledger.state import Progress
from sfumato.training import distributed

SCRIPT = Path(__file__).parent / "runs.py"
SPEC = importlib.util.spec_from_file_location("training_runs_alone", SCRIPT)
runs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runs)

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def torchrun(ranks, asked):
    """Start the script as many times as there are ranks, as users would."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [sys.executable, *command, SCRIPT, json.dumps(asked)], capture_output=True, text=True, timeout=240
    )


def outcome(folder, number, rank):
    return torch.load(folder / f"run{number}-rank{rank}.pt", weights_only=True)


def close(got, wanted, tolerance):
    for name, value in wanted.items():
        assert (got[name] - value).norm() <= tolerance * value.norm(), name


def same_as_alone(folder, ranks, several):
    for number, asked in enumerate(several):
        asked = {key: value for key, value in asked.items() if key not in ("out", "ledger", "folder")}
        alone = runs.attempt(asked)
        for rank in range(ranks):
            shared = outcome(folder, number, rank)
            if "error" not in shared:
                close(
                    shared,
                    alone,
                    TOLERANCE[asked.get("dtype", "float64" if "custom" in asked else "float32")],
                )


def account_in(path, epsilon):
    return Ledger(path).open("data", privacy_unit="example", budget=Budget(epsilon=epsilon, delta=1e-5))


def test_two_ranks_give_what_one_process_gives(tmp_path, run_ranks):
    rich, poor = account_in(tmp_path / "rich.db", 90), account_in(tmp_path / "poor.db", 0.01)
    base = {"seed": 4, "dropout": False, "out": str(tmp_path)}
    several = [
        base | {"dtype": "float64", "ledger": str(tmp_path / "rich.db"), "folder": str(tmp_path / "run")},
        base | {"dtype": "float32", "microbatch_size": 3},
        base | {"dtype": "float64", "shuffled": True, "adaptive": False},
        base | {"custom": True},
        base | {"ledger": str(tmp_path / "poor.db"), "refused": True},
        base | {"group_size": 2, "refused": True},
        base | {"adaptive": False, "canaries": 100, "folder": str(tmp_path / "canaries")},
    ]
    assert run_ranks(2, SCRIPT, json.dumps(several)) == [0, 0]
    same_as_alone(tmp_path, 2, several[:4])
    assert [r.progress for r in rich.releases()] == [Progress.COMMITTED]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["steps"] == 12
    assert [outcome(tmp_path, 4, rank)["error"] for rank in (0, 1)] == [
        "BudgetExceededError",
        "OtherRankError",
    ]
    assert poor.releases() == []
    assert outcome(tmp_path, 5, 1)["error"] == "InvalidParameterError"
    runs.attempt({**several[6], "folder": str(tmp_path / "alone"), "out": str(tmp_path)})
    together, alone = (
        json.loads((tmp_path / name / "run.json").read_text())["audit"] for name in ("canaries", "alone")
    )
    assert together["blind"] is None and not together["refuted"]
    for side in ("in_scores", "out_scores"):
        assert together[side] == pytest.approx(
            alone[side], rel=TOLERANCE["float32"], abs=1e-6
        )  # as their tables
    assert [check["name"] for check in together["checks"]] == [check["name"] for check in alone["checks"]]


@pytest.mark.slow
def test_four_ranks_give_what_one_process_gives(tmp_path):
    several = [
        {"seed": 4, "dropout": False, "dtype": dtype, "out": str(tmp_path)}
        for dtype in ("float64", "float32")
    ]
    ran = torchrun(4, several)
    assert ran.returncode == 0, ran.stderr
    same_as_alone(tmp_path, 4, several)


@pytest.mark.slow
def test_a_rank_that_fails_does_not_leave_the_others_waiting(tmp_path):
    ran = torchrun(2, {"seed": 4, "fail_rank": 1, "timeout": 30.0})  # ends: its own timeout is longer
    assert ran.returncode != 0
    assert "this rank fails" in ran.stderr


@pytest.mark.slow
def test_two_ranks_that_were_killed_and_resumed_equal_the_uninterrupted_two(tmp_path):
    (tmp_path / "out").mkdir()
    whole = {"seed": 4, "folder": str(tmp_path / "a"), "out": str(tmp_path / "out")}
    ran = torchrun(2, whole)
    assert ran.returncode == 0, ran.stderr
    broken = whole | {"folder": str(tmp_path / "b")}
    assert torchrun(2, broken | {"die_at": 8}).returncode != 0
    ran = torchrun(2, broken | {"resume": True})
    assert ran.returncode == 0, ran.stderr
    weights = [torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("a", "b")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_one_process_decides_and_shares_alone():
    assert (distributed.rank(), distributed.size(), distributed.is_first()) == (0, 1, True)
    drawn = torch.tensor([3, 5, 8])
    assert distributed.drawn(lambda: drawn, torch.device("cpu")) is drawn
    assert distributed.share(drawn) is drawn
    assert distributed.alike(lambda: 7)
    assert distributed.first_decides(lambda: 7) == 7
    assert distributed.gathered("a") == ["a"]
    sums = [torch.ones(2)]
    distributed.add_up_(sums)
    assert sums[0].tolist() == [1.0, 1.0]


LEAVING = """
import weakref
import torch
from sfumato.training import distributed
distributed.join(torch.device("cpu"), timeout=60)
import torch._dynamo  # as a run does on its way
group = weakref.ref(torch.distributed.group.WORLD)
distributed._leave()
print("gone" if group() is None else "kept")
"""


def test_a_process_that_leaves_ends_its_group_whose_threads_could_else_abort_it():
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", LEAVING], env=os.environ | place, capture_output=True, text=True, timeout=240
    )
    assert ran.stdout.strip() == "gone", ran.stderr
