# SPDX-License-Identifier: Apache-2.0
"""The check of links, against a server of this process."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from docs import check_links

LONG = 600.0  # seconds: never reached


class Answers(BaseHTTPRequestHandler):
    """Answers with the number in the address; `/silent` does not answer, `/get` answers GET alone."""

    over = threading.Event()

    def do_HEAD(self):
        if self.path == "/silent":
            self.over.wait()
            return
        code = {"/get": 500, "/moved": 302}.get(self.path) or int(self.path[1:])
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "/200")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        self.path = "/200" if self.path == "/get" else self.path
        self.do_HEAD()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    Answers.over.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    Answers.over.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", ["/200", "/moved", "/get"])
def test_a_page_that_is_there_is_no_problem(site, path):
    assert check_links.problem(site + path, LONG) is None


@pytest.mark.parametrize(
    ("code", "broken"), [(404, True), (410, True), (500, True), (403, False), (429, False)]
)
def test_a_page_that_is_gone_is_broken_and_a_refusal_is_told_apart(site, code, broken):
    answer = check_links.problem(f"{site}/{code}", LONG)
    assert answer is not None and answer[0] == broken and answer[1].startswith(str(code))


def test_a_host_that_does_not_answer_or_is_not_there_is_broken(site):
    assert check_links.problem(f"{site}/silent", 0.1) == (True, "timed out")
    assert check_links.problem("http://127.0.0.1:9", LONG)[0]
    assert check_links.problem("https://nowhere.invalid/", LONG)[0]


def test_links_are_found_once_and_not_in_code():
    page = """[a](https://a.org/x#part), <https://a.org/x>, https://b.org/y. "https://c.org/z_(w)"
`https://host:1` [in](page.md)

```text
https://host:2
```
"""
    assert check_links.links_of(page) == ["https://a.org/x", "https://b.org/y", "https://c.org/z_(w)"]


def test_the_pages_of_the_project_have_links_to_other_sites():
    found = {link for page in check_links.pages() for link in check_links.links_of(page.read_text())}
    assert "https://opacus.ai" in found and len(found) > 20
    assert not [link for link in found if "host" in link or "..." in link]


def test_broken_links_are_printed_with_their_pages_and_fail(site, tmp_path, monkeypatch, capsys):
    one, two = tmp_path / "one.md", tmp_path / "two.md"
    one.write_text(f"[a]({site}/200) [b]({site}/404) [c]({site}/403)")
    two.write_text(f"[b]({site}/404)")
    monkeypatch.setattr(sys, "argv", ["check_links", str(one), str(two)])
    assert check_links.main() == 1
    out = capsys.readouterr().out
    assert f"broken: {site}/404 (404 Not Found), on one.md, two.md" in out
    assert f"refused to a script: {site}/403" in out and f"{site}/200" not in out
    assert "3 links to other sites, 1 broken" in out
    one.write_text(f"[a]({site}/200) [c]({site}/403)")
    monkeypatch.setattr(sys, "argv", ["check_links", str(one)])
    assert check_links.main() == 0
