# SPDX-License-Identifier: Apache-2.0
"""What the tests of private statistics share."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sfumato.ledger import Account, Budget, Ledger

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

RUNS = 1000
COVERED = (0.93, 0.975)  # how often a stated 95% interval must contain the truth


def _loaded(name: str) -> ModuleType:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"statistics_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def neighbors() -> ModuleType:
    """Give the harness that replays questions on neighboring data: `neighbors.replay(...)`."""
    return _loaded("neighbors")


@pytest.fixture
def account(tmp_path: Path) -> Account:
    """Open an account for rows in a new ledger."""
    budget = Budget(epsilon=1.0, delta=1e-5)
    return Ledger(tmp_path / "ledger.db").open("people", privacy_unit="row", budget=budget)


def _covered(contains: Callable[[int], bool]) -> None:
    share = sum(contains(run) for run in range(RUNS)) / RUNS
    assert COVERED[0] <= share <= COVERED[1], f"covered in {share:.1%} of {RUNS} runs"


@pytest.fixture(scope="session")
def check_coverage() -> Callable[[Callable[[int], bool]], None]:
    """Give a check that `contains(run)`, whether run's 95% interval holds the truth, has the right rate."""
    return _covered
