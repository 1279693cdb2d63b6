# SPDX-License-Identifier: Apache-2.0
"""What the documentation shows is run: commands, Python blocks, example files. No command is undocumented."""

import dataclasses
import doctest
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import typer.main

from docs.figures import way
from docs.tutorial_notebooks import cells
from sfumato import cli
from sfumato.cli.app import app

ROOT = Path(__file__).parent.parent
# Pages whose blocks belong together: they run in one process and one folder, and print what they show.
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
LANDING = ROOT / "docs" / "index.md"
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {LANDING, *TUTORIALS, *HOW_TO})]
COMMANDS = re.compile(r"^```console\n.*?^```\n", re.MULTILINE | re.DOTALL)
# Other pages that show what a block prints. Their commands stand alone, and are run apart.
GUIDES = [p for p in PAGES if any(cell.shown for cell in cells(COMMANDS.sub("", p.read_text())))]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
BIN = Path(sys.executable).parent
RUNNER = ROOT / "tests" / "page.py"
NUMBER = re.compile(r"\b[0-9a-f]{8,}\b|[-+]?\d(?:[\d,_.]*\d)?\.?(?:e[-+]?\d+)?|[-+]?\b(?:inf|nan)\b")
LINES = re.compile(r"[─━═-]{2,}")
SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    lines = "\n".join(blocks(page, "console")).splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def people(path: Path) -> None:
    """Write the table that pages ask about."""
    rows = [
        f"{i},{20 + i % 60},{1000 + 37 * (i % 60)},{'Rome' if i % 3 else 'Oslo'},{int(i % 60 > 30)}"
        for i in range(2000)
    ]
    path.write_text("\n".join(["client_id,age,income,city,default", *rows]) + "\n")


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "SFUMATO_LEDGER"}
    return kept | {"COLUMNS": "100", "MPLBACKEND": "Agg"}  # figures are drawn and not shown


def masked(text: str) -> str:
    """Replace what differs from run to run: numbers, hashes and the lines of tables."""
    return LINES.sub("-", NUMBER.sub("#", text))


def agrees(shown: str, printed: str) -> bool:
    """Whether a page shows what is printed, up to numbers and spaces. `...` stands for anything."""
    return doctest.OutputChecker().check_output(masked(shown), masked(printed), SHOWN)


def test_a_shown_output_may_differ_in_numbers_and_in_nothing_else() -> None:
    printed = "mean of age: 49.2 +- 1.5e-05, of -3\n----------\n2026-11-18 by alice: head 3f9a77b2c1d0\n"
    assert agrees("mean of age: 7 +-  12, of 8\n---\n2025-01-02 by ...: head 00aa11bb22cc\n", printed)
    assert not agrees(printed.replace("age", "income"), printed)
    assert not agrees(printed.replace(", of -3", ""), printed)


def printed_by(page: str, folder: Path, exit_code: Callable[..., int | None]) -> list[str] | None:
    """Run the cells of a page in a folder; return what each of them printed, or None if one failed."""
    told, printed = folder / "cells.json", folder / "printed.json"
    told.write_text(json.dumps([dataclasses.asdict(cell) for cell in cells(page)]))
    place = folder / "page"
    place.mkdir(exist_ok=True)
    failed = exit_code(RUNNER, str(told), str(printed), cwd=place, env=environment())
    return None if failed else json.loads(printed.read_text())


@pytest.mark.parametrize(
    "page", [LANDING, *TUTORIALS, *HOW_TO, *GUIDES], ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_a_page_runs_and_prints_what_it_shows(page: Path, tmp_path: Path, exit_code) -> None:
    if page in HOW_TO:
        (tmp_path / "page").mkdir()
        people(tmp_path / "page" / "people.csv")  # a tutorial makes what it reads
    text = COMMANDS.sub("", page.read_text()) if page in GUIDES else page.read_text()
    printed = printed_by(text, tmp_path, exit_code)
    assert printed is not None, "a block failed: its error is above"
    for cell, out in zip(cells(text), printed, strict=True):
        if cell.shown is not None and not agrees(cell.shown, out):
            pytest.fail(
                f"{cell.source}\n\nprints\n\n{out}\nand the page shows\n\n{cell.shown}", pytrace=False
            )


def test_a_page_runs_in_order_and_a_refusal_must_be_one(tmp_path: Path, exit_code) -> None:
    code, refused = (
        "```python\nx = 2\n```\n\n```python\nx + 1\n```\n",
        '```console title="Refused"\n$ {}\n```\n',
    )
    printed = printed_by(code + refused.format("sfumato nothing"), tmp_path, exit_code)
    assert printed is not None and printed[:2] == ["", "3\n"] and "No such command" in printed[2]
    assert printed_by(code + refused.format("sfumato --version"), tmp_path, exit_code) is None
    assert printed_by("```python\n1 / 0\n```\n", tmp_path, exit_code) is None
    assert printed_by("```console\n$ sfumato nothing\n```\n", tmp_path, exit_code) is None


@pytest.mark.usefixtures("small_classifiers")
@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.name)
def test_every_command_on_a_page_runs(page: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SFUMATO_LEDGER", raising=False)
    people(tmp_path / "people.csv")
    for command in commands(page):
        monkeypatch.setattr("sys.argv", shlex.split(command))
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        assert command.startswith("sfumato ") and not stop.value.code, f"{command}\n{err}"
        assert out.strip(), command


def test_the_command_is_installed() -> None:
    ran = subprocess.run([BIN / "sfumato", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("sfumato ")


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p not in GUIDES and blocks(p, "python")], ids=lambda p: p.name
)
def test_the_python_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path, exit_code) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page, "python")))
    assert exit_code(script, cwd=tmp_path, env=environment()) == 0


def test_the_readme_shows_what_its_example_prints(tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text(blocks(ROOT / "README.md", "python")[0])
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert f"```\n{ran.stdout}```" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_an_example_runs_and_stays_short(example: Path, tmp_path: Path, exit_code) -> None:
    assert exit_code(example, cwd=tmp_path, env=environment()) == 0
    assert len(example.read_text().splitlines()) < 100


LINKED = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]  # mkdocs checks the links of the site
LINK = re.compile(r"(?:\]\(|src(?:set)?=\")(?!https?:)([^)#\"\s]*)(?:#([^)\"\s]*))?[)\"]")


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as mkdocs and hosts of repositories write them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken: list[str] = []
    for place, anchor in LINK.findall(page.read_text()):
        target = page.parent / place if place else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{place}#{anchor}")
    return broken


@pytest.mark.parametrize("name", LINKED)
def test_no_link_outside_of_the_site_is_broken(name: str) -> None:
    assert broken_links(ROOT / name) == []


def test_the_rule_about_links_has_power(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('# One idea\n[a](#one-idea) [b](#two) [c](no.md) [d](https://no) <img src="no.svg">\n')
    assert broken_links(page) == ["#two", "no.md#", "no.svg#"]


def test_the_readme_links_to_every_room() -> None:
    page = (ROOT / "README.md").read_text()
    rooms = [p.parent.name for p in (ROOT / "src" / "sfumato").glob("*/__init__.py")]
    shown = [room for room in rooms if (ROOT / "docs" / "reference" / f"{room}.md").exists()]
    hidden = {"testing"}  # for tests of users, and no room to begin with
    assert [room for room in shown if room not in hidden and f"[`sfumato.{room}`](docs/" not in page] == []


def test_the_gallery_shows_every_figure() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    figures = [p for d in ("figures", "results") for p in (ROOT / "docs" / d).rglob("*.*g")]
    names = [p.relative_to(ROOT / "docs").as_posix() for p in figures if not p.name.startswith("way-")]
    assert [name for name in names if f"]({name})" not in page] == []


def test_the_picture_of_the_way_is_what_its_script_draws() -> None:
    for (name, theme), (size, columns) in product(way.THEMES.items(), way.COLUMNS.items()):
        drawn = (ROOT / "docs" / "figures" / f"way-{name}{size}.svg").read_text()
        assert drawn == way.picture(theme, columns)


def test_every_command_and_flag_is_documented() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    root = typer.main.get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        for path, leaf in [(f"{name} {n}", c) for n, c in getattr(command, "commands", {}).items()] or [
            (name, command)
        ]:
            assert f"sfumato {path}" in page, path
            for parameter in leaf.params:
                flags = [flag for flag in parameter.opts if flag.startswith("--")]
                assert not flags or any(flag in page for flag in flags), (path, flags)
