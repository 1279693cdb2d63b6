# SPDX-License-Identifier: Apache-2.0
"""One way to install is named everywhere: sfumato is on no index, so `pip install` with its name is wrong."""

import re
import tomllib
from pathlib import Path

import pytest

from sfumato._extras import how_to_install

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
BY_NAME = re.compile(r"sfumato\[|\bpip3? install\b[^\n`]*?[\s'\"]sfumato\b(?!-)")
FROM_CHECKOUT = re.compile(r"pip install -c constraints\.txt\s+[\"']\.\[([\w,]+)\][\"']")
ASKED_FOR = re.compile(r"how_to_install\(([^)]*)\)")


def by_name(text: str) -> list[str]:
    return [found[0] for found in BY_NAME.finditer(text)]


@pytest.mark.parametrize(
    "text",
    [
        "pip install sfumato",
        "Run: pip install --upgrade sfumato",
        "pip install 'sfumato[torch]'",
        'needs "\n  "\'sfumato[postgres]\'"',
    ],
)
def test_the_rule_finds_an_advice_that_fails(text):
    assert by_name(text)


def test_the_rule_leaves_other_packages_and_files_alone():
    assert not by_name(how_to_install("torch")) and not by_name(how_to_install())
    assert not by_name("pip install pandas\n`pip install triton` runs sfumato.training")
    assert not by_name("pip install sfumato-0.1.0-py3-none-any.whl")


@pytest.mark.parametrize("files", [PAGES, SOURCES], ids=["pages", "sources"])
def test_nothing_says_to_install_sfumato_by_its_name(files):
    assert {str(f): found for f in files if (found := by_name(f.read_text()))} == {}


def test_every_extra_that_is_advised_exists():
    pages = [
        extra for f in PAGES for found in FROM_CHECKOUT.findall(f.read_text()) for extra in found.split(",")
    ]
    sources = [found.strip("\"'") for f in SOURCES for found in ASKED_FOR.findall(f.read_text())]
    named = {each for each in sources if each not in ("", "extra", "extra: str | None = None")}
    assert len(pages) > 10 and named >= {"torch", "tables", "postgres", "images", "plots"}
    assert (set(pages) | named) - set(EXTRAS) == set()


def test_an_advice_names_the_checkout_and_the_wheel():
    assert 'checkout of sfumato: pip install -c constraints.txt ".[spark]"' in how_to_install("spark")
    assert 'pip install "FILE.whl[spark]"' in how_to_install("spark")
    assert 'pip install -c constraints.txt "."' in how_to_install()
