# SPDX-License-Identifier: Apache-2.0
"""The extension that prepares docstrings for the reference pages."""

from pathlib import Path

import griffe
import pytest

from docs.docstrings import ReadableDocstrings, with_members
from sfumato.accounting import Accountant
from sfumato.experiments import Verdict

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.mark.parametrize("enum", [Verdict, Accountant])
def test_the_members_of_an_enum_are_listed(enum):
    loaded = griffe.load(
        enum.__module__, search_paths=[SOURCE], extensions=griffe.load_extensions(ReadableDocstrings)
    )
    text = loaded[enum.__name__].docstring.value
    for member in enum:
        assert text.count(f"- `{member.name} = ") == 1, text


def test_other_classes_stay_and_members_come_before_the_sections():
    loaded = griffe.load(
        "sfumato.experiments.experiment",
        search_paths=[SOURCE],
        extensions=griffe.load_extensions(ReadableDocstrings),
    )
    assert "Members:" not in loaded["Finding"].docstring.value
    assert with_members("One.\n\nArgs:\n    x: y", ["A = 1"]) == (
        "One.\n\nMembers:\n\n- `A = 1`\n\nArgs:\n    x: y"
    )
