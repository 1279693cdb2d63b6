# SPDX-License-Identifier: Apache-2.0
"""Make a notebook of each tutorial while the site is built. mkdocs.yml names this file as a hook.

A tutorial is one Markdown page. Its blocks are the cells, in order, in one process and one folder:

- a `python` block is a cell of code;
- a `console` block is a cell of commands: its lines that begin with "$ ". With a title, as in
  `console title="Refused"`, the commands are expected to fail;
- a `text` block directly after one of these is what the cell prints;
- every other block, such as `python title="Before"`, is text: it is shown and not run.
"""

import base64
import json
import mimetypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$\n?", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)(\{[^}\n]*\})?")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)\s]+\)(\{[^}\n]*\})?")
FOLDER = "tutorials/"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One part of a page: text, code or commands, with the output that the page shows for it."""

    kind: str  # "markdown", "python" or "console"
    source: str
    shown: str | None = None
    fails: bool = False  # whether the commands are expected to be refused


def cells(page: str) -> list[Cell]:
    """Split a page into text, code and commands."""
    found: list[Cell] = []
    text, end = "", 0
    for fence in FENCE.finditer(page):
        text += page[end : fence.start()]
        language, end = fence[1].strip(), fence.end()
        kind = language.partition(" ")[0]
        if language == "text" and found and found[-1].shown is None and not text.strip():
            last = found.pop()
            found.append(Cell(kind=last.kind, source=last.source, shown=fence[2], fails=last.fails))
        elif language == "python" or kind == "console":
            if text.strip():
                found.append(Cell(kind="markdown", source=text.strip()))
            text = ""
            source = fence[2].rstrip() if kind == "python" else "\n".join(commands(fence[2]))
            found.append(Cell(kind=kind, source=source, fails=language != kind))
        else:
            text += fence[0]
    text += page[end:]
    return [*found, Cell(kind="markdown", source=text.strip())] if text.strip() else found


def commands(block: str) -> Iterator[str]:
    """Yield the commands of a console block."""
    yield from (line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ "))


def as_entry(cell: Cell, number: int, folder: Path) -> dict[str, Any]:
    """Return a cell as the format of notebooks has it."""
    entry: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
    if cell.kind == "markdown":
        text, pictures = with_attachments(cell.source, folder)
        # A notebook is kept anywhere: links between pages of this site would lead nowhere.
        entry |= {"cell_type": "markdown", "source": LINK.sub(r"\1", text)}
        return entry | ({"attachments": pictures} if pictures else {})
    source = cell.source if cell.kind == "python" else re.sub("^", "!", cell.source, flags=re.MULTILINE)
    return entry | {"cell_type": "code", "source": source, "execution_count": None, "outputs": []}


def with_attachments(text: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Put the pictures of a text into the notebook itself."""
    pictures: dict[str, Any] = {}
    for _, place, _ in IMAGE.findall(text):
        kind = mimetypes.guess_type(place)[0] or "application/octet-stream"
        content = base64.b64encode((folder / place).read_bytes()).decode()
        pictures[Path(place).name] = {kind: content}
    return IMAGE.sub(lambda image: f"![{image[1]}](attachment:{Path(image[2]).name})", text), pictures


def notebook(page: str, folder: Path) -> str:
    """Return the notebook of a page as JSON. Pictures are read from the folder of the page."""
    entries = [as_entry(cell, number, folder) for number, cell in enumerate(cells(page))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    made = {"cells": entries, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def is_tutorial(uri: str) -> bool:
    """Whether a file of the site is a tutorial."""
    return uri.startswith(FOLDER) and uri.endswith(".md")


def on_files(files: Any, config: Any) -> Any:
    """Add the notebooks to the files of the site."""
    from mkdocs.structure.files import File

    for file in [file for file in files if is_tutorial(file.src_uri)]:
        made = notebook(file.content_string, Path(file.abs_src_path).parent)
        files.append(File.generated(config, file.src_uri.removesuffix(".md") + ".ipynb", content=made))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Offer the notebook below the title of its page."""
    if not is_tutorial(page.file.src_uri):
        return markdown
    name = Path(page.file.src_uri).stem
    offer = f"[Download this page as a notebook]({name}.ipynb){{ .md-button download={name}.ipynb }}"
    return re.sub(r"\A(\s*# [^\n]+\n)", rf"\1\n{offer}\n", markdown)
