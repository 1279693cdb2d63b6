# SPDX-License-Identifier: Apache-2.0
"""Each tutorial becomes a notebook: the same cells, valid, self-contained. A real kernel runs one of them."""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import nbclient
import nbformat
import pytest

from docs.tutorial_notebooks import Cell, cells, notebook, on_page_markdown

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))

PAGE = """# A page

Text with [a link](../ledger.md), [another](https://example.org) and a picture:
![the way](../figures/way.svg){ width=80% }

```python
x = 2.5
print("a number", x)
```

```text
a number 7.25
```

Commands follow.

```console
$ sfumato --version
a line that is not a command
$ sfumato --help
```

```python title="Before"
import nowhere
```

```text
not an output
```

```console title="Refused"
$ sfumato nothing
```
"""


def made(page: Path) -> nbformat.NotebookNode:
    return nbformat.reads(notebook(page.read_text(), page.parent), as_version=4)


def test_the_blocks_of_a_page_are_its_cells():
    assert [(cell.kind, cell.shown, cell.fails) for cell in cells(PAGE)] == [
        ("markdown", None, False),
        ("python", "a number 7.25\n", False),
        ("markdown", None, False),
        ("console", None, False),
        ("markdown", None, False),
        ("console", None, True),
    ]
    assert cells(PAGE)[3].source == "sfumato --version\nsfumato --help"
    assert 'python title="Before"' in cells(PAGE)[4].source and "not an output" in cells(PAGE)[4].source


def test_text_that_follows_other_text_is_no_output():
    assert cells("```python\n1\n```\n\nSays:\n\n```text\n2\n```\n")[0] == Cell(kind="python", source="1")


def test_a_notebook_needs_no_other_file(tmp_path: Path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "tutorials").mkdir()
    (tmp_path / "figures" / "way.svg").write_text("<svg/>")
    written = nbformat.reads(notebook(PAGE, tmp_path / "tutorials"), as_version=4)
    nbformat.validate(written)
    first, code, _, commands = written.cells[:4]
    assert "with a link, [another](https://example.org)" in first.source
    assert "![the way](attachment:way.svg)\n" in first.source + "\n"
    assert first.attachments == {"way.svg": {"image/svg+xml": "PHN2Zy8+"}}
    assert code.source == 'x = 2.5\nprint("a number", x)' and code.outputs == []
    assert commands.source == "!sfumato --version\n!sfumato --help"


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_becomes_a_valid_notebook_that_is_offered_on_its_page(page: Path):
    nbformat.validate(made(page))
    text = page.read_text()
    assert not re.search(r"^(!!!|\?\?\?|===) ", text, re.MULTILINE), "notebooks cannot show boxes and tabs"
    site_file = SimpleNamespace(src_uri=f"tutorials/{page.name}")
    shown = on_page_markdown(text, SimpleNamespace(file=site_file), None, None)
    assert f"({page.stem}.ipynb)" in shown.splitlines()[2]


def executed(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> nbformat.NotebookNode:
    """Return the notebook of a page after a kernel ran it in a folder."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SFUMATO_LEDGER", raising=False)
    written = made(page)
    nbclient.NotebookClient(written, timeout=None, resources={"metadata": {"path": folder}}).execute()
    assert [c for c in written.cells if c.cell_type == "code" and c.execution_count is None] == []
    return written


def test_a_notebook_runs_in_a_kernel(tmp_path: Path, monkeypatch):
    executed(ROOT / "docs" / "tutorials" / "first-csv.md", tmp_path, monkeypatch)
    assert (tmp_path / "ledger.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_tutorial_runs_in_a_kernel(page: Path, tmp_path: Path, monkeypatch):
    executed(page, tmp_path, monkeypatch)
