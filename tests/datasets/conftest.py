# SPDX-License-Identifier: Apache-2.0
"""A cache of each test's own, the real data where it is at hand, and a small web server."""

import functools
import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
REAL = Path(os.environ.get("SFUMATO_DATA") or ROOT.parent / "shared" / "data")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty cache that does not exist yet, no data folder, and no way through a proxy."""
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SFUMATO_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Let torch use one thread: tests run side by side, and threads that wait for one another are slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give an empty data folder."""
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def unwritable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a cache that not even root can write: it would have to lie inside a file."""
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "file" / "cache"))
    return tmp_path / "file" / "cache"


@pytest.fixture
def real(request: pytest.FixtureRequest) -> Path:
    """Give the folder of real data sets, or skip."""
    if not (REAL / "mnist").is_dir():
        pytest.skip("the benchmark sets are not here: set SFUMATO_DATA to a folder that holds them")
    return REAL


class Server:
    """Serves a folder, counts requests, and breaks off answers on demand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        self.breaks_off = False
        handler = functools.partial(_Handler, self)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/{name}"

    def offer(self, name: str, data: bytes) -> str:
        (self.folder / name).write_bytes(data)
        return self.url(name)

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, server: Server, *others: object) -> None:
        self.owner = server
        super().__init__(*others, directory=str(server.folder))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.owner.requests.append(self.path)
        if not self.owner.breaks_off:
            return super().do_GET()
        data = (self.owner.folder / self.path[1:]).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Run a web server on this machine for one test."""
    (tmp_path / "www").mkdir()
    running = Server(tmp_path / "www")
    yield running
    running.stop()
