# SPDX-License-Identifier: Apache-2.0
"""The guides say what is computed: the tables of docs/choosing-epsilon.md and the order of the glossary."""

import importlib.util
import math
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("guide_figures", ROOT / "benchmarks/guides/figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_choosing_epsilon_are_those_of_its_script(figures: ModuleType) -> None:
    page = (DOCS / "choosing-epsilon.md").read_text()
    assert figures.odds_table() in page
    assert figures.attack_table() in page


def test_the_best_attack_is_that_of_randomized_response(figures: ModuleType) -> None:
    for epsilon in (0.5, 2.0):
        lie = 1 / (1 + math.exp(epsilon))  # accuses exactly who answers "in"
        assert math.isclose(figures.found_at_worst(epsilon, lie, delta=0.0), 1 - lie)


def test_gaussian_noise_reveals_no_more_than_its_epsilon_and_delta_allow(figures: ModuleType) -> None:
    for alarms in figures.ALARMS:
        most = figures.found_at_worst(1.0, alarms)
        assert alarms < figures.found_under_gaussian_noise(1.0, alarms) < most


def test_words_of_the_glossary_are_sorted_and_occur_once() -> None:
    rows = re.findall(r"^\| (.+?) \| .+? \|.*\|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    words = [row.replace("`", "").lower() for row in rows if row not in ("word", "---")]
    assert len(words) > 50
    assert words == sorted(set(words))


def test_the_landing_page_links_to_every_tutorial_how_to_and_integration() -> None:
    page = (DOCS / "index.md").read_text()
    found = [*DOCS.glob("tutorials/*.md"), *DOCS.glob("how-to/*.md")]
    named = [path.relative_to(DOCS).as_posix() for path in found]
    assert len(named) > 20
    guides = ["hugging-face.md", "lightning.md", "loggers.md", "notebooks.md", "cli.md", "cards.md", "faq.md"]
    assert [name for name in [*named, *guides] if f"]({name})" not in page] == []
