# SPDX-License-Identifier: Apache-2.0
"""A fresh database or file for each test."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato.ledger import Budget, Ledger


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give a place for a new ledger, in each of the two databases."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return request.getfixturevalue("postgresql_url")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give a path for a new ledger file."""
    return tmp_path / "ledger.db"


@pytest.fixture
def new_account(path: Path) -> Callable[..., object]:
    """Open an account in a new ledger file."""

    def opened(epsilon: float = 1.0, delta: float = 1e-6, **others: object) -> object:
        budget = Budget(epsilon=epsilon, delta=delta)
        return Ledger(path, person="ada").open("credit", privacy_unit="client_id", budget=budget, **others)

    return opened
