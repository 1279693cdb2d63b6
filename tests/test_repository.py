# SPDX-License-Identifier: Apache-2.0
"""The rules of the repository, as tests."""

import ast
import importlib
import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import yaml

import sfumato

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MODULES = ["sfumato", *(m.name for m in pkgutil.walk_packages(sfumato.__path__, "sfumato."))]
MOST_LINES = 400
MOST_MODULES = 14  # in a folder of these rooms
ROOMS_WITH_FOLDERS = ("training", "statistics", "audit", "labels", "pate", "generative")
SPDX = "# SPDX-License-Identifier: Apache-2.0"

# Brackets keep the patterns from matching this file.
FORBIDDEN = re.compile(r"/wor[k]/|/tmp/[w]/|/(?:home|Users)/[A-Za-z]")
TEXT = {".py", ".md", ".toml", ".yml", ".txt", ".cfg", ".sh", ".html", ".css", ".js", ".json", ".sql", ""}
NOT_OURS = re.compile(
    r"\.venv.*|\.git|\.hypothesis|htmlcov|site|build|dist|__pycache__|.*_cache|.*\.egg-info"
)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def texts(folder: Path = ROOT) -> Iterator[Path]:
    """Yield every text file that belongs to the project."""
    for path in sorted(folder.iterdir()):
        if NOT_OURS.fullmatch(path.name) or path == ROOT / "runs":
            continue
        if path.is_dir():
            yield from texts(path)
        elif path.suffix in TEXT:
            yield path


def nav_pages(entry: object) -> Iterator[str]:
    """Yield the pages that a part of the mkdocs navigation lists."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, list):
        for part in entry:
            yield from nav_pages(part)
    elif isinstance(entry, dict):
        for part in entry.values():
            yield from nav_pages(part)


def lacks_docstring(value: object, name: str) -> bool:
    """Whether a public class or function says nothing of its own about itself."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return False  # a constant or an alias: the module's docstring speaks for it
    own = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    return not own or own.startswith(f"{name}(")  # a dataclass without one gets its signature


def test_no_property_has_a_deadline():
    """A deadline would make a test depend on the clock, and fail on a busy machine."""
    assert hypothesis.settings.default is not None and hypothesis.settings.default.deadline is None
    limited = re.compile(r"deadlin[e]=(?!None)")
    assert [relative(path) for path in texts(ROOT / "tests") if limited.search(path.read_text())] == []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_source_file_stays_short(path: Path):
    assert len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("room", ROOMS_WITH_FOLDERS)
def test_a_folder_holds_few_modules_and_each_has_a_test_of_its_name(room: str):
    modules = [
        path for path in sorted((ROOT / "src" / "sfumato" / room).rglob("*.py")) if path.stem != "__init__"
    ]
    for folder in {path.parent for path in modules}:
        assert len([path for path in modules if path.parent == folder]) <= MOST_MODULES, relative(folder)
    tests = ROOT / "tests"
    homes = {
        path: tests / path.parent.relative_to(ROOT / "src" / "sfumato") / f"test_{path.stem}.py"
        for path in modules
    }
    assert [relative(path) for path, test in homes.items() if not test.is_file()] == []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_source_file_opens_with_its_license_and_says_what_it_is(path: Path):
    text = path.read_text()
    assert text.splitlines()[:1] == [SPDX]
    assert ast.get_docstring(ast.parse(text))


def test_every_folder_of_modules_is_a_package():
    """One without `__init__.py` would be missing from the wheel, and from every rule about modules."""
    assert sorted({relative(p.parent) for p in SOURCES if not (p.parent / "__init__.py").exists()}) == []


@pytest.mark.parametrize("name", MODULES)
def test_public_names_exist_and_have_docstrings(name: str):
    module = importlib.import_module(name)
    public = {n: getattr(module, n) for n in getattr(module, "__all__", ())}
    assert [n for n, value in public.items() if lacks_docstring(value, n)] == []


def test_the_docstring_rule_has_power():
    class Silent:
        pass

    class Plain:
        """Says something."""

    assert lacks_docstring(Silent, "Silent")
    assert lacks_docstring(lambda: None, "anything")
    assert not lacks_docstring(Plain, "Plain")


def test_every_page_of_the_docs_is_in_the_navigation():
    listed = set(nav_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert pages == listed


def test_no_file_names_the_machine_it_was_written_on():
    named = [relative(p) for p in texts() if FORBIDDEN.search(p.read_text(errors="replace"))]
    assert named == []


def test_the_rule_against_machine_names_has_power():
    assert FORBIDDEN.search("see " + "/".join(["", "work", "main"]) + "/notes.txt")
    assert not FORBIDDEN.search("src/sfumato/accounting/events.py")


def test_every_room_is_in_the_import_contract():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layered = {room for layer in contract["layers"] for room in re.split(r"\s*[:|]\s*", layer)}
    rooms = {name.split(".")[1] for name in MODULES if "." in name}
    assert rooms == layered


def test_torch_comes_with_an_extra_and_not_with_the_core():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not any(line.startswith("torch") for line in project["dependencies"])
    extras = project["optional-dependencies"]
    assert any(line.startswith("torch") for line in extras["torch"])
    assert all(re.search(r"sfumato\[[\w,]*\btorch\b", "".join(extras[name])) for name in ("all", "dev"))


def test_torch_is_pinned_to_one_version_everywhere():
    pins = re.findall(r"torch==[\d.]+", (ROOT / "Makefile").read_text())
    pins += re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert len(pins) >= 2
    assert set(pins) == {"torch==2.13.0"}


def test_every_folder_of_sources_is_a_package():
    """A folder without `__init__.py` is missing in a built wheel."""
    assert [relative(path) for path in SOURCES if not (path.parent / "__init__.py").is_file()] == []
