# SPDX-License-Identifier: Apache-2.0
"""One real PostgreSQL server for the session, a fresh database or file for each test."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from sfumato.ledger import Budget, Ledger


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server of our own and give its URL. Absent means failed: these tests are never skipped."""
    # Without this variable, a library of pgserver's warns about the folder it picks, and warnings are errors.
    runtime = tmp_path_factory.mktemp("runtime")
    runtime.chmod(0o700)
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        import pgserver

        server = pgserver.get_server(tmp_path_factory.mktemp("postgresql"), cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """Make an empty database and give its URL."""
    name = f"ledger_{uuid.uuid4().hex}"
    engine = sa.create_engine(
        sa.make_url(postgresql_server).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return sa.make_url(postgresql_server).set(database=name).render_as_string(hide_password=False)


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
