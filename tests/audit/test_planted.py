# SPDX-License-Identifier: Apache-2.0
"""Every planted bug is found by our own audit, and the same audit is silent on the code as it is."""

from itertools import cycle, islice

import pytest
import torch

from .planted import CATALOGUE, Planted

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

LEAST_BUGS = 25
CLEAN_RUNS = 200
FRESH = 1000  # seeds from here on are those of clean runs, no two of which are the same

every_bug = pytest.mark.parametrize("bug", CATALOGUE, ids=lambda bug: bug.name)


@every_bug
def test_a_planted_bug_is_found(bug: Planted, monkeypatch: pytest.MonkeyPatch):
    bug.plant(monkeypatch)
    assert bug.audit(0)


@every_bug
def test_the_same_audit_does_not_accuse_clean_code(bug: Planted):
    assert not bug.audit(FRESH + CATALOGUE.index(bug))


@pytest.mark.slow
def test_clean_code_is_not_accused_in_200_runs():
    runs = enumerate(islice(cycle(CATALOGUE), CLEAN_RUNS))
    assert [bug.name for run, bug in runs if bug.audit(FRESH + run)] == []


def test_the_catalogue_is_large_and_each_bug_is_told_apart():
    assert len(CATALOGUE) >= LEAST_BUGS
    for told in (lambda bug: bug.name, lambda bug: bug.bug, lambda bug: bug.plant):
        assert len({told(bug) for bug in CATALOGUE}) == len(CATALOGUE)
