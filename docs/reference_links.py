# SPDX-License-Identifier: Apache-2.0
"""Link the library's names in guides to the reference while the site is built. mkdocs.yml names this hook.

The first time that a page shows a public name as code, such as `sf.train`, `PoissonSampling` or
`sfumato.accounting.price`, the name becomes a link. Names in blocks, headings and links stay as they are.
"""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "sfumato"
FOREIGN = {"DpEvent"}  # names of other libraries that a room offers
# What may hold a name, from the longest: a block, a heading, a link, code.
PART = re.compile(
    r"^```.*?^```|^#[^\n]*|!?\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])|`(?P<name>[A-Za-z_.]+)(?:\([^`\n]*\))?`",
    re.MULTILINE | re.DOTALL,
)
WITHOUT = ("reference/", "decisions/")  # pages that stay as they are


def exported(room: str) -> list[str]:
    """Return the names in `__all__` of a package or module, without importing it."""
    package = PACKAGE / room / "__init__.py"
    source = package if package.exists() else PACKAGE / f"{room}.py"
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def shortcuts() -> dict[str, str]:
    """Return the identifier of each name that `sfumato` itself offers from a room."""
    imports = [
        node
        for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sfumato.")
    ]
    return {
        name.name: f"{str(node.module).removesuffix('.private')}.{name.name}"
        for node in imports
        for name in node.names
        if not name.name.startswith("_") and node.module != "sfumato._lazy"
    }


@cache
def targets() -> dict[str, str]:
    """Return the identifier in the reference for each way to write a public name; for a room, its page."""
    pages = {page.stem for page in (PACKAGE.parents[1] / "docs" / "reference").glob("*.md")}
    rooms = {room: exported(room) for room in sorted(pages - {"sfumato"})}
    homes = Counter(name for names in rooms.values() for name in names)
    known: dict[str, str] = {}
    for room, names in rooms.items():
        known |= dict.fromkeys((f"sf.{room}", f"sfumato.{room}"), f"reference/{room}.md")
        for name in (name for name in names if name not in FOREIGN):
            target = f"sfumato.{room}.{name}"
            known |= dict.fromkeys((f"sf.{room}.{name}", target), target)
            if homes[name] == 1 and (name[0].isupper() or "_" in name):  # `train` alone may be any word
                known[name] = target
    known |= {f"sf.{name}": target for name, target in shortcuts().items()}
    return known | {"PrivateData": "sfumato.PrivateData"}


def linked(markdown: str, known: dict[str, str], up: str = "") -> str:
    """Make a link of the first mention of each name. `up` leads from the page to the root of the site."""
    seen: set[str] = set()

    def link(part: re.Match[str]) -> str:
        target = known.get(part["name"] or "")
        if target is None or target in seen:
            return part[0]
        seen.add(target)
        return f"[{part[0]}]({up}{target})" if target.endswith(".md") else f"[{part[0]}][{target}]"

    return PART.sub(link, markdown)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Link the names of a guide."""
    place = page.file.src_uri
    return markdown if place.startswith(WITHOUT) else linked(markdown, targets(), "../" * place.count("/"))
