# SPDX-License-Identifier: Apache-2.0
"""Every planted bug is found with default settings, and the same audit is silent on the code as it is."""

from itertools import cycle, islice
from pathlib import Path

import pytest
import torch

from sfumato.generative.adversarial.clipped_gradients import ClippedGradients
from sfumato.training.engine import passes, self_check
from sfumato.training.engine.passes import Passes
from sfumato.training.engine.step.settings import Engines

from .planted import CATALOGUE, Planted

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

LEAST_BUGS = 170
CLEAN_RUNS = 200
DOCUMENTED = Path(__file__).parents[2] / "docs" / "audit.md"
FRESH = 1000  # seeds from here on are those of clean runs, no two of which are the same

SELF_CHECKED = [bug for bug in CATALOGUE if bug.unchecked is not None]

CLEAN = list({id(bug.audit): bug for bug in CATALOGUE}.values())  # one for each audit: many bugs share one

every_bug = pytest.mark.parametrize("bug", CATALOGUE, ids=lambda bug: bug.name)
every_audit = pytest.mark.parametrize("bug", CLEAN, ids=lambda bug: bug.name)
self_checked = pytest.mark.parametrize("bug", SELF_CHECKED, ids=lambda bug: bug.name)


def noted_settings(patch: pytest.MonkeyPatch) -> list[tuple[Engines, bool]]:
    """Note, from now on, the engine that training asks for, and whether it may check itself.

    A GAN's pass over generated images is left out: they are not private, and it has no self-check.
    """
    made, generated = [], []
    original, of_generated = Passes.__init__, ClippedGradients.__init__

    def noting(self, *args, **settings):
        if not generated:
            made.append((settings["settings"].engine, settings["settings"].check))
        original(self, *args, **settings)

    def leaving_out(self, *args, **settings):
        generated.append(self)
        of_generated(self, *args, **settings)
        generated.clear()

    patch.setattr(Passes, "__init__", noting)
    patch.setattr(ClippedGradients, "__init__", leaving_out)
    return made


@every_bug
def test_a_planted_bug_is_found_with_default_settings(bug: Planted, monkeypatch: pytest.MonkeyPatch):
    made = noted_settings(monkeypatch)
    bug.plant(monkeypatch)
    assert passes.self_check is self_check.self_check
    assert bug.audit(0)
    assert set(made) <= {(Engines.AUTO, True)}


@every_audit
def test_the_same_audit_does_not_accuse_clean_code(bug: Planted):
    assert not bug.audit(FRESH + CATALOGUE.index(bug))


@self_checked
def test_an_attack_finds_what_the_self_check_finds(bug: Planted, monkeypatch: pytest.MonkeyPatch):
    assert not bug.unchecked(FRESH)
    bug.plant(monkeypatch)
    assert bug.unchecked(0)


def test_settings_that_are_no_defaults_are_noticed(monkeypatch: pytest.MonkeyPatch):
    made = noted_settings(monkeypatch)
    assert not SELF_CHECKED[0].unchecked(FRESH)
    assert set(made) == {(Engines.AUTO, False)}


@pytest.mark.slow
def test_clean_code_is_not_accused_in_200_runs():
    runs = enumerate(islice(cycle(CATALOGUE), CLEAN_RUNS))
    assert [bug.name for run, bug in runs if bug.audit(FRESH + run)] == []


def test_the_documentation_lists_the_catalogue():
    lines = DOCUMENTED.read_text(encoding="utf-8").splitlines()
    first = lines.index("| bug | what went wrong | found by |") + 2
    listed = lines[first : first + len(CATALOGUE)]
    assert listed == [f"| {bug.name} | {bug.bug} | {bug.found_by} |" for bug in CATALOGUE]
    assert not lines[first + len(CATALOGUE)].startswith("|")


def test_the_catalogue_is_large_and_each_bug_is_told_apart():
    assert len(CATALOGUE) >= LEAST_BUGS
    for told in (lambda bug: bug.name, lambda bug: bug.bug, lambda bug: bug.plant):
        assert len({told(bug) for bug in CATALOGUE}) == len(CATALOGUE)
