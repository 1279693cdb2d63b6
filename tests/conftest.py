# SPDX-License-Identifier: Apache-2.0
"""Settings that must be made before anything is imported, and processes that tests start."""

import os

# The tests run in several processes, and start more: threads would only wait for one another.
os.environ["OMP_NUM_THREADS"] = "1"

import gc
import multiprocessing
import runpy
import socket
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import sqlalchemy as sa
import torch
from hypothesis import settings

settings.register_profile(
    "sfumato", deadline=None
)  # no test depends on the clock: machines are busy at times
settings.load_profile("sfumato")

if not torch.cuda.is_available():
    # Triton decides when it is first imported whether its kernels are compiled, or run by its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of each search for garbage, and for rows that are kept."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let it be collected at the end: nanobind reports what is left."""
    gc.unfreeze()


SCRIPTED = str(Path(__file__).with_name("scripted.py"))
# What takes a process seconds to import, and what a training run imports on its way.
PRELOADED = ["torch", "torch._dynamo", "sfumato.training", "sfumato.audit", "sklearn.tree", "scipy.signal"]


@pytest.fixture(scope="session")
def start_script() -> Callable[..., BaseProcess]:
    """Start a script in a process of its own, which has imported torch already.

    Folder and environment are those of the test, or as given. The processes are forked from one that did
    nothing but import; what they write to stderr is captured with the test.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)

    def start(
        script: Path, *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> BaseProcess:
        task = (str(script), arguments, str(cwd or Path.cwd()), dict(os.environ) if env is None else env)
        process = context.Process(target=runpy.run_path, args=(SCRIPTED, {"TASK": task}))
        process.start()
        return process

    return start


@pytest.fixture(scope="session")
def exit_code(start_script: Callable[..., BaseProcess]) -> Callable[..., int | None]:
    """Run a script to its end as `start_script` does, and give its exit code: below 0 if it was killed."""

    def run(script: Path, *arguments: str, **settings: object) -> int | None:
        process = start_script(script, *arguments, **settings)
        process.join()
        return process.exitcode

    return run


@pytest.fixture(scope="session")
def run_ranks(start_script: Callable[..., BaseProcess]) -> Callable[..., list[int | None]]:
    """Run a script in several processes, as torchrun does, and give their exit codes."""

    def run(ranks: int, script: Path, *arguments: str) -> list[int | None]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        place |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        processes = [
            start_script(
                script, *arguments, env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.join()
        return [process.exitcode for process in processes]

    return run


@pytest.fixture
def small_classifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an evaluation of synthetic rows train small classifiers, where a test is about all the rest."""
    from sfumato.generative.evaluation import classifiers

    network = classifiers.image_network
    monkeypatch.setattr(classifiers, "image_network", lambda **given: network(**{**given, "epochs": 1}))
    monkeypatch.setattr(classifiers, "_WIDTH", 8)
    monkeypatch.setattr(classifiers, "_TREES", 5)


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
