# SPDX-License-Identifier: Apache-2.0
"""The reference is complete: every public name has a page, and every argument a description."""

import ast
import dataclasses
import enum
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Never, NoReturn

import pytest
import yaml
from sklearn.base import BaseEstimator

import sfumato

ROOT = Path(__file__).resolve().parents[1]
OPENED = [name for name in sfumato.__all__ if isinstance(getattr(sfumato, name), ModuleType)]


def rooms_in(name: str) -> Iterator[str]:
    """Yield a room, and the rooms in it: packages that list public names."""
    yield name
    module = importlib.import_module(f"sfumato.{name}")
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        inner = f"{name}.{found.name}"
        listed = found.ispkg and hasattr(importlib.import_module(f"sfumato.{inner}"), "__all__")
        if listed and not found.name.startswith("_"):
            yield from rooms_in(inner)


ROOMS = [room for name in OPENED for room in rooms_in(name)]
# Rooms whose docstrings are not rewritten yet. A room without problems must leave this set.
NOT_YET: set[str] = set()
OURS = (
    "sfumato",
    __name__,
)  # modules whose docstrings are checked; this one, to see that the check has power

MOST_PARAMETERS = 12  # of a public callable; settings that belong together have an object
SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises):")
ENTRY = re.compile(r"    \*{0,2}(\w+):")


def sections(docstring: str | None) -> dict[str, list[str]]:
    """Return the sections of a docstring, each with the names it lists."""
    found: dict[str, list[str]] = {}
    listed: list[str] | None = None
    for line in inspect.cleandoc(docstring or "").split("\n"):
        if SECTION.fullmatch(line):
            listed = found.setdefault(line.removesuffix(":"), [])
        elif line and not line.startswith(" "):
            listed = None
        elif listed is not None and (entry := ENTRY.match(line)):
            listed.append(entry[1])
    return found


def parameters(value: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a caller passes."""
    names = inspect.signature(value).parameters
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def own_tree(value: Callable[..., Any]) -> ast.AST | None:
    """Return the source of a function as a tree, or None for one that Python wrote."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value))))
    except (OSError, TypeError):
        return None


def refuses(value: Callable[..., Any]) -> bool:
    """Whether the source of a function raises an error or checks its arguments."""
    for node in ast.walk(own_tree(value) or ast.Module([], [])):
        if isinstance(node, ast.Name) and node.id == "_check":
            return True
        if (
            isinstance(node, ast.Raise)
            and node.exc is not None
            and "NotImplemented" not in ast.unparse(node.exc)
        ):
            return True
    return False


def returns_something(value: Callable[..., Any]) -> bool:
    annotation = inspect.signature(value).return_annotation
    return annotation not in (None, "None", NoReturn, Never, "NoReturn", "Never", inspect.Signature.empty)


def function_problems(function: Callable[..., Any], name: str) -> Iterator[str]:
    """Yield what the docstring of a public function or method leaves out, or invents."""
    found = sections(function.__doc__)
    taken, listed = parameters(function), found.get("Args", [])
    yield from (f"{name}: argument {p} is not documented" for p in taken if p not in listed)
    yield from (f"{name}: there is no argument {p}" for p in listed if p not in taken)
    if returns_something(function) and not {"Returns", "Yields"} & set(found):
        yield f"{name}: no Returns"
    if refuses(function) and not found.get("Raises"):
        yield f"{name}: no Raises"


def of_ours(cls: type) -> list[type]:
    """Return a class and those of its bases that sfumato wrote."""
    return [base for base in cls.__mro__ if base.__module__.startswith(OURS)]


def is_constructed(cls: type) -> bool:
    """Whether a caller constructs a class by arguments of ours."""
    if issubclass(cls, enum.Enum) or getattr(cls, "_is_protocol", False):
        return False
    return any({"__init__", "__new__"} & set(vars(base)) for base in of_ours(cls))


def has_attribute(cls: type, name: str) -> bool:
    """Whether the source of a class, or of a base, uses a name outside docstrings."""
    if hasattr(cls, name) or any(name in inspect.get_annotations(base) for base in of_ours(cls)):
        return True
    trees = [ast.parse(textwrap.dedent(inspect.getsource(base))) for base in of_ours(cls)]
    return any(
        isinstance(node, ast.Attribute) and node.attr == name for tree in trees for node in ast.walk(tree)
    )


def constructor_problems(cls: type, name: str) -> Iterator[str]:
    """Yield what the docstring of a public class says wrongly about its constructor and attributes."""
    found = sections(cls.__doc__)
    taken = parameters(cls) if is_constructed(cls) else []
    args, attributes = found.get("Args", []), found.get("Attributes", [])
    yield from (f"{name}: argument {p} is not documented" for p in taken if p not in [*args, *attributes])
    yield from (f"{name}: there is no argument {p}" for p in args if p not in taken)
    yield from (f"{name}: there is no attribute {p}" for p in attributes if not has_attribute(cls, p))
    makers = [vars(base).get(made) for base in of_ours(cls) for made in ("__init__", "__post_init__")]
    if is_constructed(cls) and any(refuses(m) for m in makers if m) and not found.get("Raises"):
        yield f"{name}: no Raises"


def methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods of a class, and the functions behind its public properties."""
    seen: set[str] = set()
    for base in of_ours(cls):
        for name, value in vars(base).items():
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if name.startswith("_") or name in seen or not inspect.isfunction(function):
                continue
            seen.add(name)
            if function.__module__.startswith(OURS):
                yield name, function


def problems(value: object, name: str) -> Iterator[str]:
    """Yield everything that is wrong with the docstrings of one public name."""
    if not getattr(value, "__module__", "").startswith(OURS):
        return  # a class of another library
    if inspect.isclass(value):
        yield from constructor_problems(value, name)
        for method, function in methods(value):
            yield from function_problems(function, f"{name}.{method}")
    elif inspect.isroutine(value):
        yield from function_problems(value, name)


def room_problems(room: str) -> list[str]:
    module = importlib.import_module(f"sfumato.{room}")
    return [p for name in module.__all__ for p in problems(getattr(module, name), f"sfumato.{room}.{name}")]


@pytest.mark.parametrize("room", ROOMS)
def test_every_argument_result_and_error_of_a_room_is_documented(room: str):
    found = room_problems(room)
    if room in NOT_YET:
        assert found, f"sfumato.{room} is documented: take it out of NOT_YET"
    else:
        assert found == []


class Undocumented:
    """Nothing about the argument.

    Attributes:
        depth: Not there.
    """

    def __init__(self, width: float) -> None:
        if not width > 0:
            raise ValueError("width")
        self.width = width

    def area(self, height: float) -> float:
        """Multiply.

        Args:
            length: Not there.
        """
        return self.width * height


def test_the_rule_about_arguments_has_power():
    assert list(problems(Undocumented, "U")) == [
        "U: argument width is not documented",
        "U: there is no attribute depth",
        "U: no Raises",
        "U.area: argument height is not documented",
        "U.area: there is no argument length",
        "U.area: no Returns",
    ]


def is_description(value: object) -> bool:
    """Whether a class is a frozen dataclass: it describes, and may have as many fields as that takes."""
    return dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen  # type: ignore[attr-defined]


def callables(value: object, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield what a caller of one public name may call, but for descriptions and estimators' constructors.

    scikit-learn clones an estimator by its parameters, so each setting must be one.
    """
    if not getattr(value, "__module__", "").startswith(OURS):
        return
    if not inspect.isclass(value):
        if inspect.isroutine(value):
            yield name, value
        return
    if is_constructed(value) and not is_description(value) and not issubclass(value, BaseEstimator):
        yield name, value
    yield from ((f"{name}.{method}", function) for method, function in methods(value))


def long_signatures(value: object, name: str) -> list[str]:
    """Return the callables of one public name that have more parameters than a caller can oversee."""
    found = callables(value, name)
    return [each for each, function in found if len(parameters(function)) > MOST_PARAMETERS]


@pytest.mark.parametrize("room", ROOMS)
def test_no_public_callable_has_more_than_12_parameters(room: str):
    module = importlib.import_module(f"sfumato.{room}")
    public = {f"sfumato.{room}.{name}": getattr(module, name) for name in module.__all__}
    assert [each for name, value in public.items() for each in long_signatures(value, name)] == []


def test_the_rule_about_long_signatures_has_power():
    names = [f"setting_{i}" for i in range(MOST_PARAMETERS + 1)]

    class Long:
        def method(self) -> None: ...

    fixed = dataclasses.make_dataclass("Fixed", names, frozen=True, namespace={"__module__": __name__})
    loose = dataclasses.make_dataclass("Loose", names, namespace={"__module__": __name__})
    Long.method.__signature__ = inspect.signature(fixed)  # type: ignore[attr-defined]
    assert long_signatures(Long, "Long") == ["Long.method"]
    assert long_signatures(loose, "Loose") == ["Loose"] and long_signatures(fixed, "Fixed") == []


def test_rooms_in_rooms_are_found():
    assert {"integrations.lightning", "integrations.loggers", "federated.flower", "errors"} <= set(ROOMS)
    assert "training.engine.rules" not in ROOMS  # its package is internal


def page_of(room: str) -> str:
    """Return the page that describes a room: `sfumato.private` is offered as `sfumato`."""
    return "reference/sfumato.md" if room == "private" else f"reference/{room.partition('.')[0]}.md"


def navigation(entry: object) -> Iterator[str]:
    """Yield the pages that a part of the navigation lists."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:  # type: ignore[attr-defined]
            yield from navigation(part)


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_a_page_in_the_navigation(room: str):
    listed = set(navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert page_of(room) in listed
    shown = "sfumato" if room == "private" else f"sfumato.{room}"
    assert f"\n::: {shown}\n" in (ROOT / "docs" / page_of(room)).read_text()


def test_every_shortcut_is_listed():
    page = (ROOT / "docs" / "reference" / "sfumato.md").read_text()
    shortcuts = [name for name in sfumato.__all__ if name not in (*OPENED, "PrivateData", "open")]
    assert [name for name in shortcuts if f"`sf.{name}`" not in page] == []


def shown_names(room: str) -> list[str]:
    """Return the public names of a room that sfumato wrote, as the pages spell them."""
    if room == "private":
        return ["sfumato.PrivateData", "sfumato.open", "sfumato.private.fit"]
    module = importlib.import_module(f"sfumato.{room}")
    ours = [n for n in module.__all__ if getattr(getattr(module, n), "__module__", "").startswith("sfumato")]
    return [f"sfumato.{room}.{name}" for name in ours]


def check_site(site: Path) -> None:
    """Check that guides link to the reference, pages need no other host, and notebooks are there."""
    assert (
        'href="reference/training.html#sfumato.training.PrivateGradients"'
        in (site / "training.html").read_text()
    )
    loaded = re.compile(r"<(?:script|img|iframe)[^>]+src=\"?https?:|<link[^>]+stylesheet[^>]+href=\"?https?:")
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())] == []
    tutorials = {page.stem for page in (ROOT / "docs" / "tutorials").glob("*.md")}
    assert {notebook.stem for notebook in (site / "tutorials").glob("*.ipynb")} == tutorials


def test_the_pages_are_built_without_warnings_and_show_every_public_name(tmp_path: Path):
    # Not with --quiet: then warnings are not counted, and a broken link passes.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    for room in ROOMS:
        html = (tmp_path / page_of(room).replace(".md", ".html")).read_text()
        assert [name for name in shown_names(room) if f'id="{name}"' not in html] == []
        assert "&gt;&gt;&gt; " not in re.sub(
            r"<pre>.*?</pre>", "", html, flags=re.DOTALL
        )  # doctests are code
    check_site(tmp_path)
